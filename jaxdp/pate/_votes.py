"""From the teachers' predictions to votes per class, for all examples at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Integer

from .. import _checks
from .._errors import UsageError
from .._mesh import on_no_explicit_mesh

_CHUNK = 2**15  # examples counted at a time: what is read of them stays in a processor's cache
_MOST_COUNTS = 2**31 - 1
_MOST_TEACHERS = 2**24


def vote_counts(predictions: Any, num_classes: int) -> Int32[Array, "examples classes"]:
    """How many teachers voted for each class, on each example.

    Args:
        predictions: integers [teachers, examples], the class that each teacher predicts for each example; int8 takes least room.
        num_classes: m, the number of classes, whether or not all of them got votes.

    Returns:
        int32 [examples, num_classes].

    Raises:
        UsageError: for predictions that are not whole numbers from 0 to m - 1 in two dimensions, or of fewer than two teachers.

    Examples:
        >>> import jax.numpy as jnp
        >>> vote_counts(jnp.array([[0, 2], [0, 1], [1, 2]]), num_classes=3).tolist()
        [[2, 1, 0], [0, 1, 2]]
    """
    classes = _checks.count("num_classes", num_classes, "give the number of classes")
    if classes < 2:
        raise UsageError(f"num_classes={num_classes} leaves nothing to vote on: give 2 or more")
    predictions = _checks.array("predictions", predictions, "give integers [teachers, examples]")
    understood = check_predictions(predictions)
    if classes * predictions.shape[1] > _MOST_COUNTS:
        raise UsageError(
            f"num_classes={classes} of {predictions.shape[1]} examples are more counts than {_MOST_COUNTS:,}: give the number of "
            "the task's classes, or fewer examples at a time"
        )
    predictions = on_no_explicit_mesh(predictions)
    if predictions.dtype.itemsize > 4:  # which JAX would cut to 32 bits: what is out of range stays so
        predictions = np.clip(np.asarray(predictions), -1, np.iinfo(np.int32).max).astype(np.int32)
    counts, low, high = _count(predictions, classes)
    if low < 0 or high >= classes:
        raise UsageError(
            f"predictions ({understood}) hold {low if low < 0 else high}, and with num_classes={classes} a class is a number "
            f"from 0 to {classes - 1}: give each class its number"
        )
    return counts


def check_predictions(predictions: Any) -> str:
    """Refuse what can't be teachers' predictions; returns how they were understood."""
    if not _checks.is_array(predictions):
        raise UsageError(
            f"predictions are a {type(predictions).__name__}: give an array of integers [teachers, examples]"
        )
    shape = np.shape(predictions)
    if len(shape) != 2 or 0 in shape:
        raise UsageError(f"predictions have shape {shape}: give [teachers, examples]")
    understood = f"understood as {shape[0]} teachers x {shape[1]} examples"
    if not jnp.issubdtype(predictions.dtype, jnp.integer):
        raise UsageError(
            f"predictions ({understood}) are {predictions.dtype}, and a vote is a whole number: give classes, such as "
            "probabilities.argmax(-1)"
        )
    if shape[0] == 1:
        raise UsageError(
            f"predictions ({understood}) are of one teacher: transpose them if its examples vote, or train more teachers"
        )
    return understood


def check_votes(votes: Any) -> np.ndarray:
    """Votes as int64 [queries, classes] on the host; refuses what can't be counts of votes."""
    counts = np.asarray(_checks.array("votes", votes, "give counts [queries, classes]"))
    if not _checks.is_real(counts):
        raise UsageError(f"votes are {counts.dtype}: give counts [queries, classes], as jaxdp.pate.vote_counts makes")
    if counts.ndim != 2 or counts.shape[0] == 0 or counts.shape[1] < 2:
        raise UsageError(f"votes have shape {counts.shape}: give counts [queries, classes] of two classes or more")
    whole = np.issubdtype(counts.dtype, np.integer) or bool(np.all(np.isfinite(counts) & (counts == np.round(counts))))
    if not whole:
        raise UsageError(
            f"votes are {counts.dtype} and not whole numbers: give counts, as jaxdp.pate.vote_counts makes"
        )
    if np.any(counts < 0):
        raise UsageError(f"votes hold {counts.min()}: a count can't be negative")
    if (
        int(counts.max()) > _MOST_TEACHERS
    ):  # before they are added up: in their own type, or in 64 bits, they could wrap
        raise _too_many(int(counts.max()))
    counts = counts.astype(np.int64)
    totals = counts.sum(axis=1)
    if np.any(totals != totals[0]):
        raise UsageError(
            f"votes add up to {totals.min()} in one row and {totals.max()} in another: every teacher votes once on every query"
        )
    if totals[0] < 2:
        raise UsageError(f"votes are of {totals[0]} teacher: one teacher's vote can't hide behind others")
    if totals[0] > _MOST_TEACHERS:
        raise _too_many(int(totals[0]))
    return counts


def _too_many(teachers: int) -> UsageError:
    return UsageError(
        f"votes are of {teachers:,} teachers or more: noise is added in float32, which counts no further than {_MOST_TEACHERS:,}"
    )


@jax.jit(static_argnames="classes")
def _count(
    predictions: Integer[Array | np.ndarray, "teachers examples"], classes: int
) -> tuple[Int32[Array, "examples classes"], Integer[Array, ""], Integer[Array, ""]]:
    """The counts, and the lowest and the highest prediction."""
    examples = predictions.shape[1]
    chunk = min(_CHUNK, examples)
    numbers = jnp.arange(classes, dtype=jnp.int32)[:, None]

    def count_vote(counts: Int32[Array, "classes chunk"], votes: Integer[Array, " chunk"]) -> tuple[Any, None]:
        return counts + (votes.astype(jnp.int32)[None] == numbers).astype(jnp.int32), None

    def counts(start: Any) -> Int32[Array, "chunk classes"]:
        part = jax.lax.dynamic_slice_in_dim(predictions, start, chunk, axis=1)
        return jax.lax.scan(count_vote, jnp.zeros((classes, chunk), jnp.int32), part)[0].T

    starts = jnp.minimum(jnp.arange(0, examples, chunk, dtype=jnp.int32), examples - chunk)
    parts = jax.lax.map(counts, starts)
    whole = parts[:-1].reshape(-1, classes)
    rest = examples - whole.shape[0]
    return jnp.concatenate([whole, parts[-1, chunk - rest :]]), jnp.min(predictions), jnp.max(predictions)
