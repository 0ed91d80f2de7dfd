"""The contract of a sampling: a frozen value that says who is in a batch, and what that is worth to the accountants."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, Key

from .._errors import UsageError
from ..noise import Noise
from ._batches import Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent, GaussianDpEvent


@runtime_checkable
class SampledRun(Protocol):
    """A run as a sampling reads it; `jaxdp.DPSGD` is one."""

    @property
    def num_examples(self) -> int: ...

    @property
    def expected_batch_size(self) -> float: ...

    @property
    def sampling_rate(self) -> float: ...

    @property
    def steps(self) -> int: ...

    @property
    def noise(self) -> Noise: ...

    @property
    def noise_multiplier(self) -> float: ...

    @property
    def adjacency(self) -> str: ...

    @property
    def unit(self) -> str: ...


@runtime_checkable
class Sampling(Protocol):
    """A way of drawing batches: a frozen dataclass with this; `jaxdp.sampling.Poisson` is one.

    Its sampler and its event must be true of each other: the accountants believe the event.

    Attributes:
        name: the short name, as a summary and an error say it.
        label: in a ledger's entry, "Poisson sampling".
        title: before "batches" in a plot's title, "Poisson".
        of_batch_size: behind the batch size in a table of results, "expected (Poisson)".
        adjacencies: the relations under which it can be accounted; the usual one first.
        amplified: whether its event is cheaper for being sampled; a statement compares one that isn't with Poisson sampling.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    title: ClassVar[str]
    of_batch_size: ClassVar[str]
    adjacencies: ClassVar[tuple[str, ...]]
    amplified: ClassVar[bool]

    def check(self, run: SampledRun) -> None:
        """Refuse, by `jaxdp.UsageError`, a run whose numbers it can't draw by, or whose adjacency it doesn't know."""
        ...

    def sampler(self, run: SampledRun, key: Key[Array, ""], *, capacity: int) -> Sampler:
        """The sampler of a run. `capacity` is for padded batches of no fixed size: 0 for what is usual.

        The compiled step calls this with a key that is traced: a draw must be a function of the key and of the step alone.
        """
        ...

    def event(self, run: SampledRun, steps: int) -> "DpEvent":
        """The event of the first `steps` steps, 1 or more, made of `run.noise.event(run.noise_multiplier)`.

        Raises:
            UsageError: for a noise with which it has no known event, naming both; `gaussian_event_of` does that.
        """
        ...

    def in_words(self, run: SampledRun) -> str:
        """How the batches were drawn, for a statement: a sentence without its full stop."""
        ...

    def steps_per_epoch(self, num_examples: int, batch_size: float) -> int:
        """The steps of an epoch, at least 1."""
        ...

    def paid_at(self, run: SampledRun) -> Sequence[int] | None:
        """The steps, counted from 1, with which epsilon grows; None where each step costs."""
        ...


def gaussian_event_of(run: SampledRun, sampling: Sampling) -> "GaussianDpEvent":
    """The event of the run's noise on one sum, for a sampling that is known with Gaussian noise alone.

    Raises:
        UsageError: for noise that is accounted as anything else.
    """
    from dp_accounting import GaussianDpEvent

    event: Any = run.noise.event(run.noise_multiplier)
    if type(event) is not GaussianDpEvent:
        raise UsageError(
            f"sampling={sampling.name!r} with noise={run.noise!r}: no event is known of {sampling.label} with what is accounted "
            f"as {type(event).__name__}; give jaxdp.noise.Gaussian(), or a sampling whose event knows this noise"
        )
    return event


def refuse_capacity(sampling: Sampling, capacity: int) -> None:
    """Refuse a capacity where all batches have one size."""
    if capacity != 0:
        raise UsageError(f"capacity={capacity} has no meaning under sampling={sampling.name!r}: leave it out")
