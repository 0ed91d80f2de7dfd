"""Poisson sampling at static shapes: every example enters every batch independently, with the sampling rate.

A draw is an array of all `num_examples` positions in which the drawn indices come first, so no draw can ever be too large
for it; how much of it a training step reads follows the number drawn. `PoissonSampler.batch` cuts a draw to a padded
batch for a loop of the user's own; should a draw exceed the usual capacity, that batch is longer, never cut.

Whether an example is drawn is decided by comparing 32 random bits with the largest integer that keeps the probability at
or below the sampling rate: the accounted rate is never exceeded, and missed by less than 2^-32.
"""

import math
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
from ._sampling import SampledRun, gaussian_event_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Poisson:
    """Each example enters each batch independently, with the sampling rate of the run.

    References:
        Mironov, Talwar and Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", arXiv 1908.10530.
    """

    name: ClassVar[str] = "poisson"
    label: ClassVar[str] = "Poisson sampling"
    title: ClassVar[str] = "Poisson"
    of_batch_size: ClassVar[str] = "expected (Poisson)"
    adjacencies: ClassVar[tuple[str, ...]] = ("add_or_remove_one", "replace_special", "replace_one")
    amplified: ClassVar[bool] = True

    def check(self, run: SampledRun) -> None:
        """Refuse what `PoissonSampler` can't draw."""
        count_of_examples(run.num_examples)
        check_rate(run.sampling_rate)

    def sampler(self, run: SampledRun, key: Key[Array, ""], *, capacity: int) -> "PoissonSampler":
        """A `PoissonSampler`."""
        return PoissonSampler(
            key=key, num_examples=run.num_examples, sampling_rate=run.sampling_rate, steps=run.steps, capacity=capacity
        )

    def event(self, run: SampledRun, steps: int) -> "DpEvent":
        """A Gaussian mechanism on a Poisson sample for each step."""
        import dp_accounting as dp

        one = dp.PoissonSampledDpEvent(run.sampling_rate, gaussian_event_of(run, self))
        return dp.SelfComposedDpEvent(one, steps)

    def in_words(self, run: SampledRun) -> str:
        """How the batches were drawn, for a statement."""
        return (
            f"For each, every {run.unit} entered the batch independently with probability {rate_in_words(run)} (Poisson "
            "sampling, executed as accounted)"
        )

    @staticmethod
    def steps_per_epoch(num_examples: int, batch_size: float) -> int:
        """The steps after which as many examples were expected as there are: rounded, and at least 1."""
        return max(1, round(num_examples / batch_size))

    def paid_at(self, run: SampledRun) -> None:
        """Each step costs."""
        del run


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Draws the batches of a run: `for batch, mask in sampler.take(arrays)` gives a padded batch for each of its steps.

    The draw of step t depends on the key and on t alone, so a resumed run draws what the interrupted one would have.

    Args:
        key: scalar key, used for sampling and nothing else.
        num_examples: the number n of examples to draw from.
        sampling_rate: the probability q with which each of them enters a batch, in (0, 1].
        steps: how many batches an iteration gives.
        capacity: rows of a padded batch; by default so many that about one draw in 10^12 is larger, a multiple of 8. A larger
            draw is returned whole, in a batch of several times `capacity` rows, at the price of one more compilation.

    Raises:
        UsageError: for a rate outside (0, 1], and for counts that are not positive whole numbers.

    Examples:
        >>> import jax
        >>> sampler = PoissonSampler(key=jax.random.key(0), num_examples=100, sampling_rate=0.1, steps=3)
        >>> [batch.mask.shape for batch in sampler]
        [(48,), (48,), (48,)]
    """

    key: Key[Array, ""] = field(repr=False)
    num_examples: int
    sampling_rate: float
    steps: int
    capacity: int = 0

    def __post_init__(self) -> None:
        num_examples = count_of_examples(self.num_examples)
        steps = _checks.count("steps", self.steps, "give the number of batches to draw")
        rate = check_rate(self.sampling_rate)
        capacity = _checks.whole("capacity", self.capacity, "give the rows of a padded batch") or _usual_capacity(
            num_examples, rate
        )
        _checks.set_fields(self, num_examples=num_examples, steps=steps, sampling_rate=rate, capacity=capacity)

    @property
    def usual_size(self) -> float:
        """Two standard deviations above the mean."""
        return usual_size(self.num_examples, self.sampling_rate)

    def draw(self, step: int | Int32[Array, ""]) -> Draw:
        """The draw of one step (counted from 0), at the shape of all examples; can be traced."""
        step = check_step(self.key, step)
        of_step = jax.random.fold_in(own_key(self.key, Domain.POISSON_SAMPLER), step)
        return draw_of_mask(included(of_step, self.num_examples, self.sampling_rate))

    def batch(self, step: int) -> PaddedBatch:
        """The draw of one step as a padded batch: `capacity` rows, or the next multiple that holds the whole draw."""
        return make_batch(self, step, self.capacity)

    def take(self, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
        """The batches of arrays [num_examples, ...], each with its mask: `for batch, mask in sampler.take((X, Y))`.

        Rows of padding are zeros. Another number of rows than `num_examples` is a `UsageError`.
        """
        return iterate_rows(self, arrays)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PaddedBatch]:
        return iterate_batches(self, self.capacity)


def included(key: Key[Array, ""], num_examples: int, rate: float) -> Bool[Array, " num_examples"]:
    """Who is drawn: each with probability at most `rate`, independently."""
    if rate == 1:
        return jnp.ones(num_examples, jnp.bool_)
    return jax.random.bits(key, (num_examples,), jnp.uint32) < jnp.uint32(math.floor(rate * 2**32))


def count_of_examples(value: Any) -> int:
    """A number of examples that 32-bit indices can tell apart."""
    fix = "give the number of examples to draw from"
    number = _checks.count("num_examples", value, fix)
    if number >= 2**31:
        raise UsageError(f"num_examples={value} must be below 2^31, the reach of an index: {fix}")
    return number


def check_rate(value: float) -> float:
    """A sampling rate that 32 random bits can tell from 0, and that is at most 1."""
    rate = _checks.positive("sampling_rate", value, "give the expected batch size over num_examples")
    if not 2**-32 <= rate <= 1:
        why = (
            "a batch can't exceed the data"
            if rate > 1
            else "32 random bits can't tell a smaller one from 0, expect larger batches"
        )
        raise UsageError(f"sampling_rate={rate} must lie between 2^-32 and 1: {why}")
    return rate


def rate_in_words(run: SampledRun) -> str:
    """The sampling rate, as the fraction that it is and as a number."""
    return f"{run.expected_batch_size:.15g}/{run.num_examples} = {run.sampling_rate:.6g}"


def usual_size(num_examples: int, rate: float) -> float:
    """Two standard deviations above the mean: few draws are larger."""
    return min(num_examples, num_examples * rate + 2 * math.sqrt(num_examples * rate))


def _usual_capacity(num_examples: int, rate: float) -> int:
    mean = num_examples * rate
    rows = mean + 8 * math.sqrt(mean * (1 - rate)) + 7
    return min(num_examples, 8 * math.ceil(rows / 8))  # which the devices of a host divide


jax.tree_util.register_dataclass(
    PoissonSampler, data_fields=["key"], meta_fields=["num_examples", "sampling_rate", "steps", "capacity"]
)
