"""A lower bound on ε from one run where scores are Gaussian (Agrawal et al., "Let's Ask Gauss", arXiv 2606.12733)."""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtri, log_ndtr, ndtr, stdtrit

from .._errors import UsageError
from ._canaries import Canaries, tossed
from ._one_run import checked_delta, checked_significance

_INTERVALS = 6  # one-sided: a bound of each mean, two of each standard deviation
_SURELY_NOT = 1e-6  # how likely so skewed or heavy-tailed scores are, if Gaussian, where they are refused
_FEWEST = 20  # canaries of a kind from which the shape of a distribution can be told at all
_PLACES = 4001


def epsilon_one_run_gaussian(scores: Any, members: Any, *, delta: float, significance: float = 0.05) -> float:
    """The largest ε that two Gaussians contradict: of the scores of canaries that were in, and of those that were out.

    No canary is called in or out; all scores count, so that the bound reaches an ε that no number of guesses could show. It
    assumes much for that: that the scores of those in are independent Gaussians of one mean and variance, those of the others of
    another, far into the tails that δ asks for, where no canary's score lies. Sums over many steps of DP-SGD, as
    `jaxdp.audit.GradientCanaries.scores` gives them, may be; losses seldom are. Scores that are clearly not are refused,
    which does not show that the others are.

    Means and standard deviations are taken at the ends of their confidence intervals (Student's t and χ², six one-sided ones at
    a sixth of the significance) that show least; ε is the largest for which some threshold then still contradicts (ε, δ). The
    paper takes the divergence of the two Gaussians. A threshold shows no more than that, and at which ends it shows least is
    known without a search.

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was.
        delta: δ of the claim, from 0 up to and without 1.
        significance: the probability with which the bound may be above the true ε, if all that is so.

    Returns:
        The lower bound; 0 where the attack shows nothing.

    Raises:
        UsageError: as `jaxdp.audit.epsilon_one_run`; for fewer than 20 canaries that were in or out; and for scores that are
            clearly not Gaussian, infinite ones among them.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> members = rng.random(1000) < 0.5
        >>> scores = rng.normal(size=1000) + 3 * members
        >>> round(epsilon_one_run_gaussian(scores, members, delta=1e-5), 2)
        10.9
    """
    given = tossed(scores, members)
    delta, level = checked_delta(delta), checked_significance(significance)
    if (objection := _objection(given)) is not None:
        raise UsageError(f"{objection}, or use jaxdp.audit.epsilon_one_run, which assumes nothing of them")
    return _bound(given, delta, level)


def bound_if_gaussian(given: Canaries, delta: float, significance: float) -> float | None:
    """The same of what was checked; None where it would be refused."""
    return None if _objection(given) else _bound(given, delta, significance)


def _objection(given: Canaries) -> str | None:
    """Why these scores can't be taken for two Gaussians, if they can't, and what to do."""
    for name, group in (("in", given.of_members), ("out", given.of_others)):
        if len(group) < _FEWEST:
            return f"{len(group)} canaries were {name}: give {_FEWEST} or more of each"
        if not (shape := _how_gaussian(group)) > _SURELY_NOT:
            return (
                f"the scores of the canaries that were {name} are not Gaussian (so skewed or heavy-tailed with probability "
                f"{shape:.1g}): give others"
            )
    return None


class _Estimate(NamedTuple):
    """Of a Gaussian: the end of its mean's interval that lies towards the other one, and both of its standard deviation's."""

    mean: float
    least: float
    most: float


def _bound(given: Canaries, delta: float, significance: float) -> float:
    part, unit = significance / _INTERVALS, np.max(np.abs(given.scores))  # of which the bound doesn't depend
    present, absent = _estimate(given.of_members / unit, part, -1), _estimate(given.of_others / unit, part, 1)
    if not present.mean > absent.mean:
        return 0.0
    reach = 12 * max(present.most, absent.most)
    places = np.linspace(absent.mean - reach, present.mean + reach, _PLACES)
    above = _contradicted(present, absent, places, delta)
    mirrored = lambda one: one._replace(mean=-one.mean)
    below = _contradicted(mirrored(absent), mirrored(present), -places, delta)
    return max(0.0, above, below)


def _contradicted(likely: _Estimate, unlikely: _Estimate, places: np.ndarray, delta: float) -> float:
    """The largest log((P - δ) / Q) over thresholds, P at least as much of the one above it, Q at most as much of the other."""
    lead = likely.mean - places
    least = ndtr(lead / np.where(lead > 0, likely.most, likely.least)) - delta
    lag = unlikely.mean - places
    most = log_ndtr(lag / np.where(lag > 0, unlikely.least, unlikely.most))
    shown = least > 0
    return float(np.max(np.log(least[shown]) - most[shown], initial=0.0))


def _estimate(group: np.ndarray, significance: float, side: int) -> _Estimate:
    freedom, deviation = len(group) - 1, float(np.std(group, ddof=1))
    margin = float(stdtrit(freedom, 1 - significance)) * deviation / np.sqrt(len(group))
    at = lambda upper_tail: deviation * float(np.sqrt(freedom / chdtri(freedom, upper_tail)))
    return _Estimate(float(np.mean(group)) + side * margin, at(significance), at(1 - significance))


def _how_gaussian(group: np.ndarray) -> float:
    """How likely Gaussian scores are so skewed or so heavy-tailed, by the statistic of Jarque and Bera; 0 of what is infinite."""
    if not np.all(np.isfinite(group)) or np.ptp(group) == 0:
        return 0.0
    scaled = group / np.max(np.abs(group))  # which can be squared
    standard = (scaled - np.mean(scaled)) / np.std(scaled)
    skew, kurtosis = np.mean(standard**3), np.mean(standard**4)
    return float(np.exp(-len(group) / 2 * (skew**2 / 6 + (kurtosis - 3) ** 2 / 24)))
