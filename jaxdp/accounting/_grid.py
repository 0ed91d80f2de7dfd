r"""How much work a privacy loss distribution will be, before it is built.

dp-accounting holds it as an array with a point for each interval of the loss. The losses of one release of Gaussian noise reach
about \(10/\sigma + 1/(2\sigma^2)\), less where it is sampled; those of T releases what Chernoff's bound leaves of them at a tail
of \(10^{-15}\), \(\min_\alpha \mathrm{RDP}_T(\alpha) + 35/(\alpha - 1)\) to either side. At σ = 0.01 these are \(10^8\) points
and more, for hours and in tens of gigabytes. Where there would be more than `MOST_POINTS`, the intervals are made longer, up to
`COARSEST`: losses are rounded so that ε stays an upper bound, and it is said to be coarse. Where that isn't enough, the
accountant refuses; so it does where more than `MOST_COMPOSED` releases of few points are composed: dp-accounting raises their
number to that power, in whole numbers, to see whether the distribution stays sparse.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import UsageError
from ._quiet import quiet_about_skipped_orders

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MOST_POINTS = 3_000_000
COARSEST = 1.28e-2
MOST_COMPOSED = 2**19
_SPARSE = 0.1  # losses that reach less far than this are fewer than dp-accounting's thousand points, in steps of 1e-4
_TAIL = math.log(2e15)
_ORDERS = (1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 16, 32, 64)
_TO_BUILD = 4  # the points of a sampled mechanism take so many times as long as those of a composition


class TooLargeError(UsageError):
    """A privacy loss distribution of more points than are computed."""


def affordable_interval(event: "DpEvent", adjacency: str, interval: float) -> float:
    """The interval, or the least power of two times it with which a distribution takes at most `MOST_POINTS`.

    Raises:
        TooLargeError: where that would be longer than `COARSEST`, or more than `MOST_COMPOSED` releases of few points are
            composed.
    """
    size = span(event, adjacency)
    while size / interval > MOST_POINTS and interval < COARSEST:
        interval *= 2
    if size / interval > MOST_POINTS:
        raise TooLargeError(
            f"privacy losses spread over {size:.3g}, more than the PLD accountant's {MOST_POINTS:,} points can hold in steps of "
            f"{COARSEST:g}: take the RDP accountant where it knows this event, or more noise, or fewer steps"
        )
    return interval


def span(event: "DpEvent", adjacency: str) -> float:
    """About how far the losses of an event that is known to the PLD accountant reach, those to build as `_TO_BUILD` times.

    Raises:
        TooLargeError: for more than `MOST_COMPOSED` releases of few points, unless they are of plain Gaussian noise.
    """
    from dp_accounting import dp_event as dp

    moved = 2.0 if adjacency == "replace_one" else 1.0

    def of(part: Any, count: int) -> float:
        if isinstance(part, dp.SelfComposedDpEvent):
            return of(part.event, count * part.count)
        if isinstance(part, dp.ComposedDpEvent):
            return math.fsum(of(each, count) for each in part.events)
        if isinstance(part, dp.GaussianDpEvent):
            return 20 * moved * math.sqrt(count) / part.noise_multiplier if part.noise_multiplier else 0.0
        if count > MOST_COMPOSED and _reach_of_one(part, moved) < _SPARSE:
            raise TooLargeError(
                f"{count:,} releases are more than the PLD accountant composes in seconds, {MOST_COMPOSED:,}: take the RDP "
                "accountant where it knows this event, or fewer steps"
            )
        if isinstance(part, dp.PoissonSampledDpEvent) and isinstance(part.event, dp.LaplaceDpEvent):
            return of(part.event, count)
        if isinstance(part, dp.LaplaceDpEvent):
            return _of_pure(1 / part.noise_multiplier, count) if part.noise_multiplier else 0.0
        if isinstance(part, dp.DiscreteLaplaceDpEvent):
            return _of_pure(part.noise_parameter * part.sensitivity, count)
        if isinstance(part, dp.RandomizedResponseDpEvent):
            p, k = part.noise_parameter, part.num_buckets
            return _of_pure(math.log1p(k * (1 - p) / p), count) if p and k > 1 else 0.0
        if isinstance(part, dp.MixtureOfGaussiansDpEvent):
            most = max(map(abs, part.sensitivities), default=0.0)
            return _of_gaussian(most / part.standard_deviation, 1.0, count) if part.standard_deviation else 0.0
        if isinstance(part, dp.TruncatedSubsampledGaussianDpEvent):
            rate, shift = part.sampling_probability, 2.0  # who enters a full batch displaces another
            return _of_gaussian(shift / part.noise_multiplier, rate, count) if part.noise_multiplier else 0.0
        if isinstance(part, dp.PoissonSampledDpEvent):
            sigma = part.event.noise_multiplier  # pyright: ignore[reportAttributeAccessIssue]
            return _of_gaussian(moved / sigma, part.sampling_probability, count) if sigma else 0.0
        return 0.0

    return of(event, 1)


def _reach_of_one(part: Any, moved: float) -> float:
    """How far the losses of one release reach at least; 0 where that isn't known."""
    from dp_accounting import dp_event as dp

    if isinstance(part, dp.PoissonSampledDpEvent) and isinstance(part.event, dp.GaussianDpEvent):
        sigma = part.event.noise_multiplier
    elif isinstance(part, dp.TruncatedSubsampledGaussianDpEvent):
        sigma = part.noise_multiplier
    else:
        return 0.0
    shift = moved / sigma if sigma else math.inf
    loss = 9.7 * shift + shift * shift / 2  # beyond is a mass of 1e-22, which dp-accounting leaves out
    return math.inf if loss > 700 else math.log1p(part.sampling_probability * math.expm1(loss))


def _of_gaussian(shift: float, rate: float, count: int) -> float:
    """Of `count` Gaussian mechanisms that are moved by `shift` standard deviations with probability `rate`."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    highest = 10 * shift + shift * shift / 2  # a power that overflows is an error, a product infinite
    one = highest + math.log(rate) if rate < 1 else 20 * shift
    one = max(one, 2 * rate * shift, 1e-2)
    if count == 1 or one > MOST_POINTS * COARSEST:
        return _TO_BUILD * one
    orders = [alpha for alpha in _ORDERS if alpha <= max(1.1, 1 + 20 / one)]
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(1 / shift)), count)
    with quiet_about_skipped_orders():
        rdp = RdpAccountant(orders).compose(event).rdp
    return _TO_BUILD * one + _composed(one, count, np.array(orders), rdp)


def _of_pure(epsilon: float, count: int) -> float:
    """Of `count` mechanisms whose losses lie within ±ε."""
    orders = np.array(_ORDERS)
    return _composed(2 * epsilon, count, orders, orders * epsilon * epsilon / 2 * count)


def _composed(one: float, count: int, orders: np.ndarray, rdp: np.ndarray) -> float:
    """Of `count` mechanisms that reach `one` each and have this Rényi curve together: what Chernoff's bound keeps."""
    kept = float(np.fmin.reduce(rdp + _TAIL / (orders - 1), initial=math.inf))
    return max(one, min(count * one, 2 * kept))
