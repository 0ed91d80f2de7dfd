"""The inverse questions: how much noise, how many steps, how large a batch does a budget allow?

Each is a search by dp-accounting's calibration over an event that depends on one number. What was spent before on the same
data, a `Ledger`, can be given with it: the budget is then for both.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from .. import _checks
from .._errors import UsageError
from ._epsilon import PLD_INTERVAL, NoFigureError, accountants_of, epsilon_at_interval, fresh_accountant
from ._events import poisson_event
from ._grid import TooLargeError
from ._ledger import Ledger
from ._reach import BeyondReachError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_LARGEST_NOISE, _SMALLEST_NOISE = 2.0**20, 2.0**-4
_MOST_STEPS = 2**24
_COARSE = (
    2e-3  # steps of a privacy loss in a first search by PLD where RDP can't tell: faster, and never below the truth
)
_TOLERANCE = {PLD_INTERVAL: 1e-6, _COARSE: 1e-4}  # of a noise multiplier
_EMPTY = Ledger()
_LEAST_LEFT = 1e-3  # of a budget: what a search leaves of it, for which nothing could be trained
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent in all: ε at δ, by an accountant, and the ledger of what has been spent of it.

    Raises:
        UsageError: for values out of range, or a ledger that has spent more.
    """

    epsilon: float
    delta: float
    accountant: str = "rdp"
    ledger: Ledger = _EMPTY
    interval: float = PLD_INTERVAL

    def __post_init__(self) -> None:
        _checks.positive("epsilon", self.epsilon, "give the budget, such as 1.0")
        _checks.delta(self.delta)
        _checks.instance("ledger", self.ledger, Ledger, "give a jaxdp.accounting.Ledger")
        _checks.positive("interval", self.interval, "give the step of a privacy loss, such as 1e-4")
        fresh_accountant(self.accountant, self.ledger.adjacency)
        self._check_left(0.0)

    @cached_property
    def _spent(self) -> float:
        return self._cost(self.ledger) if self.ledger.entries else 0.0

    def _check_left(self, least: float) -> None:
        """Refuse a ledger that leaves no more than this part of ε."""
        if self._spent >= self.epsilon * (1 - least):
            raise UsageError(
                f"epsilon={self.epsilon} at delta={self.delta} has been spent already: the ledger's entries cost "
                f"{self._spent:.4f}; a budget is of all runs together, so give what they may cost with this one"
            )

    def allows(self, event: "DpEvent") -> bool:
        """Whether `event`, after all that is in the ledger, stays within the budget."""
        return self._cost(self._with(event)) <= self.epsilon

    def least(self, event_of: Callable[[float], "DpEvent"], low: float, high: float) -> float:
        """The smallest number, within 1e-6, whose event is allowed; that of `high` is, and that of `low` is not."""
        tolerance = _TOLERANCE.get(self.interval, 1e-6)
        found = self._search(event_of, low, high, tolerance)
        while not self.allows(event_of(found)):
            found = min(found + tolerance, high)
        return found

    def most(self, event_of: Callable[[int], "DpEvent"], limit: int) -> int:
        """The largest number from 0 to `limit` whose event is allowed, where more of it costs more."""
        about = self._sooner(lambda budget: budget.most(event_of, limit))
        found = about if about and self.allows(event_of(about)) else 0
        step = max(1, found // 16)
        while found < limit and self.allows(event_of(min(found + step, limit))):
            found, step = min(found + step, limit), 2 * step
        too_many = min(found + step, limit)
        if too_many - found > 1:
            found = round(self._search(lambda value: event_of(round(value)), found, too_many, 1.0))
            while not self.allows(event_of(found)):  # the search ends within a few of the largest
                found -= 1
            while self.allows(event_of(found + 1)):
                found += 1
        return found

    def _sooner(self, search: Callable[["Budget"], Found]) -> Found | None:
        """The answer of a search with a bound on PLD's cost that is told sooner: RDP's, or else PLD's own in coarse steps.

        None where there is none, or it can't account the event, or tell less than was spent before.
        """
        if self.accountant != "pld" or self.interval == _COARSE:
            return None
        for changes in ({"accountant": "rdp"}, {"interval": _COARSE}):
            with contextlib.suppress(UsageError):
                return search(replace(self, **changes))
        return None

    def _search(self, event_of: Callable, low: float, high: float, tolerance: float) -> float:
        """About where the cost is ε; of `low` and `high` one is allowed and the other is not."""
        from scipy.optimize import brentq

        largest = self.epsilon + 1e3  # finite, where the noise is too small for any epsilon

        def gap(value: float) -> float:
            cost = self._cost(self._with(event_of(value)))
            if self.accountant != "pld":
                return min(cost - self.epsilon, largest)
            # An answer takes a second: in logarithms, which are nearly on a line, and no further than to what is just allowed.
            off = math.log(min(max(cost / self.epsilon, 1e-9), 1e9))
            return 0.0 if -tolerance / high < off <= 0 else off

        return float(brentq(gap, low, high, xtol=tolerance))  # pyright: ignore[reportArgumentType]

    def _with(self, event: "DpEvent") -> Ledger:
        return self.ledger.add(event, "what is asked for")

    def _cost(self, ledger: Ledger) -> float:
        """ε; infinite where noise is too small to be accounted.

        For PLD's its own in coarse steps, which is told sooner, where that is enough. RDP's is a bound on what is lost, and none
        on PLD's ε, which of many steps of small losses is the larger: it counts where PLD would be too large to compute.

        Raises:
            NoFigureError: where PLD's is infinite and RDP's isn't.
        """
        told_by = lambda name, interval: (
            epsilon_at_interval(ledger.event, self.delta, name, ledger.adjacency, interval).epsilon
        )
        by_rdp = math.inf
        try:
            if self.accountant == "pld":
                if "rdp" in accountants_of(ledger.event, ledger.adjacency):
                    by_rdp = told_by("rdp", self.interval)
                # Where RDP's is more than half of it, that is hardly enough for PLD's in coarse steps.
                if self.interval < _COARSE and not self.epsilon / 2 < by_rdp < math.inf:
                    bound = told_by("pld", _COARSE)
                    if bound <= self.epsilon / 2:
                        return bound
            cost = told_by(self.accountant, self.interval)
        except (BeyondReachError, TooLargeError):
            return by_rdp
        if self.accountant == "pld" and by_rdp < cost == math.inf:
            raise NoFigureError(self.delta)
        return cost


def least_noise(budget: Budget, event_of: Callable[[float], "DpEvent"]) -> float:
    """The smallest noise multiplier, within 1e-6 and at least 1/16, with which `event_of(noise multiplier)` is allowed.

    Within 1e-4 where it is by PLD alone, and with less noise nothing could be accounted, though ε leaves room for twice as much.

    Raises:
        UsageError: for a budget so small that no noise multiplier up to 2^20 meets it, or of which not a thousandth is left.
    """
    _checks.instance("budget", budget, Budget, "give a jaxdp.accounting.Budget")
    budget._check_left(_LEAST_LEFT)
    _checks.function("event_of", event_of, "give a function from a noise multiplier to an event")
    cost = lambda sigma, by=budget: by._cost(by._with(event_of(sigma)))
    sooner = budget._sooner(lambda bound: (least_noise(bound, event_of), bound))
    if sooner and sooner[1].accountant == "pld" and cost(*sooner) <= budget.epsilon / 2:
        # Where the coarse search ended isn't ε but what can be accounted, and that is the same in finer steps.
        return sooner[0]
    low = high = 1.0 if sooner is None else sooner[0]
    power = 1.0 if sooner is None else _power(lambda sigma: cost(sigma, sooner[1]), sooner[0])
    factor = 1.0001

    def further(spent: float) -> float:
        """Twice; or as far as ε is off, where it is known how it falls, and a little further each time."""
        if sooner is None:
            return 2.0
        off = max(spent / budget.epsilon, budget.epsilon / spent) if spent > 0 else math.inf
        if off > 2:
            return min(factor**4, 2.0)
        return min(max(factor**2, off ** (1 / power) * factor), 2.0)

    while (spent := cost(high)) > budget.epsilon:
        factor = further(spent)
        low, high = high, high * factor
        if high > _LARGEST_NOISE:
            before = (
                f", of which {len(budget.ledger.entries)} earlier uses are a part," if budget.ledger.entries else ""
            )
            raise UsageError(
                f"epsilon={budget.epsilon} at delta={budget.delta}{before} can't be met with any noise multiplier up to "
                f"{_LARGEST_NOISE:.0f}: allow a larger epsilon, or {'spend less before' if before else 'take fewer steps'}"
            )
    while (spent := cost(low)) <= budget.epsilon:
        factor = further(spent)
        low, high = max(low / factor, _SMALLEST_NOISE), low
        if high == _SMALLEST_NOISE:
            return high
    return budget.least(event_of, low, high)


def _power(cost: Callable[[float], float], sigma: float) -> float:
    """With which power of the noise ε falls there, at least 1."""
    here, below = cost(sigma), cost(sigma / 1.01)
    return max(1.0, math.log(below / here) / math.log(1.01)) if here > 0 and below < math.inf else 1.0


@_checks.names_explained
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "rdp",
    adjacency: str = "add_or_remove_one",
) -> float:
    """The smallest noise multiplier, within 1e-6, with which DP-SGD stays within `epsilon` at `delta`.

    Args:
        epsilon: the budget ε, above zero.
        delta: the δ of (ε, δ), in (0, 1).
        sample_rate: expected batch size over number of examples, in (0, 1].
        steps: number of training steps.
        accountant: "rdp", "pld" or "classic".
        adjacency: "add_or_remove_one", "replace_special" or "replace_one".

    Returns:
        σ, in units of the clip norm, at least 1/16. `jaxdp.accounting.epsilon` at this σ is never above `epsilon`; by "pld" σ is
        RDP's where PLD would take too long.

    Raises:
        UsageError: for values out of range, a budget so small that no noise multiplier up to 2^20 meets it, or by "pld" a δ so
            small that it has no finite ε.

    Examples:
        >>> print(f"{noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=250 / 60_000, steps=3600):.4f}")
        1.2539
    """
    number = _checks.count("steps", steps, "give the number of training steps")
    budget = Budget(epsilon=epsilon, delta=delta, accountant=accountant, ledger=Ledger(adjacency=adjacency))
    return least_noise(
        budget, lambda sigma: poisson_event(noise_multiplier=sigma, sample_rate=sample_rate, steps=number)
    )


