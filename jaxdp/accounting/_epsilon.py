"""Epsilon of an event, by the accountants of dp-accounting.

- "rdp": Rényi differential privacy, converted to (ε, δ) as dp-accounting does today (Canonne, Kamath and Steinke,
  arXiv 2004.00010, proposition 12). The default: it composes most of what jaxdp describes.
- "pld": privacy loss distributions (Koskela, Jälkö and Honkela, arXiv 1906.03049). Tighter, slower; in coarser steps, or
  refused, where they would take more than seconds and gigabytes (`_grid`).
- "classic": the Rényi curve with the older conversion (Mironov, arXiv 1702.07476, proposition 3), to reproduce the
  figures of tutorials. True as well, but needlessly large.

Not every event has every accountant: truncated Poisson sampling has PLD alone, and so has Poisson sampling under
replace-one; Poisson sampling around a composition and a search over hyper-parameters have RDP alone.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._adjacency import ADJACENCIES, as_told, relation
from ._events import poisson_event, with_float_noise
from ._grid import TooLargeError, affordable_interval
from ._kinds import as_counted
from ._quiet import quiet_about_skipped_orders
from ._reach import delta_left

if TYPE_CHECKING:
    from dp_accounting import DpEvent, PrivacyAccountant

ACCOUNTANTS = ("rdp", "pld", "classic")
PLD_INTERVAL = 1e-4  # dp-accounting's own


class NoFigureError(UsageError):
    """A δ so small that privacy loss distributions have no finite ε, where Rényi differential privacy has one."""

    def __init__(self, delta: float) -> None:
        super().__init__(
            f"delta={delta:g}: the PLD accountant has no finite epsilon at so small a delta, for it counts about 1e-15 as lost "
            "altogether: take the RDP accountant, or a larger delta"
        )


@dataclass(frozen=True)
class Spent:
    """The cost of an event: (ε, δ) by an accountant, and the Rényi order α at which it was found (None for "pld").

    `interval` is that of the privacy losses where they were rounded up further than usual, so that ε is an upper bound alone.
    """

    epsilon: float
    delta: float
    accountant: str
    order: float | None
    interval: float | None = None


@dataclass(frozen=True)
class _RenyiCurve:
    """What a Rényi accountant knows of what it has composed: a bound at each order α."""

    orders: np.ndarray
    rdp: np.ndarray

    def get_epsilon_and_optimal_order(self, delta: float) -> tuple[float, float]:
        """dp-accounting's conversion."""
        from dp_accounting.rdp import compute_epsilon

        return compute_epsilon(self.orders, self.rdp, delta)  # pyright: ignore[reportArgumentType]


