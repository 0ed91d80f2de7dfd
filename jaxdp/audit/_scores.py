"""What a model's outputs say of membership, before any other model is looked at: the loss, and entropies.

Outputs are logits, or logarithms of probabilities, which are logits too. Scores are higher where an example seems to have been
trained on.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax, logsumexp

from .. import _checks
from .._errors import UsageError

_LOGITS = "give logits [examples, classes], or logarithms of probabilities"


def loss_scores(logits: Any, labels: Any) -> Float[np.ndarray, " examples"]:
    """How small the loss of each example is: the logarithm of the probability of its label.

    Args:
        logits: float [examples, classes]; logarithms of probabilities will do.
        labels: int [examples].

    Returns:
        float64 [examples], the negative cross-entropy.

    Raises:
        UsageError: for logits that are no numbers, NaN, or have fewer than two classes, and for labels that are none of them.

    References:
        Yeom et al., arXiv 1709.01604, adversary 2.

    Examples:
        >>> loss_scores([[2.0, 0.0], [0.0, 0.0]], [0, 1]).round(3).tolist()
        [-0.127, -0.693]
    """
    logits, labels = _labelled(logits, labels)
    return log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def entropy_scores(logits: Any) -> Float[np.ndarray, " examples"]:
    """How sure the model is, whatever the label: the negative entropy of its prediction.

    Args:
        logits: float [examples, classes]; logarithms of probabilities will do.

    Returns:
        float64 [examples], in nats, from minus the logarithm of the number of classes to 0.

    Raises:
        UsageError: for logits that are no numbers, NaN, or have fewer than two classes.

    References:
        Salem et al., arXiv 1806.01246, section V.

    Examples:
        >>> entropy_scores([[2.0, 0.0], [0.0, 0.0]]).round(3).tolist()
        [-0.365, -0.693]
    """
    logs = log_softmax(_checked(logits), axis=1)
    return np.sum(np.exp(logs) * np.where(np.isneginf(logs), 0.0, logs), axis=1)


def modified_entropy_scores(logits: Any, labels: Any) -> Float[np.ndarray, " examples"]:
    """How sure the model is of the label: an entropy that is largest where it is sure of another class, as a score.

    (1 - p) log p + Σ q log(1 - q), p the probability of the label and q those of the other classes.

    Args:
        logits: float [examples, classes]; logarithms of probabilities will do.
        labels: int [examples].

    Returns:
        float64 [examples], 0 at most.

    Raises:
        UsageError: as `loss_scores`.

    References:
        Song and Mittal, arXiv 2003.10595, section 4.1.

    Examples:
        >>> modified_entropy_scores([[2.0, 0.0], [0.0, 0.0]], [0, 1]).round(3).tolist()
        [-0.03, -0.693]
    """
    logits, labels = _labelled(logits, labels)
    logs = log_softmax(logits, axis=1)
    of_label = np.arange(logits.shape[1]) == labels[:, None]
    others = _log_of_rest(logits)
    weighted = np.where(of_label, np.exp(others) * logs, np.exp(logs) * others)
    return np.sum(np.where(np.isnan(weighted), 0.0, weighted), axis=1)  # 0 times an infinite logarithm


def confidence(logits: Any, labels: Any) -> Float[np.ndarray, "*models examples"]:
    """log(p / (1 - p)), p the probability of the label: what `lira_scores` compares between models, as it is nearly Gaussian.

    Args:
        logits: float [..., examples, classes], as of several models; logarithms of probabilities will do.
        labels: int [examples].

    Returns:
        float64 [..., examples].

    Raises:
        UsageError: as `loss_scores`.

    References:
        Carlini et al., arXiv 2112.03570, section V.

    Examples:
        >>> confidence([[2.0, 0.0], [0.0, 0.0]], [0, 1]).tolist()
        [2.0, 0.0]
    """
    logits, labels = _labelled(logits, labels, of_several=True)
    at = np.arange(len(labels)), labels
    return (log_softmax(logits, axis=-1) - _log_of_rest(logits))[..., *at]


def _log_of_rest(logits: np.ndarray) -> np.ndarray:
    """For each class the logarithm of the probability of all others together, exact where it is tiny."""
    first = np.arange(logits.shape[-1]) == np.argmax(logits, axis=-1, keepdims=True)
    rest = logsumexp(np.where(first, -np.inf, logits), axis=-1, keepdims=True) - logsumexp(
        logits, axis=-1, keepdims=True
    )
    return np.where(first, rest, np.log1p(-np.where(first, 0.0, np.exp(log_softmax(logits, axis=-1)))))


def _checked(logits: Any, *, of_several: bool = False) -> np.ndarray:
    array = np.asarray(_checks.array("logits", logits, _LOGITS))
    if (
        array.ndim < 2
        or (array.ndim > 2 and not of_several)
        or array.shape[-1] < 2
        or not (_checks.is_real(array) and array.dtype != np.bool_)
    ):
        raise UsageError(f"logits are {array.dtype}{list(array.shape)}: {_LOGITS}")
    array = array.astype(np.float64)
    if np.any(np.isnan(array)) or np.any(np.max(array, axis=-1) == np.inf) or np.any(np.max(array, axis=-1) == -np.inf):
        raise UsageError(f"logits are NaN or infinite, which is no prediction: {_LOGITS}")
    return array


def _labelled(logits: Any, labels: Any, *, of_several: bool = False) -> tuple[np.ndarray, np.ndarray]:
    scored, given = (
        _checked(logits, of_several=of_several),
        np.asarray(_checks.array("labels", labels, "give whole numbers [examples]")),
    )
    if given.shape != scored.shape[-2:-1] or not np.issubdtype(given.dtype, np.integer):
        raise UsageError(
            f"labels are {given.dtype}{list(given.shape)} beside logits {list(scored.shape)}: give whole numbers [examples]"
        )
    if given.size and not 0 <= given.min() <= given.max() < scored.shape[-1]:
        raise UsageError(
            f"labels are from {given.min()} to {given.max()}, and logits of {scored.shape[-1]} classes: count them from 0"
        )
    return scored, given
