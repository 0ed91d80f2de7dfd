"""Walk a batch in microbatches: memory for a few examples at a time, time for the examples that are there.

The loop ends at the last microbatch that holds an unmasked row. A Poisson batch, padded at its end, thus costs what its
draw costs, and one compiled program serves every draw.

Microbatches are faster, too, on a CPU: what one computes stays in the caches, and in memory that the process already has,
where a large temporary is mapped afresh at every call. Each one costs a pass over the parameters, though.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

_CPU_BYTES = 24 * 2**20  # from 32 MiB on, glibc maps a temporary anew at every call
_FEW_ROWS = 64


def in_microbatches(
    one_microbatch: Callable[[Any, Bool[Array, " m"], Int32[Array, ""]], tuple[Any, Any]],
    batch: Any,
    mask: Bool[Array, " B"],
    microbatch_size: int,
) -> tuple[Any, Any]:
    """Apply `one_microbatch(batch, mask, start) -> (total, rows)` to slices of a batch and join the results.

    Args:
        one_microbatch: the function for a slice: `total` has no batch axis, every leaf of `rows` has a leading one;
            `start` is the position of the slice's first row.
        batch: pytree [B, ...].
        mask: bool [B].
        microbatch_size: rows of a slice; the last is filled up with masked copies of the first row.

    Returns:
        The totals added up, and the rows joined to [B, ...]; rows never reached are zero.
    """
    size = mask.shape[0]
    slices = -(-size // microbatch_size)
    missing = slices * microbatch_size - size
    batch = jax.tree.map(lambda leaf: _append_copies_of_first_row(leaf, missing), batch)
    last_row = jnp.max(jnp.where(mask, jnp.arange(1, size + 1, dtype=jnp.int32), 0))
    needed = (last_row + microbatch_size - 1) // microbatch_size
    padded = (batch, jnp.pad(mask, (0, missing)))

    def at(start: Any) -> tuple[Any, Any]:
        rows_of = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, microbatch_size)
        batch, mask = jax.tree.map(rows_of, padded)
        return one_microbatch(batch, mask, start)

    def add_slice(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        start = i * microbatch_size
        total, rows = at(start)
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        return jax.tree.map(jnp.add, carry[0], total), jax.tree.map(write, carry[1], rows)

    total, rows = jax.eval_shape(at, jnp.int32(0))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), total)
    empty = jax.tree.map(lambda leaf: jnp.zeros((slices * microbatch_size, *leaf.shape[1:]), leaf.dtype), rows)
    total, rows = jax.lax.fori_loop(0, needed, add_slice, (nothing, empty))
    return total, jax.tree.map(lambda leaf: leaf[:size], rows)


def usual_size(rows: float, activations: int, parameters: int) -> int:
    """How many rows to process at once where the user doesn't say.

    Args:
        rows: of the batch, as many as it usually has.
        activations: bytes that are computed for one example.
        parameters: bytes of all parameters together.

    Returns:
        Rows of a microbatch: the batch in equal parts. On a CPU they need memory that the process keeps from call to call, or
        more where that would leave a few rows for each pass over the parameters; elsewhere, a quarter of the device's.
    """
    if jax.default_backend() == "cpu":
        wanted = _CPU_BYTES / max(activations, 1)
        if wanted < _FEW_ROWS:
            wanted = min(_FEW_ROWS, max(wanted, 10 * parameters / max(activations, 1)))
    else:
        wanted = _device_bytes() / 4 / max(activations, 1)
    parts = math.ceil(rows / max(wanted, 1))
    even = (n for n in range(parts, 2 * parts) if rows % n == 0)  # no rows of padding, if there is a divisor nearby
    return math.ceil(rows / next(even, parts))


def _device_bytes() -> int:
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit", 16 * 2**30)


def _append_copies_of_first_row(leaf: Any, copies: int) -> Any:
    return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (copies, *leaf.shape[1:]))])
