"""Disjoint shards: every record to exactly one teacher, at random."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key


def shards(num_examples: int, num_teachers: int, key: Key[Array, ""]) -> Int32[np.ndarray, "teachers size"]:
    """The records of each teacher: a random partition into shards whose sizes differ by at most one.

    Args:
        num_examples: n.
        num_teachers: from 2 to n.
        key: scalar key, used for this and nothing else.

    Returns:
        int32 [num_teachers, ceil(n / num_teachers)]: row numbers, each from 0 to n - 1 exactly once; -1 ends a shorter shard.

    Raises:
        UsageError: for fewer than two teachers, or more teachers than records.

    Examples:
        >>> import jax
        >>> shards(5, 2, jax.random.key(0)).tolist()
        [[3, 2, 0], [4, 1, -1]]
    """
    _checks.key(key)
    size = size_of_shards(num_examples, num_teachers)
    order = np.asarray(jax.random.permutation(own_key(key, Domain.SHARDS), num_examples), np.int32)
    dealt = np.full((size, num_teachers), -1, np.int32)
    dealt.reshape(-1)[:num_examples] = order  # dealt like cards, so that the short shards are short by one
    return dealt.T.copy()


def size_of_shards(num_examples: int, num_teachers: int) -> int:
    """The size of the larger shards; refuses numbers for which there are no shards."""
    examples = _checks.count("num_examples", num_examples, "give the number of records")
    teachers = _checks.count("num_teachers", num_teachers, "give the number of teachers")
    if teachers < 2:
        raise UsageError(
            "num_teachers=1: one teacher's vote can't hide behind others; give 2 or more, and hundreds for a small epsilon"
        )
    if teachers > examples:
        raise UsageError(
            f"num_teachers={teachers} exceeds the {examples} records, and no record may teach twice: give at most {examples}"
        )
    return -(-examples // teachers)


def warn_of_missing_classes(of_teacher: Int32[np.ndarray, "teachers size"], labels: Any) -> None:
    """One warning where a shard has no record of some class: its teacher can't vote for that class."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return
    classes, numbers = np.unique(labels, return_inverse=True)
    held = np.zeros((len(of_teacher), len(classes)), bool)
    teacher, position = np.nonzero(of_teacher >= 0)
    held[teacher, numbers[of_teacher[teacher, position]]] = True
    lacking = np.flatnonzero(~held.all(axis=1))
    if len(lacking):
        first = lacking[0]
        warnings.warn(
            f"{len(lacking)} of {len(held)} teachers have no record of some class (teacher {first} none of class "
            f"{classes[~held[first]][0]}) and can't vote for it: fewer teachers would have more records each",
            stacklevel=3,
        )


def gathered(data: Any, rows: Int32[np.ndarray, "teachers size"]) -> Any:
    """The teachers' records, [teachers, size, ...] on the host; where a shard is short, its first record again."""
    own = np.where(rows >= 0, rows, rows[:, :1])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[own], data)


def check_records(data: Any) -> int:
    """The number of records in (inputs, labels); refuses what has no common leading axis."""
    if not (isinstance(data, tuple) and len(data) == 2):
        raise UsageError(f"data is {type(data).__name__}: give the pair (inputs, labels), one record a row")
    return check_inputs(data)


def check_inputs(inputs: Any) -> int:
    """The length of the leading axis that all leaves share; refuses what has none, or no values."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        _checks.array(f"inputs{jax.tree_util.keystr(path)}", leaf, "give arrays of numbers, one record a row")
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(inputs)}
    if len(sizes) != 1 or 0 in sizes:
        raise UsageError(f"leading axes {sorted(sizes)} don't agree: give one record a row, in inputs and labels alike")
    return sizes.pop()


def positions(key: Key[Array, ""], size: int, epochs: int, batch_size: int) -> Int32[Array, "steps batch"]:
    """Positions within a shard for every step: one random order after another, cut into batches."""
    steps = epochs * size // batch_size
    orders = jax.vmap(lambda each: jax.random.permutation(each, size))(jax.random.split(key, epochs))
    return orders.reshape(-1)[: steps * batch_size].reshape(steps, batch_size).astype(jnp.int32)
