"""`perform_analysis`, by the name and the arguments that tutorials know from PySyft, on the right rows."""

import math
from typing import Any

import numpy as np

from .. import _checks
from .._errors import UsageError
from ..accounting._reach import delta_left
from ._analysis import convert, event_of
from ._bounds import laplace_log_q, laplace_rdp, laplace_rdp_given_votes
from ._votes import check_predictions, vote_counts
from .aggregators import LaplaceNoisyMax


def perform_analysis(
    teacher_preds: Any,
    indices: Any = None,
    noise_eps: float = 0.1,
    delta: float = 1e-5,
    moments: int = 8,
    num_classes: int | None = None,
) -> tuple[float, float]:
    """The data-dependent and the data-independent ε of labelling by Laplace noisy max, by the moments of the 2017 paper.

    Args:
        teacher_preds: integers [teachers, examples].
        indices: integers [labelled], the row numbers of the examples that were labelled, each once; all by default. Not labels.
        noise_eps: γ, one over the scale of the Laplace noise. Each query costs (2γ)-differential privacy, not γ.
        delta: the δ of (ε, δ).
        moments: how many moments to search, from 1 to this.
        num_classes: m, how many classes the teachers could have voted for, known without looking at their votes; required.

    Returns:
        (data-dependent ε, data-independent ε). The first is private: it tells how much the teachers agreed.

    Raises:
        UsageError: for indices that are not whole numbers, out of range, or given twice (labels passed for row numbers, most
            often), for predictions that aren't classes, a delta not below 1 over the teachers, and without `num_classes`.

    Examples:
        >>> preds = np.zeros((100, 100), np.int32)
        >>> dependent, independent = perform_analysis(preds, noise_eps=0.1, num_classes=10)
        >>> f"{dependent:.4f} {independent:.4f}"
        '1.5266 11.7565'

    References:
        Papernot et al., arXiv 1610.05755.
    """
    gamma = _checks.positive("noise_eps", noise_eps, "give one over the scale of the Laplace noise, such as 0.1")
    number = _checks.count("moments", moments, "give how many moments to search")
    orders = np.arange(2, number + 2, dtype=np.float64)
    predictions = np.asarray(_checks.array("teacher_preds", teacher_preds, "give integers [teachers, examples]"))
    understood = check_predictions(predictions)
    _checks.delta(delta, len(predictions), of="teachers")
    rows = _check_indices(indices, predictions.shape[1], understood)
    if num_classes is None:
        raise UsageError(
            "num_classes is missing: each class that a teacher could have voted for adds to the chance that noise changes the "
            "winner, whether or not it got a vote, and classes counted in the votes would be too few and private besides; give "
            "the number of the task's classes, such as num_classes=10"
        )
    votes = np.asarray(vote_counts(predictions[:, rows], num_classes))
    curves = laplace_rdp_given_votes(laplace_log_q(votes, gamma), gamma, orders, classic=True)
    independent = len(rows) * laplace_rdp(gamma, orders, classic=True)
    dependent = np.minimum([math.fsum(curve) for curve in curves.T], independent)
    event = event_of(LaplaceNoisyMax(gamma=gamma), asked=len(rows), answered=len(rows))
    left = delta_left(event, delta, "replace_special")
    found = [convert(orders, rdp, left, "classic").epsilon for rdp in (dependent, independent)]
    return found[0], found[1]


def _check_indices(indices: Any, examples: int, understood: str) -> np.ndarray:
    if indices is None:
        return np.arange(examples)
    rows = np.asarray(_checks.array("indices", indices, "give the row numbers of the examples that were labelled"))
    hint = (
        "give the row numbers of the examples that were labelled, each once, not labels; leave indices out for all rows"
    )
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise UsageError(f"indices have shape {rows.shape} and dtype {rows.dtype}: {hint}")
    if rows.min() < 0 or rows.max() >= examples:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise UsageError(
            f"indices hold {bad}, and the predictions ({understood}) have rows 0 to {examples - 1}: {hint}"
        )
    if len(np.unique(rows)) != len(rows):
        raise UsageError(f"indices hold a number twice, so they look like labels: {hint}")
    return rows
