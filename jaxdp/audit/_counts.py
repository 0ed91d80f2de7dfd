"""A lower bound on ε from how often an attack was right over many runs (Jagielski et al., arXiv 2006.07709)."""

import math

from scipy.special import betaincinv

from .. import _checks
from .._errors import UsageError
from ._one_run import checked_delta, checked_significance


def epsilon_clopper_pearson(
    *,
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    delta: float,
    significance: float = 0.05,
) -> float:
    """The largest ε that a test's error rates contradict: ln((TPR - δ) / FPR), or that of the opposite answer where it is larger.

    Of both rates of errors the upper ends of Clopper and Pearson's one-sided intervals count, at half of the significance each;
    both answers rest on these two.

    Assumes that the runs are independent, and that the test was fixed before its answers were counted: one that was chosen by
    them is right more often than it will be.

    Args:
        true_positives: how often the test said in, of the runs with the canary.
        positives: how many runs had the canary.
        false_positives: how often the test said in, of the runs without it.
        negatives: how many runs hadn't.
        delta: δ of the claim, from 0 up to and without 1.
        significance: the probability with which the bound may be above the true ε.

    Returns:
        The lower bound; 0 where the counts show nothing.

    Raises:
        UsageError: for counts that are not whole, more answers than runs, no runs of either kind, δ outside [0, 1) and a
            significance outside (0, 1).

    Examples:
        >>> round(epsilon_clopper_pearson(true_positives=990, positives=1000, false_positives=10, negatives=1000, delta=0), 3)
        3.982
    """
    missed = _checked("true_positives", true_positives, "positives", positives)
    wrong = _checked("false_positives", false_positives, "negatives", negatives)
    delta, level = checked_delta(delta), checked_significance(significance)
    fnr = _at_most(missed[1] - missed[0], missed[1], level / 2)
    fpr = _at_most(*wrong, level / 2)
    return max(0.0, _shown(fnr, fpr, delta), _shown(fpr, fnr, delta))


def _shown(missed: float, wrong: float, delta: float) -> float:
    """ε of a test with these rates of errors."""
    return math.log((1 - missed - delta) / wrong) if missed < 1 - delta else 0.0


def _checked(name: str, count: int, runs_name: str, runs: int) -> tuple[int, int]:
    number = _checks.whole(name, count, "give how often the test said so")
    of = _checks.count(runs_name, runs, "give how many such runs there were")
    if number > of:
        raise UsageError(f"{name}={count} of {runs_name}={runs}: a test answers once a run")
    return number, of


def _at_most(count: int, of: int, significance: float) -> float:
    """The upper end of Clopper and Pearson's one-sided interval of a rate."""
    return 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - significance))