@_checks.names_explained
def steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sample_rate: float,
    accountant: str = "rdp",
    adjacency: str = "add_or_remove_one",
) -> int:
    """The most steps of DP-SGD that stay within `epsilon` at `delta`.

    Args:
        epsilon: the budget ε, above zero.
        delta: the δ of (ε, δ), in (0, 1).
        noise_multiplier: σ, in units of the clip norm; above zero.
        sample_rate: expected batch size over number of examples, in (0, 1].
        accountant: "rdp", "pld" or "classic".
        adjacency: "add_or_remove_one", "replace_special" or "replace_one".

    Returns:
        The number of steps; 0 where a single one is too many, 2^24 where there is practically no end; by "pld" as many as RDP
        allows, where PLD would take too long.

    Raises:
        UsageError: for values out of range, or by "pld" a δ so small that it has no finite ε.

    Examples:
        >>> steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.3, sample_rate=250 / 60_000)
        4052
    """
    budget = Budget(epsilon=epsilon, delta=delta, accountant=accountant, ledger=Ledger(adjacency=adjacency))
    return budget.most(
        lambda number: poisson_event(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=number),
        _MOST_STEPS,
    )


@_checks.names_explained
def batch_size(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    num_examples: int,
    steps: int,
    accountant: str = "rdp",
    adjacency: str = "add_or_remove_one",
) -> int:
    """The largest expected batch size with which `steps` steps of DP-SGD stay within `epsilon` at `delta`.

    Args:
        epsilon: the budget ε, above zero.
        delta: the δ of (ε, δ), in (0, 1).
        noise_multiplier: σ, in units of the clip norm; above zero.
        num_examples: the number of examples in the training data.
        steps: number of training steps.
        accountant: "rdp", "pld" or "classic".
        adjacency: "add_or_remove_one", "replace_special" or "replace_one".

    Returns:
        The batch size, at most `num_examples`; 0 where a batch of one example is too much; by "pld" RDP's where PLD would take
        too long.

    Raises:
        UsageError: for values out of range, or by "pld" a δ so small that it has no finite ε.

    Examples:
        >>> batch_size(epsilon=1.0, delta=1e-5, noise_multiplier=1.3, num_examples=60_000, steps=3600)
        264
    """
    from dp_accounting import NoOpDpEvent

    number = _checks.count("num_examples", num_examples, "give the number of training examples")
    budget = Budget(epsilon=epsilon, delta=delta, accountant=accountant, ledger=Ledger(adjacency=adjacency))

    def event(size: int) -> "DpEvent":
        if size == 0:
            return NoOpDpEvent()
        return poisson_event(noise_multiplier=noise_multiplier, sample_rate=size / number, steps=steps)

    return budget.most(event, number)