@_checks.names_explained
def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "rdp",
    adjacency: str = "add_or_remove_one",
) -> float:
    """Epsilon of DP-SGD with Poisson sampling.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the clip norm; above zero.
        sample_rate: expected batch size over number of examples, in (0, 1].
        steps: number of training steps.
        delta: the δ of (ε, δ), in (0, 1).
        accountant: "rdp", "pld" or "classic".
        adjacency: "add_or_remove_one", "replace_special" or "replace_one".

    Returns:
        ε, without a unit (natural logarithm of a likelihood ratio).

    Raises:
        UsageError: for values out of range, noise too small for delta, what takes an accountant too long, and for replace-one by
            another accountant than "pld".

    Examples:
        >>> print(f"{epsilon(noise_multiplier=1.3, sample_rate=250 / 60_000, steps=3600, delta=1e-5):.5f}")
        0.94220
    """
    event = poisson_event(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
    return event_epsilon(event, delta=delta, accountant=accountant, adjacency=adjacency).epsilon


def event_epsilon(
    event: "DpEvent", *, delta: float, accountant: str = "rdp", adjacency: str = "add_or_remove_one"
) -> Spent:
    """The cost of any dp-accounting event at `delta`.

    Args:
        event: the event, as `run.event` or `ledger.event`.
        delta: the δ of (ε, δ), in (0, 1).
        accountant: "rdp", "pld" or "classic".
        adjacency: "add_or_remove_one", "replace_special" or "replace_one".

    Returns:
        A `Spent`.

    Raises:
        UsageError: for a delta out of range, noise too small for it, an unknown name, or an event that this accountant can't
            compose, or not in seconds, with the names of those that can.
    """
    return epsilon_at_interval(event, delta, accountant, adjacency, PLD_INTERVAL)


def epsilon_at_interval(event: "DpEvent", delta: float, accountant: str, adjacency: str, interval: float) -> Spent:
    """As `event_epsilon`, with privacy losses in steps of `interval`; what was asked before is remembered."""
    _checks.delta(delta)
    _checks.one_of("adjacency", adjacency, ADJACENCIES)
    interval = _checks.positive("interval", interval, "give the step of a privacy loss, such as 1e-4")
    asked = (with_float_noise(event), delta, accountant, adjacency, interval)
    try:
        return _remembered(*asked)
    except TypeError:  # an event with a list in it can't be hashed
        return _spent(*asked)


def _spent(event: "DpEvent", delta: float, accountant: str, adjacency: str, interval: float) -> Spent:
    delta_left(event, delta, adjacency)  # refuses before anything is composed
    prepared = prepared_for(accountant, event, adjacency)
    if prepared is None:
        able = accountants_of(event, adjacency)
        fix = (
            f"give accountant={' or '.join(map(repr, able))}"
            if able
            else "no accountant of dp-accounting can in seconds"
        )
        raise UsageError(
            f"the accountant {accountant!r} can't account {_short(event)} under adjacency={adjacency!r}: {fix}"
        )
    longer = affordable_interval(prepared[1], adjacency, interval) if accountant == "pld" else interval
    composed = composed_by(accountant, event, adjacency, longer)
    assert composed is not None
    spent = spent_by(composed, accountant, event, delta, adjacency)
    return spent if longer <= max(interval, PLD_INTERVAL) else replace(spent, interval=longer)


_remembered = functools.lru_cache(maxsize=256)(_spent)


def accountants_of(event: "DpEvent", adjacency: str = "add_or_remove_one") -> tuple[str, ...]:
    """The names of the accountants that can account `event`, of "rdp", "pld" and "classic", in seconds."""
    return tuple(name for name in ACCOUNTANTS if _is_able(name, event, adjacency))


def _is_able(accountant: str, event: "DpEvent", adjacency: str) -> bool:
    prepared = prepared_for(accountant, event, adjacency)
    if prepared is None or accountant != "pld":
        return prepared is not None
    try:
        affordable_interval(prepared[1], adjacency, PLD_INTERVAL)
    except TooLargeError:
        return False
    return True


def composed_by(
    accountant: str, event: "DpEvent", adjacency: str, interval: float = PLD_INTERVAL
) -> "PrivacyAccountant | _RenyiCurve | None":
    """An accountant that has composed `event`; None where it can't."""
    from dp_accounting import SelfComposedDpEvent

    prepared = prepared_for(accountant, event, adjacency, interval)
    if prepared is None:
        return None
    composed, understood = prepared
    if accountant == "rdp" and isinstance(understood, SelfComposedDpEvent):
        with contextlib.suppress(TypeError):  # an event with a list in it can't be hashed
            of_one = _curve_of_one(understood.event, composed.neighboring_relation.name.lower())
            return replace(of_one, rdp=understood.count * of_one.rdp)  # as its accountant composes so many
    with quiet_about_skipped_orders():
        return composed.compose(understood)


@functools.lru_cache(maxsize=64)
def _curve_of_one(event: "DpEvent", adjacency: str) -> _RenyiCurve:
    """Remembered: every number of steps of a run asks for that of one, which takes nearly all of the time."""
    with quiet_about_skipped_orders():
        one = fresh_accountant("rdp", adjacency).compose(event)
    return _RenyiCurve(one.orders, one.rdp)  # pyright: ignore[reportAttributeAccessIssue]


def spent_by(
    composed: "PrivacyAccountant | _RenyiCurve", accountant: str, event: "DpEvent", delta: float, adjacency: str
) -> Spent:
    """The answer of an accountant that has composed `event` at `delta`, of which the noise's end takes a part."""
    left = delta_left(event, delta, adjacency)
    if accountant == "pld":
        return Spent(float(composed.get_epsilon(left)), delta, accountant, None)  # pyright: ignore[reportAttributeAccessIssue]
    value, order = composed.get_epsilon_and_optimal_order(left)  # pyright: ignore[reportAttributeAccessIssue]
    return Spent(float(value), delta, accountant, float(order))


def fresh_accountant(accountant: str, adjacency: str, interval: float = PLD_INTERVAL) -> "PrivacyAccountant":
    """A new accountant of that name.

    Privacy losses are rounded up to multiples of `interval`: a larger one is faster, and never below the truth.
    """
    _checks.one_of("accountant", accountant, ACCOUNTANTS)
    neighbours = relation(adjacency)
    if accountant == "pld":
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant(neighbours, interval)
    if accountant == "classic":
        from ._classic import ClassicRdpAccountant

        return ClassicRdpAccountant(neighboring_relation=neighbours)
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(neighboring_relation=neighbours)


def rounded_up(epsilon: float, digits: int = 4) -> str:
    """So many decimals, never below the true value."""
    return _in_decimals(_checks.real("epsilon", epsilon, "give a number"), digits, math.ceil)


def rounded_down(epsilon: float, digits: int = 4) -> str:
    """So many decimals of a lower bound, not above it but for a float's last bit."""
    return _in_decimals(epsilon, digits, math.floor)


def _in_decimals(epsilon: float, digits: int, whole: Callable[[float], int]) -> str:
    unit = 10**digits
    return f"{whole(epsilon * unit) / unit:.{digits}f}" if math.isfinite(epsilon) else "infinite"


def no_smaller(delta: float) -> str:
    """δ in six digits, rounded up where these aren't enough: what holds for it holds for a larger one."""
    return _in_digits(delta, 6, ROUND_CEILING)


def no_larger(number: float, digits: int = 6) -> str:
    """A number in so many digits, rounded down where these aren't enough."""
    return _in_digits(number, digits, ROUND_FLOOR)


def _in_digits(number: float, digits: int, rounding: str) -> str:
    return f"{float(Context(digits, rounding).create_decimal(repr(float(number)))):.{digits}g}"


def prepared_for(
    accountant: str, event: "DpEvent", adjacency: str, interval: float = PLD_INTERVAL
) -> "tuple[PrivacyAccountant, DpEvent] | None":
    """A fresh accountant and the event as it must be told it; None where it can't account it."""
    _checks.one_of("accountant", accountant, ACCOUNTANTS)
    understood = as_counted(with_float_noise(event), accountant)
    if understood is None:
        return None
    try:
        understood, counted_under = as_told(understood, accountant, adjacency)
    except UsageError:
        return None
    fresh = fresh_accountant(accountant, counted_under, interval)
    return (fresh, understood) if fresh.supports(understood) else None


def _short(event: "DpEvent") -> str:
    """The event without dp-accounting's module names, cut to a line."""
    text = repr(event)
    return text if len(text) <= 200 else text[:200] + "…"
