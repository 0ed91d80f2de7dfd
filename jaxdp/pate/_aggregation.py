"""Noisy aggregation: labels for all examples in one call, from votes and noise."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32, Integer, Key

from .. import _checks
from .._errors import UsageError
from ..noise import standard_laplace, standard_normal
from ..noise._keys import Domain, own_key
from ._mechanisms import (
    ConfidentNoisyMax,
    GaussianNoisyMax,
    InteractiveNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    check_threshold_against,
)
from ._votes import check_votes

Votes = Integer[Array | np.ndarray, "examples classes"]


class Labels(NamedTuple):
    """What the teachers gave away.

    Attributes:
        labels: int32 [examples]. The class, or -1 where there is none.
        answered: bool [examples]. Whether the teachers' votes were released: what the analysis charges in full.
    """

    labels: Int32[Array, " examples"]
    answered: Bool[Array, " examples"]


def laplace_noisy_max(votes: Votes, *, gamma: float, key: Key[Array, ""]) -> Int32[Array, " examples"]:
    r"""The winner of \(n_j + \mathrm{Lap}(1/\gamma)\), for each example.

    Args:
        votes: counts [examples, classes], as `vote_counts` makes them.
        gamma: γ, one over the scale of the noise; each example costs (2γ)-differential privacy.
        key: scalar key, used for this and nothing else.

    Returns:
        int32 [examples].

    Raises:
        UsageError: for γ not positive, votes that aren't counts, or what is not a key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> laplace_noisy_max(jnp.array([[90, 10], [0, 100]]), gamma=0.5, key=jax.random.key(0)).tolist()
        [0, 1]

    References:
        Papernot et al., arXiv 1610.05755.
    """
    return aggregate(votes, LaplaceNoisyMax(gamma=gamma), key=key).labels


def gaussian_noisy_max(votes: Votes, *, sigma: float, key: Key[Array, ""]) -> Int32[Array, " examples"]:
    r"""GNMax, the winner of \(n_j + \mathcal N(0, \sigma^2)\), for each example.

    Args:
        votes: counts [examples, classes].
        sigma: σ, in votes.
        key: scalar key, used for this and nothing else.

    Returns:
        int32 [examples].

    Raises:
        UsageError: for σ not positive, votes that aren't counts, or what is not a key.

    References:
        Papernot et al., arXiv 1802.08908.
    """
    return aggregate(votes, GaussianNoisyMax(sigma=sigma), key=key).labels


def confident_noisy_max(
    votes: Votes, *, threshold: float, sigma_threshold: float, sigma_max: float, key: Key[Array, ""]
) -> Labels:
    """Confident-GNMax: GNMax where the noisy plurality reaches the threshold, no answer elsewhere.

    Args:
        votes: counts [examples, classes].
        threshold: T, in votes; at most the number of teachers.
        sigma_threshold: σ₁, in votes.
        sigma_max: σ₂, in votes.
        key: scalar key, used for this and nothing else.

    Returns:
        `Labels`: labels, -1 where there is no answer, and which were answered.

    Raises:
        UsageError: for values out of range, votes that aren't counts, or what is not a key.

    References:
        Papernot et al., arXiv 1802.08908, algorithm 1.
    """
    mechanism = ConfidentNoisyMax(threshold=threshold, sigma_threshold=sigma_threshold, sigma_max=sigma_max)
    return aggregate(votes, mechanism, key=key)


def interactive_noisy_max(
    votes: Votes,
    student_probs: Float[Array | np.ndarray, "_ _"],
    *,
    threshold: float,
    sigma_threshold: float,
    sigma_max: float,
    student_confidence: float,
    key: Key[Array, ""],
) -> Labels:
    r"""Interactive-GNMax: the teachers answer where they noisily disagree with the student.

    Args:
        votes: counts [examples, classes].
        student_probs: the student's probabilities [examples, classes]; zeros where there is no student yet, which makes it
            Confident-GNMax there.
        threshold: T on \(\max_j (n_j - M p_j)\), in votes; at most the number M of teachers.
        sigma_threshold: σ₁, in votes.
        sigma_max: σ₂, in votes.
        student_confidence: from which probability on the student's own label is used, where the teachers don't answer.
        key: scalar key, used for this and nothing else.

    Returns:
        `Labels`: labels, of the teachers or the student's own, -1 where there is none; and which the teachers answered.

    Raises:
        UsageError: for values out of range, votes that aren't counts, probabilities of another shape, or what is not a key.

    References:
        Papernot et al., arXiv 1802.08908, algorithm 2.
    """
    mechanism = InteractiveNoisyMax(
        threshold=threshold,
        sigma_threshold=sigma_threshold,
        sigma_max=sigma_max,
        student_confidence=student_confidence,
    )
    return aggregate(votes, mechanism, key=key, student_probs=student_probs)


def aggregate(votes: Votes, mechanism: Mechanism, *, key: Key[Array, ""], student_probs: Any = None) -> Labels:
    """Labels by any of the mechanisms; see the function named after it."""
    _checks.key(key)
    key = own_key(key, Domain.AGGREGATE)
    counts = check_votes(votes)
    check_threshold_against(mechanism, int(counts[0].sum()))
    if isinstance(mechanism, LaplaceNoisyMax):
        labels = _noisy_max(counts, key, 1 / mechanism.gamma, "laplace")
    elif isinstance(mechanism, GaussianNoisyMax):
        labels = _noisy_max(counts, key, mechanism.sigma, "gaussian")
    else:
        against = None
        if isinstance(mechanism, InteractiveNoisyMax):
            against = check_student(student_probs, counts)
        return _with_threshold(counts, against, key, mechanism)
    return Labels(labels, jnp.asarray(np.ones(labels.shape, np.bool_)))


def check_student(student_probs: Any, votes: np.ndarray) -> Float[np.ndarray, "examples classes"]:
    """The student's probabilities as float32, of the votes' shape; refuses what can't be probabilities."""
    student_probs = np.asarray(_checks.array("student_probs", student_probs, "give [examples, classes]"))
    if not _checks.is_real(student_probs):
        raise UsageError(f"student_probs are {student_probs.dtype}: give probabilities [examples, classes]")
    if np.shape(student_probs) != votes.shape:
        raise UsageError(
            f"student_probs have shape {np.shape(student_probs)} and votes {votes.shape}: give a probability for each class and "
            "example"
        )
    probabilities = np.asarray(student_probs, np.float32)
    totals = probabilities.sum(axis=1)
    if not (np.all(probabilities >= 0) and np.all((np.abs(totals - 1) <= 1e-3) | (totals == 0))):
        raise UsageError(
            "student_probs must be at least 0 and add up to 1 for each example, or to 0 where there was no student yet: give "
            "probabilities, not logits"
        )
    return probabilities


