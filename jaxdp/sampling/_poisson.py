"""Poisson sampling at static shapes: every example enters every batch independently, with the sampling rate.

A draw is an array of all `num_examples` positions in which the drawn indices come first, so no draw can ever be too large
for it; how much of it a training step reads follows the number drawn. `PoissonSampler.batch` cuts a draw to a padded
batch for a loop of the user's own; should a draw exceed the usual capacity, that batch is longer, never cut.

Whether an example is drawn is decided by comparing 32 random bits with the largest integer that keeps the probability at
or below the sampling rate: the accounted rate is never exceeded, and missed by less than 2^-32.
"""

import collections
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key

from .. import _checks
from .._errors import UsageError


class Draw(NamedTuple):
    """One Poisson draw: `indices[:size]` are the examples drawn, in ascending order; the rest is padding (zeros)."""

    indices: Int32[Array, " num_examples"]
    size: Int32[Array, ""]


class PaddedBatch(NamedTuple):
    """A draw cut to a batch: `mask` tells the drawn examples from the padding, whose index is 0."""

    indices: Int32[Array, " capacity"]
    mask: Bool[Array, " capacity"]


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Draws the batches of a run: `for indices, mask in sampler` gives one padded batch for each of its steps.

    The draw of step t depends on the key and on t alone, so a resumed run draws what the interrupted one would have.

    Args:
        key: scalar key, used for sampling and nothing else.
        num_examples: the number n of examples to draw from.
        sampling_rate: the probability q with which each of them enters a batch, in (0, 1].
        steps: how many batches an iteration gives.
        capacity: rows of a padded batch; by default so many that about one draw in 10^12 is larger. A larger draw is
            returned whole, in a batch of several times `capacity` rows, at the price of one more compilation.

    Raises:
        UsageError: for a rate outside (0, 1], and for counts that are not positive whole numbers.

    Example:
        >>> import jax
        >>> sampler = PoissonSampler(key=jax.random.key(0), num_examples=100, sampling_rate=0.1, steps=3)
        >>> [batch.mask.shape for batch in sampler]
        [(41,), (41,), (41,)]
    """

    key: Key[Array, ""]
    num_examples: int
    sampling_rate: float
    steps: int
    capacity: int = 0

    def __post_init__(self) -> None:
        num_examples = _checks.count("num_examples", self.num_examples, "give the number of examples to draw from")
        _checks.count("steps", self.steps, "give the number of batches to draw")
        rate = _checks.positive("sampling_rate", self.sampling_rate, "give the expected batch size over num_examples")
        if not 2**-32 <= rate <= 1:
            raise UsageError(f"sampling_rate={rate} must lie between 2^-32 and 1: a batch can't exceed the data")
        if self.capacity == 0:
            object.__setattr__(self, "capacity", _usual_capacity(num_examples, rate))
        _checks.count("capacity", self.capacity, "give the rows of a padded batch")

    def draw(self, step: int | Int32[Array, ""]) -> Draw:
        """The draw of one step (counted from 0), at the shape of all examples; can be traced."""
        key = jax.random.fold_in(self.key, step)
        positions = jnp.arange(self.num_examples, dtype=jnp.int32)
        if self.sampling_rate == 1:
            return Draw(positions, jnp.int32(self.num_examples))
        threshold = jnp.uint32(math.floor(self.sampling_rate * 2**32))
        drawn = jax.random.bits(key, (self.num_examples,), jnp.uint32) < threshold
        rank = jnp.cumsum(drawn.astype(jnp.int32))
        target = jnp.where(drawn, rank - 1, self.num_examples)
        indices = jnp.zeros(self.num_examples, jnp.int32).at[target].set(positions, mode="drop")
        return Draw(indices, rank[-1])

    def batch(self, step: int) -> PaddedBatch:
        """The draw of one step as a padded batch: `capacity` rows, or the next multiple that holds the whole draw."""
        return self._cut(_jitted_draw(self, jnp.int32(step)))

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PaddedBatch]:
        ahead = 2  # draws made before they are asked for, so that reading their count doesn't wait for a training step
        draws = (_jitted_draw(self, jnp.int32(step)) for step in range(self.steps))
        queue = collections.deque(itertools.islice(draws, ahead))
        while queue:
            queue.extend(itertools.islice(draws, 1))
            yield self._cut(queue.popleft())

    def _cut(self, draw: Draw) -> PaddedBatch:
        count = int(draw.size)
        rows = self.capacity * max(1, math.ceil(count / self.capacity))
        padding = max(0, rows - self.num_examples)
        indices = jnp.pad(draw.indices, (0, padding))[:rows]
        return PaddedBatch(indices, jnp.arange(rows, dtype=jnp.int32) < count)


def _usual_capacity(num_examples: int, rate: float) -> int:
    mean = num_examples * rate
    return min(num_examples, math.ceil(mean + 8 * math.sqrt(mean * (1 - rate)) + 7))


def _draw(sampler: PoissonSampler, step: Int32[Array, ""]) -> Draw:
    return sampler.draw(step)


jax.tree_util.register_dataclass(
    PoissonSampler, data_fields=["key"], meta_fields=["num_examples", "sampling_rate", "steps", "capacity"]
)
_jitted_draw = jax.jit(_draw)
