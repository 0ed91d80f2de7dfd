"""Walk examples in microbatches: memory for a few examples at a time, time for the examples that are there.

Examples have positions, from 0 on: rows of a batch, or the examples of a draw in its order. The one reducer adds up what is
computed for each microbatch, and keeps by position what is asked for. Its loop ends at the last position that is used: a
Poisson batch, padded at its end, costs what its draw costs, and one compiled program serves every draw.

Microbatches are faster, too, on a CPU: what one computes stays in the caches, and in memory that the process already has,
where a large temporary is mapped afresh at every call. Each one costs a pass over the parameters, though.

A sum in float32 is rounded at every addition, and data can be made for which one example more or less has thousands of them
rounded the other way, so that the sum moves by several clip norms (Casacuberta et al., arXiv 2207.10635, "repeated rounding").
Of more than a few microbatches what rounding took away is added up beside the sums (Knuth, "The Art of Computer Programming",
volume 2, section 4.2.2, theorem B), and given back at the end: n examples' sum is then off by some 2⁻²³ n clip norms.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key

from .._alike import Alike
from .._platform import default_device, default_platform
from .._spread import Spread
from .._types import Batch
from ..jaxprs import as_one_value
from ..sampling import Draw, rows_at

MOST_EXAMPLES = 1024
_FEW_EXAMPLES = 64
_FEW_MICROBATCHES = 8
_WIDER = frozenset(map(jnp.dtype, ("float16", "float32", "float64")))  # than bfloat16, or finer


class Compensated(NamedTuple):
    """Sums, and of the same structure what rounding took away from them; it is given back by `given_back`."""

    sums: Any
    taken_away: Any


class Examples(NamedTuple):
    """Some examples, held at once: their rows [m, ...], bool [m], False for padding, and a key for each loss, or None."""

    batch: Batch
    mask: Bool[Array, " m"]
    keys: Key[Array, " m"] | None


# From the first position to the rows [m, ...] of the examples there and a mask [m].
Take = Callable[[Int32[Array, ""]], tuple[Any, Bool[Array, " m"]]]


def reduce_examples(
    process: Callable[[Examples], tuple[Any, Any]],
    examples_at: Callable[[Int32[Array, ""]], Examples],
    *,
    used: Int32[Array, ""],
    positions: int,
    microbatch_size: int,
    many: bool,
    onto: Any = None,
) -> tuple[Any, Any]:
    """Process examples, as many at a time as `microbatch_size` says.

    Args:
        process: from a microbatch of m examples to a pytree that is added up over all, and one [m, ...] that is kept.
        examples_at: the m examples from a position on, which is a multiple of m; masked beyond `used`.
        used: int32 scalar. Positions from here on are not looked at, but for those of a microbatch begun before.
        positions: how many there are.
        microbatch_size: m.
        many: whether there are too many microbatches, as `are_many` says, for their sums to be added up by themselves.
        onto: sums to which these are added, of an earlier call; None for none.

    Returns:
        The sums, for `given_back`, and what is kept, [positions, ...]: zeros where no microbatch came.
    """

    like, kept = jax.eval_shape(lambda: process(examples_at(jnp.int32(0))))
    leaves, structure = jax.tree.flatten(like)
    alike = Alike.of(leaves)
    stack = lambda sums: alike.stack(jax.tree.leaves(sums))

    def add(i: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        start = i * microbatch_size
        added, kept = process(examples_at(start))
        added = stack(added)
        if many:  # one number for all who read it, not a product that is rounded for some of them
            added = as_one_value(added)
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        is_first = i == 0 if onto is None else False
        total = lambda before, leaf: jnp.where(is_first, leaf, before + leaf)
        more = lambda lost, before, leaf: jnp.where(is_first, 0, lost + _taken_away(before, leaf)).astype(lost.dtype)
        lost = jax.tree.map(more, carry[1], carry[0], added) if many else carry[1]
        return jax.tree.map(total, carry[0], added), lost, jax.tree.map(write, carry[2], kept)

    microbatches = -(-positions // microbatch_size)
    turns = (used + microbatch_size - 1) // microbatch_size
    if onto is None:
        turns = jnp.maximum(turns, 1)  # of which the first doesn't look at what is in memory: zeros take a TPU a pass
        stacks = jax.eval_shape(stack, like)
        before = [jax.lax.empty(leaf.shape, leaf.dtype) for leaf in stacks]
        lost = [jax.lax.empty(leaf.shape, leaf.dtype) for leaf in stacks] if many else None
    else:
        before, lost = (stack(onto.sums), stack(onto.taken_away)) if many else (stack(onto), None)
    empty = jax.tree.map(lambda leaf: jnp.zeros((microbatches * microbatch_size, *leaf.shape[1:]), leaf.dtype), kept)
    stacks, lost, kept = jax.lax.fori_loop(0, turns, add, (before, lost, empty))
    apart = lambda stacks: structure.unflatten(alike.apart(stacks))
    sums = Compensated(apart(stacks), apart(lost)) if many else apart(stacks)
    return sums, jax.tree.map(lambda leaf: leaf[:positions], kept)


def are_many(examples: float, microbatch_size: int) -> bool:
    """Whether so many examples, as a rule, are more than a few microbatches."""
    return examples > _FEW_MICROBATCHES * microbatch_size


def given_back(sums: Any) -> Any:
    """The sums of `reduce_examples`, with what rounding took away from them."""
    return jax.tree.map(jnp.add, *sums) if isinstance(sums, Compensated) else sums


def _taken_away(before: Any, leaf: Any) -> Any:
    """What rounding takes away from a sum of two, which is a number of their type itself; 0 where the sum isn't finite."""
    total = before + leaf
    of_leaf = total - before
    return jnp.where(jnp.isfinite(total), (before - (total - of_leaf)) + (leaf - of_leaf), 0)