def _noisy_max(votes: Any, key: Key[Array, ""], scale: float, kind: str) -> Int32[Array, " examples"]:
    # Two programs: in one, the compiler fuses the draw into the search and draws everything several times over.
    return _winner(_noisy(np.asarray(votes, np.int32), key, np.float32(scale), kind))


@jax.jit(static_argnames="kind")
def _noisy(
    votes: Int32[Array | np.ndarray, "examples classes"], key: Any, scale: Any, kind: str
) -> Float32[Array, "examples classes"]:
    draw = standard_laplace if kind == "laplace" else standard_normal
    return votes.astype(jnp.float32) + scale * draw(key, votes.shape)


@jax.jit
def _winner(noisy: Float32[Array, "examples classes"]) -> Int32[Array, " examples"]:
    return jnp.argmax(noisy, axis=1).astype(jnp.int32)


def _with_threshold(
    votes: Any, against: Any, key: Key[Array, ""], mechanism: ConfidentNoisyMax | InteractiveNoisyMax
) -> Labels:
    of_threshold, of_winner = jax.random.split(key)
    counts = jnp.asarray(votes, jnp.int32)
    top = jnp.max(counts if against is None else counts - counts.sum(axis=1, keepdims=True) * against, axis=1)
    noise = jnp.float32(mechanism.sigma_threshold) * standard_normal(of_threshold, top.shape)
    answered = top.astype(jnp.float32) + noise >= mechanism.threshold
    winner = _noisy_max(votes, of_winner, mechanism.sigma_max, "gaussian")
    own = jnp.full(winner.shape, -1, jnp.int32)
    if against is not None and isinstance(mechanism, InteractiveNoisyMax):
        confident = against.max(axis=1) >= mechanism.student_confidence
        own = jnp.where(confident, against.argmax(axis=1).astype(jnp.int32), own)
    return Labels(jnp.where(answered, winner, own), answered)
