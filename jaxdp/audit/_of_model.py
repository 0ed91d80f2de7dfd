"""Scores of a model from anywhere: a function that predicts, and the examples."""

from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._errors import UsageError
from ..pate._shards import check_inputs
from ._names import Attack
from ._scores import entropy_scores, loss_scores, modified_entropy_scores

_SCORES: dict[str, Callable[[Any, Any], Float[np.ndarray, " examples"]]] = {
    "loss": loss_scores,
    "entropy": lambda logits, labels: entropy_scores(logits),
    "modified-entropy": modified_entropy_scores,
}


def scores_of(
    predict: Callable[[Any], Any], inputs: Any, labels: Any, *, attack: Attack = "loss", rows: int = 1000
) -> Float[np.ndarray, " examples"]:
    """What an attack on a model's predictions says of each example; for `jaxdp.audit.report`, with the canaries' coins.

    Args:
        predict: `predict(inputs) -> logits [rows, classes]` of any library, for some of the inputs at a time; logarithms of
            probabilities are logits.
        inputs: a pytree of arrays with a leading axis [examples], such as the canaries'.
        labels: int [examples], those with which they were, or would have been, trained on.
        attack: "loss", "entropy" or "modified-entropy", as the functions named `..._scores` compute them.
        rows: how many inputs are predicted at a time.

    Returns:
        float64 [examples], higher where the example seems to have been in the training data.

    Raises:
        UsageError: for an unknown attack, inputs without a common leading axis, and what `jaxdp.audit.loss_scores` refuses.

    Examples:
        >>> weights = np.array([[1.0, -1.0]])
        >>> scores_of(lambda inputs: inputs @ weights, np.array([[1.0], [0.0]]), [0, 1]).round(3).tolist()
        [-0.127, -0.693]
    """
    _checks.function("predict", predict, "give a function from inputs to logits [rows, classes]")
    scores = _SCORES[_checks.one_of("attack", attack, get_args(Attack))]
    examples = check_inputs(inputs)
    step = _checks.count("rows", rows, "give how many inputs are predicted at a time")
    parts = [jax.tree.map(lambda leaf, i=i: leaf[i : i + step], inputs) for i in range(0, examples, step)]
    logits = [np.asarray(_checks.array("what predict returned", predict(part), "return logits")) for part in parts]
    shapes = {part.shape[1:] for part in logits}
    if len(shapes) > 1 or sum(len(part) for part in logits if part.ndim) != examples:
        raise UsageError(
            f"predict returned {', '.join(str(list(part.shape)) for part in logits[:3])} for {examples} inputs: return logits "
            "[rows, classes], one row an input"
        )
    return scores(np.concatenate(logits), labels)
