"""Noisy aggregation: labels for all examples in one call, from votes and noise."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int32, Integer, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._votes import check_votes
from .aggregators import (
    Aggregator,
    ConfidentNoisyMax,
    GaussianNoisyMax,
    InteractiveNoisyMax,
    Labels,
    LaplaceNoisyMax,
    check_aggregator,
)

Votes = Integer[Array | np.ndarray, "examples classes"]


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

    Examples:
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


def aggregate(votes: Votes, mechanism: Aggregator, *, key: Key[Array, ""], student_probs: Any = None) -> Labels:
    """Labels by any aggregator: one of `jaxdp.pate`'s (see the function named after it), or one of your own.

    Args:
        votes: counts [examples, classes].
        mechanism: a value such as `jaxdp.pate.GaussianNoisyMax`.
        key: scalar key, used for this and nothing else.
        student_probs: the student's probabilities [examples, classes], for an aggregator that asks one.

    Returns:
        `Labels`.

    Raises:
        UsageError: for what is no aggregator, votes that aren't counts, teachers that the aggregator can't ask, probabilities of
            another shape where it asks a student, or what is not a key.
    """
    _checks.key(key)
    check_aggregator(mechanism)
    counts = check_votes(votes)
    mechanism.check_teachers(int(counts[0].sum()))
    student = check_student(student_probs, counts) if mechanism.asks_student else None
    return mechanism.aggregate(counts, key=own_key(key, Domain.AGGREGATE), student_probs=student)


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
