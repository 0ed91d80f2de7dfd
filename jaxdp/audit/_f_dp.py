"""A lower bound on ε from one run by a trade-off function (Mahloujifar, Melis and Chaudhuri, arXiv 2410.22235)."""

from typing import Any

from scipy.special import ndtr, ndtri

from .. import _checks
from .._errors import UsageError
from ._canaries import tossed
from ._one_run import checked_delta, checked_significance
from ._thresholds import Bonferroni, Guesses, Thresholds

_BONFERRONI = Bonferroni()


def epsilon_one_run_f_dp(
    scores: Any, members: Any, *, delta: float, significance: float = 0.05, thresholds: Thresholds = _BONFERRONI
) -> float:
    """The ε at δ of the largest μ for which a claim of μ-Gaussian differential privacy is contradicted by an attack on one run.

    Assumes what `jaxdp.audit.epsilon_one_run` does, and that the trade-off function of what is audited is a Gaussian one, as that
    of DP-SGD nearly is where steps are many: it bounds μ, and ε at δ is what that μ has. It says nothing of a mechanism that is
    (ε, δ)-differentially private and not Gaussian, and comes closer to the ε of one that is.

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was.
        delta: δ at which ε is told, between 0 and 1.
        significance: the probability with which the bound may be above the true ε; 0.05 is a confidence of 95 %.
        thresholds: which numbers of guesses are tried: `Bonferroni`, or `Split`.

    Returns:
        The lower bound; 0 where the attack shows nothing.

    Raises:
        UsageError: as `jaxdp.audit.epsilon_one_run`, and for δ = 0, at which a Gaussian mechanism has no ε.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> members = rng.random(1000) < 0.5
        >>> scores = rng.normal(size=1000) + 3 * members
        >>> round(epsilon_one_run_f_dp(scores, members, delta=1e-5), 2)
        5.59
    """
    given = tossed(scores, members)
    delta, level = checked_delta(delta), checked_significance(significance)
    if not delta:
        raise UsageError("delta=0 has no ε for a Gaussian mechanism: give the δ of the claim, such as 1e-5")
    _checks.instance("thresholds", thresholds, Thresholds, "give a jaxdp.audit.Bonferroni(), or a Split()")
    mu = thresholds.highest(_contradicts, given, level)
    if not mu:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / mu, delta))


def _contradicts(counts: Guesses, mu: float, significance: float) -> bool:
    """Whether guesses so often right are less likely than that under every μ-Gaussian mechanism."""
    m, guesses, correct = counts
    right, wrong = significance * correct / m, significance * (guesses - correct) / m
    for i in range(correct - 1, -1, -1):
        at_least = max(wrong, float(ndtr(ndtri(right) - mu)))
        if at_least == wrong:
            break  # as it will be from here on
        right, wrong = min(1.0, right + i / (guesses - i) * (at_least - wrong)), at_least
    return right + wrong > guesses / m
