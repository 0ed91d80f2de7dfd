"""Truncated Poisson sampling: a Poisson draw of which at most a fixed number is used, so that a batch has a fixed size.

Where the draw is larger, a uniformly random subset of that size is used. Taking the first of them instead would favour the
examples that stand first in the data, which no accountant covers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._batches import Draw, PaddedBatch, check_step, draw_of_mask, iterate_batches, iterate_rows, make_batch
from ._poisson import Poisson, check_rate, count_of_examples, included, rate_in_words, usual_size
from ._sampling import SampledRun, gaussian_event_of, refuse_capacity

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class TruncatedPoisson:
    """At most `truncated_batch_size` examples of a Poisson draw, chosen at random.

    Args:
        truncated_batch_size: the most examples of a batch.

    Raises:
        UsageError: for what is no positive whole number.

    References:
        arXiv 2508.15089, as dp-accounting's `TruncatedSubsampledGaussianDpEvent` accounts it.
    """

    truncated_batch_size: int

    name: ClassVar[str] = "truncated_poisson"
    label: ClassVar[str] = "truncated Poisson sampling"
    title: ClassVar[str] = "truncated Poisson"
    of_batch_size: ClassVar[str] = "expected (truncated Poisson)"
    adjacencies: ClassVar[tuple[str, ...]] = Poisson.adjacencies
    amplified: ClassVar[bool] = True

    def __post_init__(self) -> None:
        most = _checks.count("truncated_batch_size", self.truncated_batch_size, "give the most examples of a batch")
        _checks.set_fields(self, truncated_batch_size=most)

    def check(self, run: SampledRun) -> None:
        """Refuse what `TruncatedPoissonSampler` can't draw."""
        count_of_examples(run.num_examples)
        check_rate(run.sampling_rate)

    def sampler(self, run: SampledRun, key: Key[Array, ""], *, capacity: int) -> "TruncatedPoissonSampler":
        """A `TruncatedPoissonSampler`."""
        refuse_capacity(self, capacity)
        return TruncatedPoissonSampler(
            key=key,
            num_examples=run.num_examples,
            sampling_rate=run.sampling_rate,
            truncated_batch_size=self.truncated_batch_size,
            steps=run.steps,
        )

    def event(self, run: SampledRun, steps: int) -> "DpEvent":
        """A Gaussian mechanism on what is used of a Poisson sample for each step."""
        import dp_accounting as dp

        one = dp.TruncatedSubsampledGaussianDpEvent(
            dataset_size=run.num_examples,
            sampling_probability=run.sampling_rate,
            truncated_batch_size=self.truncated_batch_size,
            noise_multiplier=gaussian_event_of(run, self).noise_multiplier,
        )
        return dp.SelfComposedDpEvent(one, steps)

    def in_words(self, run: SampledRun) -> str:
        """How the batches were drawn, for a statement."""
        return (
            f"For each, every {run.unit} was drawn independently with probability {rate_in_words(run)} (the larger of two "
            f"neighbouring data sets has {run.num_examples:,}), and of a draw of more than {self.truncated_batch_size:,} a "
            "random subset of that size was used (truncated Poisson sampling, executed as accounted)"
        )

    steps_per_epoch = staticmethod(Poisson.steps_per_epoch)

    def paid_at(self, run: SampledRun) -> None:
        """Each step costs."""
        del run


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampler:
    """Draws the batches of a run, none with more than `truncated_batch_size` examples; else as `PoissonSampler`.

    Args:
        key: scalar key, used for sampling and nothing else.
        num_examples: the number n of examples to draw from.
        sampling_rate: the probability q with which each of them enters the draw, before truncation, in (0, 1].
        truncated_batch_size: the most examples that are used of a draw; the rows of every padded batch.
        steps: how many batches an iteration gives.

    Raises:
        UsageError: for a rate outside (0, 1], and for counts that are not positive whole numbers.

    Examples:
        >>> import jax
        >>> sampler = TruncatedPoissonSampler(key=jax.random.key(0), num_examples=100, sampling_rate=0.1,
        ...                                   truncated_batch_size=8, steps=3)
        >>> [int(batch.mask.sum()) for batch in sampler]
        [5, 8, 8]

    References:
        arXiv 2508.15089, as dp-accounting's `TruncatedSubsampledGaussianDpEvent` accounts it.
    """

    key: Key[Array, ""] = field(repr=False)
    num_examples: int
    sampling_rate: float
    truncated_batch_size: int
    steps: int

    def __post_init__(self) -> None:
        num_examples = count_of_examples(self.num_examples)
        steps = _checks.count("steps", self.steps, "give the number of batches to draw")
        fix = "give the most examples that a batch may hold"
        most = _checks.count("truncated_batch_size", self.truncated_batch_size, fix)
        if most >= 2**31:
            raise UsageError(f"truncated_batch_size={most} must be below 2^31: {fix}")
        rate = check_rate(self.sampling_rate)
        _checks.set_fields(self, num_examples=num_examples, steps=steps, truncated_batch_size=most, sampling_rate=rate)

    @property
    def usual_size(self) -> float:
        """Two standard deviations above the mean, if so many are used."""
        return min(self.truncated_batch_size, usual_size(self.num_examples, self.sampling_rate))

    def draw(self, step: int | Int32[Array, ""]) -> Draw:
        """The draw of one step (counted from 0), at the shape of all examples; can be traced."""
        step = check_step(self.key, step)
        of_step = jax.random.fold_in(own_key(self.key, Domain.TRUNCATED_POISSON_SAMPLER), step)
        of_draw, of_subset = jax.random.split(of_step)
        drawn = included(of_draw, self.num_examples, self.sampling_rate)
        most = jnp.int32(self.truncated_batch_size)
        return jax.lax.cond(
            jnp.sum(drawn, dtype=jnp.int32) > most,
            lambda: draw_of_mask(_random_subset(of_subset, drawn, self.truncated_batch_size)),
            lambda: draw_of_mask(drawn),
        )

    def batch(self, step: int) -> PaddedBatch:
        """The draw of one step as a padded batch of `truncated_batch_size` rows."""
        return make_batch(self, step, self.truncated_batch_size)

    def take(self, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
        """The batches of arrays [num_examples, ...], each with its mask: `for batch, mask in sampler.take((X, Y))`.

        Rows of padding are zeros. Another number of rows than `num_examples` is a `UsageError`.
        """
        return iterate_rows(self, arrays)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PaddedBatch]:
        return iterate_batches(self, self.truncated_batch_size)


def _random_subset(key: Key[Array, ""], drawn: Bool[Array, " n"], size: int) -> Bool[Array, " n"]:
    """`size` of those drawn, all subsets equally likely but for ties of 64 random bits; `drawn` has at least so many."""
    high, low = jax.random.bits(key, (2, drawn.shape[0]), jnp.uint32)
    positions = jnp.arange(drawn.shape[0], dtype=jnp.int32)
    *_, shuffled = jax.lax.sort(((~drawn).astype(jnp.uint32), high, low, positions), num_keys=3)
    return jnp.zeros_like(drawn).at[shuffled[:size]].set(True)


jax.tree_util.register_dataclass(
    TruncatedPoissonSampler,
    data_fields=["key"],
    meta_fields=["num_examples", "sampling_rate", "truncated_batch_size", "steps"],
)
