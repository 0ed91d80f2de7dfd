"""How far a planted secret stands out among all that could have been planted (Carlini et al., arXiv 1802.08232)."""

import math
from typing import Any

import numpy as np

from .. import _checks
from .._errors import UsageError


def exposure_by_rank(loss: float, candidates: Any) -> float:
    """log2 of the number of candidates over the rank of the secret's loss: what losses spare a guesser, in bits.

    Args:
        loss: of the secret, lower where the model finds it likelier.
        candidates: float [candidates], losses of others that could have been the secret, drawn without a look at the model.

    Returns:
        Bits, from 0 to log2 of the candidates and the secret. Ties count against the secret.

    Raises:
        UsageError: for NaN, and no candidates.

    Examples:
        >>> exposure_by_rank(0.1, [0.5, 0.9, 1.5])
        2.0
    """
    secret, others = _checked(loss, candidates)
    rank = 1 + int(np.sum(others <= secret))
    return math.log2(len(others) + 1) - math.log2(rank)


def exposure_by_extrapolation(loss: float, candidates: Any) -> float:
    """-log2 of the probability that a candidate's loss is as low, by a skew normal distribution that is fitted to candidates.

    For spaces of secrets too large to try all of: beyond log2 of the candidates it rests on the distribution's tail, and is an
    estimate without a confidence.

    Args:
        loss: of the secret, lower where the model finds it likelier.
        candidates: float [candidates], losses of others that could have been the secret; a thousand or more.

    Returns:
        Bits, from 0 on.

    Raises:
        UsageError: for NaN or infinite losses, fewer than ten candidates or all of one loss, and losses that no such distribution
            fits.

    Examples:
        >>> losses = np.random.default_rng(0).normal(10.0, 1.0, 2000)
        >>> 15 < exposure_by_extrapolation(5.6, losses) < 20
        True
    """
    secret, others = _checked(loss, candidates)
    if not (math.isfinite(secret) and np.all(np.isfinite(others))):
        raise UsageError(
            "a loss is infinite, which no distribution fits: leave such candidates out, or use exposure_by_rank"
        )
    largest = float(np.max(np.abs(others))) or 1.0  # whose square need not be a float
    centre, scale = np.mean(others / largest), np.std(others / largest)
    if len(others) < 10 or not scale > 0:
        raise UsageError(
            f"{len(others)} candidates, of {len(np.unique(others))} losses, fit no distribution: give 1,000 or more"
        )
    from scipy.stats import FitError, skewnorm

    try:
        shape = skewnorm.fit((others / largest - centre) / scale)
    except FitError as error:
        raise UsageError(
            f"no skew normal distribution fits the candidates' losses ({error}): use exposure_by_rank"
        ) from error
    return float(max(0.0, -skewnorm.logcdf((secret / largest - centre) / scale, *shape) / math.log(2)))


def _checked(loss: float, candidates: Any) -> tuple[float, np.ndarray]:
    secret = _checks.real("loss", loss, "give the loss of the secret")
    fix = "give one loss a candidate"
    others = np.asarray(_checks.array("candidates", candidates, fix))
    if others.ndim != 1 or not len(others) or not _checks.is_real(others):
        raise UsageError(f"candidates are {others.dtype}{list(others.shape)}: {fix}")
    others = others.astype(np.float64)
    if np.any(np.isnan(others)):
        raise UsageError(f"{int(np.sum(np.isnan(others)))} of {len(others)} candidates' losses are NaN: leave them out")
    return secret, others
