"""How well an attack tells who was in: the area under its ROC, and what it finds at few false alarms."""

from typing import Any

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._canaries import canaries


def attack_auroc(scores: Any, members: Any) -> float:
    """The area under the attack's ROC: how often a canary that was in scores higher than one that was out; ties count half.

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was.

    Returns:
        From 0 to 1; a half is what guessing gives.

    Raises:
        UsageError: for scores and members of different lengths, NaN, no canaries, and fewer than two that were in or out.

    Examples:
        >>> attack_auroc([0.9, 0.8, 0.4, 0.1], [True, False, True, False])
        0.75
    """
    given = canaries(scores, members)
    others = np.sort(given.of_others)
    below, up_to = (np.searchsorted(others, given.of_members, side) for side in ("left", "right"))
    return float((np.sum(below) + np.sum(up_to)) / 2 / (len(others) * len(given.of_members)))


def tpr_at_fpr(scores: Any, members: Any, fpr: float) -> float:
    """The share of the members that the attack finds where at most so many of the others are taken for one.

    Nothing is interpolated: a share of false alarms below one over the canaries that were out is none of them.

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was.
        fpr: the largest share of false alarms, from 0 to 1, such as 0.001.

    Returns:
        The true positive rate at the lowest threshold of which that holds (Carlini et al., arXiv 2112.03570, section III).

    Raises:
        UsageError: for what `attack_auroc` refuses, and a rate outside 0 to 1.

    Examples:
        >>> tpr_at_fpr([0.9, 0.8, 0.7, 0.4, 0.1], [True, True, False, True, False], fpr=0.1)
        0.6666666666666666
    """
    given = canaries(scores, members)
    most = _checks.real("fpr", fpr, "give a share of false alarms, such as 0.001")
    if not 0 <= most <= 1:
        raise UsageError(f"fpr={fpr} is no share: give a number from 0 to 1, such as 0.001")
    others = np.sort(given.of_others)[::-1]
    allowed = int(np.searchsorted(np.arange(len(others) + 1) / len(others), most, "right")) - 1
    return 1.0 if allowed == len(others) else float(np.mean(given.of_members > others[allowed]))
