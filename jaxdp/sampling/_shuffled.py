"""Shuffled epochs: every example once an epoch, in batches of one size. No accountant gives amplification for it.

Removing an example would shift all that come after it, so the privacy of a shuffled run is stated for a record that is
blanked or replaced in its place, at the cost of one Gaussian mechanism an epoch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._batches import Draw, PaddedBatch, check_step, iterate_batches, iterate_rows, make_batch
from ._poisson import count_of_examples
from ._sampling import SampledRun, gaussian_event_of, refuse_capacity

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Shuffled:
    """Every example once an epoch, in an order of its own; not amplified."""

    name: ClassVar[str] = "shuffle"
    label: ClassVar[str] = "shuffled epochs"
    title: ClassVar[str] = "shuffled"
    of_batch_size: ClassVar[str] = "(shuffled)"
    adjacencies: ClassVar[tuple[str, ...]] = ("replace_special", "replace_one")
    amplified: ClassVar[bool] = False

    def check(self, run: SampledRun) -> None:
        """Refuse batches of no one size, and a relation under which a record more or less would shift all others."""
        _checks.count("expected_batch_size", run.expected_batch_size, "shuffled epochs have batches of one size")
        if run.adjacency not in self.adjacencies:
            raise UsageError(
                f"sampling='shuffle' can't be accounted under adjacency={run.adjacency!r}: a record more would shift every "
                "batch after it; give adjacency='replace_special' (a record blanked in its place) or 'replace_one', or sample by "
                "'poisson', which costs far less"
            )

    def sampler(self, run: SampledRun, key: Key[Array, ""], *, capacity: int) -> "ShuffledSampler":
        """A `ShuffledSampler`."""
        refuse_capacity(self, capacity)
        size = int(run.expected_batch_size)
        return ShuffledSampler(key=key, num_examples=run.num_examples, batch_size=size, steps=run.steps)

    def event(self, run: SampledRun, steps: int) -> "DpEvent":
        """A Gaussian mechanism for each epoch that has begun: its batches are disjoint parts of the data."""
        import dp_accounting as dp

        return dp.SelfComposedDpEvent(gaussian_event_of(run, self), -(-steps // self._epoch_of(run)))

    def in_words(self, run: SampledRun) -> str:
        """How the batches were drawn, for a statement."""
        return (
            f"Each epoch used every {run.unit} once, in shuffled batches of {run.expected_batch_size:.15g}. Shuffling has no "
            "amplification by sampling that could be certified, so each epoch is accounted as one Gaussian mechanism without "
            "sampling"
        )

    @staticmethod
    def steps_per_epoch(num_examples: int, batch_size: float) -> int:
        """The batches in which every example stands once."""
        return math.ceil(num_examples / int(batch_size))

    def paid_at(self, run: SampledRun) -> Sequence[int]:
        """An epoch is paid for when it begins."""
        return range(1, run.steps + 1, self._epoch_of(run))

    def _epoch_of(self, run: SampledRun) -> int:
        return self.steps_per_epoch(run.num_examples, run.expected_batch_size)


@dataclass(frozen=True, kw_only=True)
class ShuffledSampler:
    """Draws the batches of a run: each epoch in an order of its own, cut into batches, of which the last may be smaller.

    The draw of step t depends on the key and on t alone, so a resumed run draws what the interrupted one would have.

    Args:
        key: scalar key, used for sampling and nothing else.
        num_examples: the number n of examples.
        batch_size: how many examples a batch holds.
        steps: how many batches an iteration gives.

    Raises:
        UsageError: for counts that are not positive whole numbers, or a batch larger than the data.

    Examples:
        >>> import jax
        >>> sampler = ShuffledSampler(key=jax.random.key(0), num_examples=10, batch_size=4, steps=3)
        >>> [int(batch.mask.sum()) for batch in sampler]
        [4, 4, 2]
    """

    key: Key[Array, ""] = field(repr=False)
    num_examples: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        number = count_of_examples(self.num_examples)
        steps = _checks.count("steps", self.steps, "give the number of batches to draw")
        size = _checks.count("batch_size", self.batch_size, "give the number of examples a batch holds")
        _checks.set_fields(self, num_examples=number, steps=steps, batch_size=size)
        if size > number:
            raise UsageError(f"batch_size={self.batch_size} exceeds num_examples={number}: give at most {number}")

    @property
    def usual_size(self) -> float:
        """The size of all batches but an epoch's last."""
        return self.batch_size

    def draw(self, step: int | Int32[Array, ""]) -> Draw:
        """The draw of one step (counted from 0), at the shape of all examples; can be traced."""
        step = check_step(self.key, step)
        per_epoch = Shuffled.steps_per_epoch(self.num_examples, self.batch_size)
        epoch, place = jnp.divmod(jnp.asarray(step, jnp.int32), jnp.int32(per_epoch))
        of_epoch = jax.random.fold_in(own_key(self.key, Domain.SHUFFLED_SAMPLER), epoch)
        bits = jax.random.bits(of_epoch, (self.num_examples,), jnp.uint32)
        start = place * jnp.int32(self.batch_size)
        with_padding = partial(jnp.pad, constant_values=self.num_examples)
        order = with_padding(jnp.argsort(bits).astype(jnp.int32), (0, self.batch_size))
        size = jnp.minimum(jnp.int32(self.batch_size), jnp.int32(self.num_examples) - start)
        taken = jax.lax.dynamic_slice_in_dim(order, start, self.batch_size)
        return Draw(with_padding(taken, (0, self.num_examples - self.batch_size)), size)

    def batch(self, step: int) -> PaddedBatch:
        """The draw of one step as a padded batch of `batch_size` rows."""
        return make_batch(self, step, self.batch_size)

    def take(self, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
        """The batches of arrays [num_examples, ...], each with its mask: `for batch, mask in sampler.take((X, Y))`.

        Rows of padding are zeros. Another number of rows than `num_examples` is a `UsageError`.
        """
        return iterate_rows(self, arrays)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PaddedBatch]:
        return iterate_batches(self, self.batch_size)


jax.tree_util.register_dataclass(
    ShuffledSampler, data_fields=["key"], meta_fields=["num_examples", "batch_size", "steps"]
)
