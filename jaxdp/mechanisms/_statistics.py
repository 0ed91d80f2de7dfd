"""Summaries of records that are clamped to public bounds, so that what one of them can change is known."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._additive import Laplace
from ._inputs import checked_epsilon, checked_shape, records_on_host

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class NoisyMean:
    r"""The mean of records clamped to [lower, upper], by Laplace noise on their sum.

    Each record, measured from the middle of the bounds, is rounded to a whole number of steps, of which half the range has
    `levels`: the sum is exact whatever its order, and one record moves it by no more than half the range. The sum is divided by
    `num_records`, which is public; dividing by the number found would tell it. A NaN counts as the middle. Records are clamped
    and summed on the host, in float64 and 64-bit integers.

    Args:
        epsilon: ε of one mean.
        lower: the least that a record can be, known without looking at the data.
        upper: the most.
        num_records: how many records there are, as it may be told.
        shape: of a record; () for numbers.

    Raises:
        UsageError: for bounds that aren't finite and in order, and where so many numbers or so small an epsilon leave few levels.

    Examples:
        >>> import jax, numpy as np
        >>> ages = np.arange(1000) % 80
        >>> mean = NoisyMean(epsilon=1.0, lower=0, upper=120, num_records=1000)
        >>> print(f"{float(mean(ages, key=jax.random.key(0))):.1f} of {ages.mean():.1f}")
        38.8 of 38.7
    """

    epsilon: float
    lower: float
    upper: float
    num_records: int
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        fix = "give a public bound of the records"
        lower, upper = (_checks.real(name, getattr(self, name), fix) for name in ("lower", "upper"))
        if not math.isfinite(upper - lower):
            raise UsageError(
                f"lower={self.lower} and upper={self.upper} must be finite, and their difference, too: {fix}"
            )
        if not lower < upper:
            raise UsageError(f"lower={self.lower} is not below upper={self.upper}: give the records' public bounds")
        num_records = _checks.count("num_records", self.num_records, "give the number of records")
        epsilon, shape = checked_epsilon(self.epsilon), checked_shape(self.shape)
        _checks.set_fields(self, epsilon=epsilon, lower=lower, upper=upper, num_records=num_records, shape=shape)
        if self.levels < 16:
            raise UsageError(
                f"records of {math.prod(self.shape)} numbers at epsilon={self.epsilon} leave {self.levels} levels for half a "
                "range, too few: give fewer numbers or a larger epsilon"
            )

    @property
    def levels(self) -> int:
        """Into how many steps half the range is divided: a power of two."""
        of_noise = math.floor(23 - math.log2(math.prod(self.shape) / self.epsilon))
        return 2 ** max(0, min(20, of_noise))

    @property
    def noise(self) -> Laplace:
        """The mechanism that releases the sum, in steps."""
        sensitivity = self.levels * math.prod(self.shape)
        return Laplace(epsilon=self.epsilon, sensitivity=sensitivity, shape=self.shape, integers=True)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one mean."""
        return self.noise.event

    def __call__(self, records: Any, *, key: Key[Array, ""]) -> Float[np.ndarray, "..."]:
        """The noisy mean.

        Args:
            records: [n, *shape], numbers; n may differ from `num_records`, by which the sum is divided all the same.
            key: a scalar key, used here and nowhere else.

        Returns:
            float64 [*shape].

        Raises:
            UsageError: for another shape or type.
        """
        _checks.key_with_value(key)
        records = records_on_host(records)
        found = records.shape
        if not found or found[1:] != self.shape:
            raise UsageError(f"records have shape {found}: give [n, *shape] with shape={self.shape}")
        noisy = np.asarray(self.noise(_sum(self, records), key=own_key(key, Domain.MEAN)), np.float64)
        half = (self.upper - self.lower) / 2
        return np.asarray(noisy * (half / self.levels / self.num_records) + (self.lower + half))


@dataclass(frozen=True, kw_only=True)
class NoisyHistogram:
    r"""How many records lie in each bin, by Laplace noise on the counts.

    Bin j holds the records in [edge j, edge j + 1); the last one holds its upper edge, too. Records beyond the outer edges are
    clamped to them, NaNs to the first; they are compared on the host, in float64. Counts can come out fractional or below zero:
    rounding or clamping them is up to you, and costs nothing.

    Args:
        epsilon: ε of one histogram.
        edges: of the bins, in order, known without looking at the data.

    Raises:
        UsageError: for fewer than two edges, or edges that aren't finite and in order.

    Examples:
        >>> import jax, numpy as np
        >>> histogram = NoisyHistogram(epsilon=1.0, edges=(0, 18, 65, 120))
        >>> counts = histogram(np.arange(1000) % 80, key=jax.random.key(0))
        >>> [round(float(count)) for count in counts]
        [234, 584, 180]
    """

    epsilon: float
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        fix = "give the bins' public edges, such as (0, 18, 65)"
        given = np.ravel(_checks.array("edges", self.edges, fix)).tolist()
        edges = tuple(_checks.real("edges", edge, fix) for edge in given)
        if len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
            raise UsageError(f"edges={self.edges} must be two finite numbers or more, each above the one before: {fix}")
        _checks.set_fields(self, epsilon=checked_epsilon(self.epsilon), edges=edges)

    @property
    def noise(self) -> Laplace:
        """The mechanism that releases the counts: a record is in one bin, so that their L1 sensitivity is 1."""
        return Laplace(epsilon=self.epsilon, sensitivity=1, shape=(len(self.edges) - 1,), integers=True)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one histogram."""
        return self.noise.event

    def __call__(self, records: Any, *, key: Key[Array, ""]) -> Float[Array, " bins"]:
        """The noisy counts.

        Args:
            records: [n], numbers.
            key: a scalar key, used here and nowhere else.

        Returns:
            float32 [bins].

        Raises:
            UsageError: for another shape or type.
        """
        _checks.key(key)
        records = records_on_host(records)
        if records.ndim != 1:
            raise UsageError(f"records have shape {records.shape}: give [n], one number for each")
        return self.noise(_counts(self, records), key=own_key(key, Domain.HISTOGRAM))


def _sum(mean: NoisyMean, records: Float[np.ndarray, "n ..."]) -> np.ndarray:
    middle, half = mean.lower + (mean.upper - mean.lower) / 2, (mean.upper - mean.lower) / 2
    with np.errstate(over="ignore"):  # it is clamped
        steps = np.rint((records - middle) / half * mean.levels)
    clamped = np.where(np.isnan(steps), 0, steps).clip(-mean.levels, mean.levels)
    return np.asarray(clamped.astype(np.int64).sum(axis=0))


def _counts(histogram: NoisyHistogram, records: Float[np.ndarray, " n"]) -> np.ndarray:
    bins = np.searchsorted(histogram.edges[1:-1], records, side="right")
    return np.bincount(np.where(np.isnan(records), 0, bins), minlength=len(histogram.edges) - 1)
