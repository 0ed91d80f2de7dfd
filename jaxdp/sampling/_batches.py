"""A sampler's draws: at the shape of all examples, or cut to a padded batch for a loop of the user's own."""

import collections
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int32

from .. import _checks
from .._errors import UsageError

_ALL_TAKEN = "_all_taken"  # of a sampler whose batches have been taken to their end, which is none of its fields
_AHEAD = 2  # draws made before they are asked for, so that reading their count doesn't wait for a training step


class Draw(NamedTuple):
    """One draw: `indices[:size]` are the examples drawn; the rest is padding, `num_examples`, which is no example's."""

    indices: Int32[Array, " num_examples"]
    size: Int32[Array, ""]


class PaddedBatch(NamedTuple):
    """A draw cut to a batch: `mask` tells the drawn examples from the padding, whose index `num_examples` is no example's.

    `rows_at` reads zeros there; `array[indices]` reads the last row in JAX, and is an error in NumPy.
    """

    indices: Int32[Array, " capacity"]
    mask: Bool[Array, " capacity"]


@runtime_checkable
class Sampler(Protocol):
    """The contract of a sampler. `usual_size` is a size that few draws exceed; `steps` how many batches an iteration gives."""

    @property
    def num_examples(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def usual_size(self) -> float: ...

    def draw(self, step: int | Int32[Array, ""]) -> Draw:
        """The draw of one step (counted from 0), at the shape of all examples; can be traced."""
        ...

    def batch(self, step: int) -> PaddedBatch:
        """The draw of one step as a padded batch."""
        ...

    def take(self, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
        """All batches of the data, step by step, each with its mask."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PaddedBatch]: ...


@partial(jax.jit, static_argnums=0)
def _compiled_draw(kind: type, sampler: Sampler, step: Int32[Array, ""]) -> Draw:
    return kind.draw(sampler, step)


def _draw(sampler: Sampler, step: int) -> Draw:
    """The draw of a step, compiled once for all samplers of a class that is registered as a pytree."""
    if jax.tree_util.all_leaves([sampler]):
        return sampler.draw(step)
    return _compiled_draw(type(sampler), sampler, np.int32(step))  # pyright: ignore[reportArgumentType]


def check_step(key: Any, step: Any) -> Any:
    """The number of a step, checked, as is the sampler's key, which a copy made by `jax.tree.map` may lack."""
    _checks.key(key)
    return step if isinstance(step, Tracer) else _checks.step("step", step)


def make_batch(sampler: Sampler, step: int, capacity: int) -> PaddedBatch:
    """The draw of one step as a padded batch: `capacity` rows, or the next multiple that holds the whole draw."""
    _check_key(sampler)
    number = _checks.step("step", step)
    if number >= sampler.steps:
        raise UsageError(
            f"step={number} is not below the sampler's steps={sampler.steps}: no further draw is of the run, or accounted"
        )
    return _cut(_draw(sampler, number), capacity)


def drawn_indices(sampler: Sampler, step: int) -> np.ndarray:
    """int32 [size], on the host: the indices of the examples drawn at a step, in the order of the draw."""
    draw = _draw(sampler, step)
    size, usual = int(draw.size), math.ceil(sampler.usual_size)
    return np.asarray(draw.indices[: usual * math.ceil(size / usual)])[:size]  # copied in one of few lengths


def iterate_batches(sampler: Sampler, capacity: int) -> Iterator[PaddedBatch]:
    """All batches, step by step."""
    _check_key(sampler)
    draws = (_draw(sampler, step) for step in range(sampler.steps))
    queue = collections.deque(itertools.islice(draws, _AHEAD))
    while queue:
        queue.extend(itertools.islice(draws, 1))
        yield _cut(queue.popleft(), capacity)


def iterate_rows(sampler: Sampler, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
    """All batches of the data, checked now: (rows, mask), rows of padding zeros.

    Args:
        sampler: of batches.
        arrays: pytree of arrays [num_examples, ...]; NumPy's are read on the host, a batch at a time.

    Returns:
        An iterator of pairs.

    Raises:
        UsageError: for an array of another number of rows than `num_examples`, or whose rows are divided over a mesh of axes that
            JAX doesn't divide by itself; and where all batches have been taken before.
    """
    check_rows(arrays, sampler.num_examples)
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        if isinstance(leaf, jax.Array) and any(jax.typeof(leaf).sharding.spec):
            raise UsageError(
                f"arrays{jax.tree_util.keystr(path)} is divided over {leaf.sharding}, from which no rows are read one by one: "
                "give arrays of the host, np.asarray(array), or take the steps by run.make_step, which divides them itself"
            )
    if vars(sampler).get(_ALL_TAKEN):
        raise UsageError(
            f"take has given all {sampler.steps} batches of the run, and these are the same once more: a loop over it is the "
            "whole run, all of its epochs; for a further run make a sampler with a key of its own, and describe that run, too"
        )
    return _rows_of_all(sampler, arrays)


def _rows_of_all(sampler: Sampler, arrays: Any) -> Iterator[tuple[Any, Bool[Array, " capacity"]]]:
    for batch in sampler:
        yield jax.tree.map(partial(rows_at, indices=batch.indices), arrays), batch.mask
    vars(sampler)[_ALL_TAKEN] = True


def check_rows(arrays: Any, num_examples: int) -> None:
    """Refuse data of another size than the sampler draws from: beyond its end, JAX reads the last record again and again."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    if not leaves:
        raise UsageError("arrays has no leaves: pass a pytree of arrays with num_examples rows each")
    for path, leaf in leaves:
        _checks.unmasked(f"arrays{jax.tree_util.keystr(path)}", leaf, "give arrays [num_examples, ...]")
        if (not hasattr(leaf, "shape") and hasattr(leaf, "__len__")) or _checks.only_looks_like_an_array(leaf):
            raise UsageError(
                f"arrays{jax.tree_util.keystr(path)} is a {type(leaf).__name__} and no array: give arrays [num_examples, ...]; "
                "records that are read as they are drawn, jaxdp.reading.Source, go into the step of run.make_step"
            )
        rows = np.shape(leaf)[0] if np.ndim(leaf) else None
        if rows != num_examples:
            raise UsageError(
                f"arrays{jax.tree_util.keystr(path)} has {'no' if rows is None else rows} rows and the sampler draws from "
                f"num_examples={num_examples}: its rate, and so epsilon, would be false; pass all the data that the run "
                "describes, or describe the run with the number of examples it trains on"
            )


def rows_at(leaf: Any, indices: Int32[Array, " rows"]) -> Any:
    """The rows of an array [num_examples, ...] at a draw's indices, zeros at those of padding; can be traced."""
    if isinstance(leaf, np.ndarray) and not isinstance(indices, Tracer):
        chosen = np.asarray(indices)
        inside = chosen < len(leaf)
        rows = leaf[np.where(inside, chosen, 0)]
        rows[~inside] = np.zeros((), leaf.dtype)
        return rows
    return jnp.asarray(leaf).at[indices].get(mode="fill", fill_value=0)


def _check_key(sampler: Any) -> None:
    _checks.key(sampler.key)
    if isinstance(sampler.key, Tracer):
        raise UsageError(
            "key is traced by jax, and a padded batch is cut on the host: call it outside of jax.jit, or use draw"
        )


def draw_of_mask(drawn: Bool[Array, " num_examples"]) -> Draw:
    """The draw of those where `drawn` is True, in ascending order."""
    size = drawn.shape[0]
    rank = jnp.cumsum(drawn.astype(jnp.int32))
    target = jnp.where(drawn, rank - 1, size)
    positions = jnp.arange(size, dtype=jnp.int32)
    return Draw(jnp.full(size, size, jnp.int32).at[target].set(positions, mode="drop"), rank[-1])


def _cut(draw: Draw, capacity: int) -> PaddedBatch:
    count, available = int(draw.size), draw.indices.shape[0]
    rows = capacity * max(1, math.ceil(count / capacity))
    indices = jnp.pad(draw.indices, (0, max(0, rows - available)), constant_values=available)[:rows]
    return PaddedBatch(indices, jnp.arange(rows, dtype=jnp.int32) < count)
