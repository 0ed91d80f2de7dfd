"""Epsilon of an event, by the accountants of dp-accounting.

- "rdp": Rényi differential privacy, converted to (ε, δ) as dp-accounting does today (Canonne, Kamath and Steinke,
  arXiv 2004.00010, proposition 12). The default: it composes everything that jaxdp describes.
- "pld": privacy loss distributions (Koskela, Jälkö and Honkela, arXiv 1906.03049). Tighter, slower.
- "classic": the Rényi curve with the older conversion (Mironov, arXiv 1702.07476, proposition 3), to reproduce the
  figures of tutorials. True as well, but needlessly large.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _checks
from .._errors import UsageError
from ._events import poisson_event

if TYPE_CHECKING:
    from dp_accounting import DpEvent, PrivacyAccountant

ACCOUNTANTS = ("rdp", "pld", "classic")


@dataclass(frozen=True)
class Spent:
    """What an event costs: (ε, δ) by an accountant, and the Rényi order α at which it was found (None for "pld")."""

    epsilon: float
    delta: float
    accountant: str
    order: float | None


def epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp") -> float:
    """Epsilon of DP-SGD with Poisson sampling, under add-or-remove-one.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the clip norm; above zero.
        sample_rate: expected batch size over number of examples, in (0, 1].
        steps: number of training steps.
        delta: the δ of (ε, δ), in (0, 1).
        accountant: "rdp", "pld" or "classic".

    Returns:
        ε, without a unit (natural logarithm of a likelihood ratio).

    Raises:
        UsageError: for values out of range.

    Example:
        >>> print(f"{epsilon(noise_multiplier=1.3, sample_rate=250 / 60_000, steps=3600, delta=1e-5):.5f}")
        0.94220
    """
    event = poisson_event(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
    return event_epsilon(event, delta=delta, accountant=accountant).epsilon


def event_epsilon(event: "DpEvent", *, delta: float, accountant: str = "rdp") -> Spent:
    """What any dp-accounting event costs at `delta`, under add-or-remove-one.

    Args:
        event: the event, as `run.event` or `Ledger.event`.
        delta: the δ of (ε, δ), in (0, 1).
        accountant: "rdp", "pld" or "classic".

    Returns:
        A `Spent`.

    Raises:
        UsageError: for a delta out of range, an unknown accountant, or an event that this accountant can't compose.
    """
    _checks.delta(delta)
    with quiet_about_skipped_orders():
        composed = fresh_accountant(accountant)
        if not composed.supports(event):
            raise UsageError(f"the accountant {accountant!r} can't account {event}: try another of {ACCOUNTANTS}")
        composed.compose(event)
        if accountant == "pld":
            return Spent(float(composed.get_epsilon(delta)), delta, accountant, None)
        value, order = composed.get_epsilon_and_optimal_order(delta)  # pyright: ignore[reportAttributeAccessIssue]
        return Spent(float(value), delta, accountant, float(order))


def fresh_accountant(accountant: str) -> "PrivacyAccountant":
    """A new accountant of that name, for add-or-remove-one."""
    _checks.one_of("accountant", accountant, ACCOUNTANTS)
    if accountant == "pld":
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant()
    if accountant == "classic":
        from ._classic import ClassicRdpAccountant

        return ClassicRdpAccountant()
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant()


@contextmanager
def quiet_about_skipped_orders() -> Iterator[None]:
    """dp-accounting warns of fractional orders whose series doesn't converge; it leaves them out, which is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
