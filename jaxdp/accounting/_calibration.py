"""The inverse question: how much noise does a budget ask for?"""

from .. import _checks
from .._errors import UsageError
from ._epsilon import event_epsilon, fresh_accountant, quiet_about_skipped_orders
from ._events import poisson_event

_LARGEST, _SMALLEST = 2.0**20, 2.0**-4


def noise_multiplier(*, epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str = "rdp") -> float:
    """The smallest noise multiplier, within 1e-6, with which DP-SGD stays within `epsilon` at `delta`.

    Args:
        epsilon: the budget ε, above zero.
        delta: the δ of (ε, δ), in (0, 1).
        sample_rate: expected batch size over number of examples, in (0, 1].
        steps: number of training steps.
        accountant: "rdp", "pld" or "classic".

    Returns:
        σ, in units of the clip norm, at least 1/16. `jaxdp.accounting.epsilon` at this σ is never above `epsilon`.

    Raises:
        UsageError: for values out of range, or a budget so small that no noise multiplier up to 2^20 meets it.

    Example:
        >>> print(f"{noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=250 / 60_000, steps=3600):.4f}")
        1.2539
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism

    budget = _checks.positive("epsilon", epsilon, "give the budget, such as 1.0")
    _checks.delta(delta)
    number = _checks.count("steps", steps, "give the number of training steps")

    def event(sigma: float):
        return poisson_event(noise_multiplier=float(sigma), sample_rate=sample_rate, steps=number)

    def within_budget(sigma: float) -> bool:
        return event_epsilon(event(sigma), delta=delta, accountant=accountant).epsilon <= budget

    low = high = 1.0
    while not within_budget(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            raise UsageError(
                f"epsilon={epsilon} at delta={delta} can't be met by {number} steps at sample_rate={sample_rate} with "
                f"any noise multiplier up to {_LARGEST:.0f}: allow a larger epsilon, or take fewer steps"
            )
    while low == high or within_budget(low):
        low, high = low / 2, low
        if low < _SMALLEST:
            return high
    with quiet_about_skipped_orders():
        return float(
            calibrate_dp_mechanism(
                lambda: fresh_accountant(accountant), event, budget, delta, ExplicitBracketInterval(low, high), tol=1e-6
            )
        )
