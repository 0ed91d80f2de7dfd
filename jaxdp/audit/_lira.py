"""LiRA: how likely a model's confidence is if an example was in its training data, and if not, by other models' confidences."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._errors import UsageError

_SHADOWS = "give one row a shadow model, one column an example"


def lira_scores(
    target: Any, shadows: Any, members: Any, *, offline: bool = False, fix_variance: bool = False
) -> Float[np.ndarray, " examples"]:
    """The likelihood ratio attack's score of each example.

    The confidences of shadow models that had an example in their data, and of those that had not, are taken for Gaussians; the
    score is the logarithm of the ratio of the two densities at the target's confidence. Offline, which needs no shadow model
    that had the example, it is how many standard deviations above those that had not the target's lies: as a score the same as
    the paper's one-sided probability, without its ties at 1.

    Args:
        target: float [examples], of the attacked model: `jaxdp.audit.confidence` of its logits.
        shadows: float [shadows, examples], the same of the shadow models.
        members: bool [shadows, examples], whether the example was in the shadow model's data.
        offline: look only at the models that had not the example.
        fix_variance: one variance for all examples in, one for all out, as is better where shadow models are fewer than 64.

    Returns:
        float64 [examples], higher where the example seems to have been in the target's data.

    Raises:
        UsageError: for arrays that don't go together, NaN or infinite confidences, and an example for which there are not two
            shadow models of each kind that is asked for, or all of whose confidences are the same.

    References:
        Carlini et al., arXiv 2112.03570, algorithm 1 and section VI.

    Examples:
        >>> members = np.array([[True], [True], [False], [False]])
        >>> lira_scores([3.0], [[3.5], [2.5], [0.5], [-0.5]], members).tolist()
        [18.0]
    """
    offline, fix_variance = _checks.flag("offline", offline), _checks.flag("fix_variance", fix_variance)
    own = _confidences("target", target, 1, "give one number an example")
    others = _confidences("shadows", shadows, 2, _SHADOWS)
    was_in = np.asarray(_checks.array("members", members, _SHADOWS))
    if was_in.dtype != np.bool_ or was_in.shape != others.shape or others.shape[1:] != own.shape:
        raise UsageError(
            f"target is {list(own.shape)}, shadows are {list(others.shape)} and members {was_in.dtype}{list(was_in.shape)}: "
            f"{_SHADOWS}, and bools of the same shape"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = _gaussians(others, ~was_in, "out of", fix_variance=fix_variance)
        scores = (own - mean) / deviation
        if not offline:
            density_out = -(scores**2) / 2 - np.log(deviation)
            mean, deviation = _gaussians(others, was_in, "in", fix_variance=fix_variance)
            scores = -(((own - mean) / deviation) ** 2) / 2 - np.log(deviation) - density_out
    if not np.all(np.isfinite(scores)):
        raise UsageError(
            f"the confidences of example {int(np.argmin(np.isfinite(scores)))} are too large to be squared, or too far apart: "
            "give them as jaxdp.audit.confidence has them of logits"
        )
    return scores


def _gaussians(values: np.ndarray, chosen: np.ndarray, where: str, *, fix_variance: bool) -> tuple[Any, Any]:
    """Means and standard deviations [examples] of the chosen confidences of each."""
    number = np.sum(chosen, axis=0)
    if np.any(number < 2):
        first = int(np.argmax(number < 2))
        raise UsageError(
            f"{number[first]} shadow models had example {first} {where} their data, and two are needed: train more, by "
            "jaxdp.audit.train_shadows"
        )
    mean = np.sum(np.where(chosen, values, 0.0), axis=0) / number
    squares = np.sum(np.where(chosen, (values - mean) ** 2, 0.0), axis=0)
    variance = np.full_like(mean, np.sum(squares) / np.sum(number)) if fix_variance else squares / number
    if not np.all(variance > 0):
        raise UsageError(
            f"all shadow models that had example {int(np.argmax(variance <= 0))} {where} their data are equally confident of it: "
            "train them on other halves, or give fix_variance=True"
        )
    return mean, np.sqrt(variance)


def _confidences(name: str, value: Any, axes: int, fix: str) -> np.ndarray:
    array = np.asarray(_checks.array(name, value, fix))
    if array.ndim != axes or not array.size or not _checks.is_real(array) or array.dtype == np.bool_:
        raise UsageError(f"{name} are {array.dtype}{list(array.shape)}: {fix}")
    if not np.all(np.isfinite(array)):
        raise UsageError(f"{name} are NaN or infinite: give confidences as jaxdp.audit.confidence has them of logits")
    return array.astype(np.float64)