def slice_batch(batch: Batch, mask: Bool[Array, " B"], microbatch_size: int) -> tuple[Take, Int32[Array, ""]]:
    """How to take the rows of a batch [B, ...], and how many positions are used: up to the last row that isn't masked.

    The last slice is filled up with masked copies of the first row.
    """
    size = mask.shape[0]
    missing = -(-size // microbatch_size) * microbatch_size - size
    batch = jax.tree.map(lambda leaf: _append_copies_of_first_row(leaf, missing), batch)
    used = jnp.max(jnp.where(mask, jnp.arange(1, size + 1, dtype=jnp.int32), 0))
    padded = (batch, jnp.pad(mask, (0, missing)))

    def take(start: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, microbatch_size), padded)

    return take, used


def gather_drawn(data: Any, draw: Draw, microbatch_size: int, spread: Spread | None) -> tuple[Take, Int32[Array, ""]]:
    """How to take the examples of a draw out of data [n, ...], and how many there are. Padding is zeros: no record is in it.

    With a `spread`, within its `on_each`, a device takes its own part of them.
    """
    num_examples = draw.indices.shape[0]
    indices = jnp.pad(draw.indices, (0, microbatch_size), constant_values=num_examples)

    def take(start: Any) -> tuple[Any, Any]:
        chosen = jax.lax.dynamic_slice_in_dim(indices, start, microbatch_size)
        mask = start + jnp.arange(microbatch_size, dtype=jnp.int32) < draw.size
        read = rows_at if spread is None else functools.partial(spread.own_rows, read=rows_at)
        rows = jax.tree.map(lambda leaf: _in_their_type(read(leaf, chosen)), data)
        return rows, mask if spread is None else spread.own(mask)

    return take, draw.size


def _in_their_type(rows: Any) -> Any:
    """The same rows, of which a TPU's compiler can't know what they are read in.

    Where that is bfloat16 alone, it would make all of the data bfloat16 first, at every step, and take the rows then.
    """
    if rows.dtype not in _WIDER:
        return rows
    through = lambda x: jax.lax.optimization_barrier(x.view(f"uint{8 * x.dtype.itemsize}")).view(x.dtype)
    return jax.lax.platform_dependent(rows, tpu=through, default=lambda x: x)


def usual_microbatch_size(examples: float, activations: int, parameters: int) -> int:
    """How many examples to process at once where the user doesn't say.

    Args:
        examples: of the batch, as many as it usually has.
        activations: bytes that are computed for one example.
        parameters: bytes of all parameters together.

    Returns:
        The size of a microbatch: the batch in equal parts. On a CPU they need memory that the process keeps from call to call,
        or more where that would leave a few examples for each pass over the parameters; elsewhere, a quarter of the device's.
        It is no larger than leaves the sum of each far from what rounding could make of it.
    """
    room = default_platform().microbatch_bytes
    wanted = (room or _device_bytes() / 4) / max(activations, 1)
    if room and wanted < _FEW_EXAMPLES:
        wanted = min(_FEW_EXAMPLES, max(wanted, 10 * parameters / max(activations, 1)))
    parts = math.ceil(examples / min(max(wanted, 1), MOST_EXAMPLES))
    even = (n for n in range(parts, 2 * parts) if examples % n == 0)  # no padding, if there is a divisor nearby
    return math.ceil(examples / next(even, parts))


def _device_bytes() -> int:
    statistics = default_device().memory_stats() or {}
    return statistics.get("bytes_limit", 16 * 2**30)


def _append_copies_of_first_row(leaf: Any, copies: int) -> Any:
    return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (copies, *leaf.shape[1:]))])
