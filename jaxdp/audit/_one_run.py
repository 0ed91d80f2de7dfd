"""A lower bound on ε from one run with many canaries (Steinke, Nasr and Jagielski, arXiv 2305.08846)."""

import math
from typing import Any

import numpy as np
from scipy.special import betainc

from .. import _checks
from .._errors import UsageError
from ._canaries import tossed
from ._thresholds import Bonferroni, Guesses, Thresholds, best_of

_BONFERRONI = Bonferroni()


def epsilon_one_run(
    scores: Any, members: Any, *, delta: float, significance: float = 0.05, thresholds: Thresholds = _BONFERRONI
) -> float:
    """The largest ε for which a claim of (ε, δ)-differential privacy is contradicted by an attack on one run.

    Assumes that each canary was put into the training data by a fair coin of its own, that the scores come from what was released
    and from canaries alone, and that the claim is for adding or removing one example. The highest scores are guessed to be
    members; of the others nothing is said (their main theorem, without guesses that a canary was out).

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was.
        delta: δ of the claim, from 0 up to and without 1.
        significance: the probability with which the bound may be above the true ε; 0.05 is a confidence of 95 %.
        thresholds: which numbers of guesses are tried: `Bonferroni`, or `Split`.

    Returns:
        The lower bound; 0 where the attack shows nothing.

    Raises:
        UsageError: for scores and members of different lengths, NaN, no canaries, fewer than two that were in or out, more or
            fewer members than fair coins give, δ outside [0, 1) and a significance outside (0, 1).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> members = rng.random(1000) < 0.5
        >>> scores = rng.normal(size=1000) + 3 * members
        >>> round(epsilon_one_run(scores, members, delta=1e-5), 2)
        3.59
    """
    given = tossed(scores, members)
    delta, level = checked_delta(delta), checked_significance(significance)
    _checks.instance("thresholds", thresholds, Thresholds, "give a jaxdp.audit.Bonferroni(), or a Split()")
    rejects = lambda guesses, epsilon, share: _p_value(guesses, epsilon, delta) <= share
    return thresholds.highest(rejects, given, level)


def epsilon_one_run_from_counts(
    *, canaries: int, guesses: int, correct: int, delta: float, significance: float = 0.05
) -> float:
    """The same bound from one set of guesses, whose number was fixed before the coins were looked at.

    Args:
        canaries: m, each in the training data by a fair coin.
        guesses: r, for how many of them the attack says in or out.
        correct: v, how many of these it got right.
        delta: δ of the claim, from 0 up to and without 1.
        significance: the probability with which the bound may be above the true ε.

    Returns:
        The lower bound; 0 where the guesses show nothing.

    Raises:
        UsageError: for no canaries, more guesses than canaries or more that are right than guesses; δ outside [0, 1) and a
            significance outside (0, 1).

    Examples:
        >>> round(epsilon_one_run_from_counts(canaries=100, guesses=100, correct=75, delta=0), 6)
        0.702214
    """
    counts = _checked_counts(canaries, guesses, correct)
    delta, level = checked_delta(delta), checked_significance(significance)
    return best_of(lambda counts, epsilon, share: _p_value(counts, epsilon, delta) <= share, [counts], level)[0]


def one_run_p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most how likely so many right guesses are where (ε, δ)-differential privacy holds (their main theorem).

    β + 2mδ·max over i from 1 to v of P[v - i ≤ X < v] / i, where β = P[X ≥ v], and X is binomial: r tosses of a coin that shows
    heads with probability e^ε / (1 + e^ε).

    Args:
        canaries: m, each in the training data by a fair coin.
        guesses: r, for how many of them the attack says in or out.
        correct: v, how many of these it got right.
        epsilon: ε of the claim, 0 or above.
        delta: δ of the claim, from 0 up to and without 1.

    Returns:
        A probability.

    Raises:
        UsageError: for no canaries, more guesses than canaries or more that are right than guesses; ε below 0, and δ outside
            [0, 1).

    Examples:
        >>> round(one_run_p_value(canaries=100, guesses=100, correct=75, epsilon=math.log(3), delta=0), 6)
        0.553471
    """
    counts = _checked_counts(canaries, guesses, correct)
    epsilon = _checks.non_negative("epsilon", epsilon, "give the ε of the claim")
    return _p_value(counts, epsilon, checked_delta(delta))


def checked_delta(delta: float) -> float:
    """δ, of which 0 is one."""
    number = _checks.real("delta", delta, "give the δ of the claim, such as 1e-5, or 0")
    if not 0 <= number < 1:
        raise UsageError(f"delta={delta} must lie from 0 up to 1, without it: give the δ of the claim, such as 1e-5")
    return number


def checked_significance(significance: float) -> float:
    """A probability that a bound is wrong, between 0 and 1."""
    number = _checks.real("significance", significance, "give the probability that a bound is wrong, such as 0.05")
    if not 0 < number < 1:
        raise UsageError(
            f"significance={significance} must lie between 0 and 1, both excluded: 0.05 is a confidence of 95 %"
        )
    return number


def _checked_counts(canaries: int, guesses: int, correct: int) -> Guesses:
    counts = Guesses(
        _checks.count("canaries", canaries, "give how many canaries there were"),
        _checks.whole("guesses", guesses, "give for how many of them the attack said in or out"),
        _checks.whole("correct", correct, "give how many guesses were right"),
    )
    if counts.guesses > counts.canaries:
        raise UsageError(f"guesses={guesses} of canaries={canaries}: an attack guesses once a canary")
    if counts.correct > counts.guesses:
        raise UsageError(f"correct={correct} of guesses={guesses}: no more can be right")
    return counts


def _p_value(counts: Guesses, epsilon: float, delta: float) -> float:
    m, r, v = counts
    if not v:
        return 1.0
    heads = 1 / (1 + math.exp(-epsilon))
    at_least = lambda k: np.where(k > 0, betainc(np.maximum(k, 1), r - np.maximum(k, 1) + 1, heads), 1.0)
    beta = at_least(np.asarray(v))
    if not delta:
        return float(beta)
    i = np.arange(1, v + 1)
    alpha = np.max((at_least(v - i) - beta) / i)
    return min(1.0, float(beta + 2 * m * delta * alpha))
