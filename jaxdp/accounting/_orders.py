r"""One event for a run that is drawn from several kinds: none of them costs more at any order.

A search draws each run's batch size without looking at the data, and each batch size has its noise. The Rényi divergence of a
mixture is at most the largest of its parts' at the same order, so that an event stands for all of them whose curve lies on or
above theirs. The curves of runs that cost the same ε nearly agree at the orders that tell it, and part far above them, where
smaller noise explodes sooner. Those orders are of no use to anyone, and are ruled out: by one more event that costs nothing up
to an order and too much beyond it, steps of a Gaussian mechanism that nearly nobody is in,

\[ \ln q = -\frac{\alpha_0 - 1}{2 s^2}, \qquad
   \rho(\alpha) \approx T \Bigl(\frac{\alpha - 1}{2 s^2} + \frac{\alpha \ln q}{\alpha - 1}\Bigr)_+ , \]

for probability q and noise s, whose last term, all \(\alpha\) of a moment's draws, is the one that turns at \(\alpha_0\).
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from .._errors import UsageError
from ._epsilon import composed_by
from ._events import gaussian_event, poisson_event
from ._reach import NEGLIGIBLE, missing_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dp_accounting import DpEvent

_STEPS = 10_000
_TINY = 60.0  # the natural logarithm of one over what is nothing
_LEAST = 11.0  # where the RDP accountant's orders are whole numbers: between closer ones q would underflow
_LARGEST = 4096.0
_TOLERANCE = 1e-3  # of a noise multiplier


def ruled_out_above(order: float) -> "DpEvent":
    """An event that costs nothing up to an order, or to 11, and from the RDP accountant's next order on too much to be of use."""
    from dp_accounting import NoOpDpEvent

    order, orders = max(order, _LEAST), curve_of(gaussian_event(noise_multiplier=1.0), "add_or_remove_one")[0]
    if order >= orders.max():
        return NoOpDpEvent()
    turn = (order + float(orders[orders > order].min())) / 2
    variance = min(turn - 1, order * (turn - order)) / (2 * _TINY)
    rate = math.exp(-(turn - 1) / (2 * variance))
    return poisson_event(noise_multiplier=math.sqrt(variance), sample_rate=rate, steps=_STEPS)


def costs_no_more(event: "DpEvent", most: np.ndarray, adjacency: str = "add_or_remove_one") -> bool:
    """Whether the RDP accountant's curve of `event` is nowhere above `most`, the RDP of another one at the same orders."""
    return bool(np.all(curve_of(event, adjacency)[1] <= most))


def least_noise_under(
    bound: "DpEvent",
    event_of: "Callable[[float], DpEvent]",
    *,
    delta: float,
    runs: float,
    adjacency: str = "add_or_remove_one",
) -> float | None:
    """The smallest noise multiplier, within a thousandth, for whose event `bound` can stand; None where none up to 4096 has one.

    It costs no more at any order; and its noise's end takes no more of δ, or in `runs` runs nothing to speak of.
    """
    low = high = 1.0
    _, most = curve_of(bound, adjacency)
    enough = max(missing_of(bound, delta, adjacency), NEGLIGIBLE * delta / runs)

    def fits(sigma: float) -> bool:
        event = event_of(sigma)
        return missing_of(event, delta, adjacency) <= enough and costs_no_more(event, most, adjacency)

    while not fits(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return None
    while fits(low) and low > 2.0**-4:
        low, high = low / 2, low
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def curve_of(event: "DpEvent", adjacency: str) -> tuple[np.ndarray, np.ndarray]:
    """The orders, and the RDP at each of them; infinite where none is known."""
    composed = composed_by("rdp", event, adjacency)
    if composed is None:
        raise UsageError("the RDP accountant can't account this event: a search over runs takes Poisson sampling")
    return np.asarray(composed.orders), np.asarray(composed.rdp)  # pyright: ignore[reportAttributeAccessIssue]
