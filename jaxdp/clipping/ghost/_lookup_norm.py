r"""The norm of a table's gradient: cotangents of lookups of the same entry are added up, and nothing else can meet.

With the sums \(s_v = \sum_{t: e_t = v} g_t\) the squared norm is \(\sum_v \lVert s_v\rVert^2\). A float32 sum of k rows is off
by at most \(\gamma_{k-1} \sum_t \lVert g_t\rVert\), which is added to the norm: nothing for an entry looked up once. Where
all \(g_t\) are the same, as in a bag of words, it is \(\lVert g\rVert^2 \sum_v k_v^2\) with the counts \(k_v\).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._norm import UNIT_ROUNDOFF, sum_in_blocks, sum_in_blocks_error

_COMPARE_ALL_PAIRS_BELOW = 256


def square_of_lookups(
    entry: Int[Array, "E T"], rows: Float[Array, "E #T d"], lengths: Float[Array, "E #T"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The square of the norm, and its error.

    Args:
        entry: which entry each lookup took; -1 for a lookup outside the table, whose gradient is zero.
        rows: the lookups' cotangents; [E, 1, d] if they are all the same.
        lengths: at least the length of each row.

    Returns:
        float32 scalars; NaN or inf where a row has a NaN or infinite entry.
    """
    if rows.shape[1] < entry.shape[1]:
        squares = jax.vmap(_squared_counts)(entry) * sum_in_blocks(jnp.square(rows[:, 0]))
        bound = sum_in_blocks_error(rows.shape[2]) + sum(entry.shape) * UNIT_ROUNDOFF
        return jnp.sum(squares), jnp.sum(squares) * jnp.float32(bound)
    inside = (entry >= 0).astype(jnp.float32)
    add_up = jax.vmap(lambda group, values: jnp.zeros_like(values).at[group].add(values))
    group = jax.vmap(_groups)(entry)
    sums = add_up(group, rows * inside[:, :, None])
    repeats = jnp.maximum(add_up(group, inside) - 1, 0)
    off = repeats * add_up(group, lengths * inside)
    square = sum_in_blocks(sums.reshape(1, -1) ** 2)[0]
    missing = jnp.sqrt(jnp.sum(jnp.square(off))) * jnp.float32(1.01 * UNIT_ROUNDOFF / (1 - entry.size * UNIT_ROUNDOFF))
    error = square * jnp.float32(sum_in_blocks_error(sums.size))
    return square, error + missing * (2.02 * jnp.sqrt(square) + missing)


def _squared_counts(entry: Int[Array, " T"]) -> Float[Array, ""]:
    """Σ_v k_v², which is the number of pairs of lookups of the same entry."""
    inside = entry >= 0
    if entry.size <= _COMPARE_ALL_PAIRS_BELOW:
        return jnp.sum((entry[:, None] == entry[None, :]) & inside[None, :], dtype=jnp.int32).astype(jnp.float32)
    return jnp.sum(jnp.square(jnp.zeros(entry.size, jnp.float32).at[_groups(entry)].add(inside.astype(jnp.float32))))


def _groups(entry: Int[Array, " T"]) -> Int[Array, " T"]:
    """A number below T for each lookup, the same for lookups of the same entry and for no others."""
    if entry.size <= _COMPARE_ALL_PAIRS_BELOW:
        first = jnp.argmax(entry[:, None] == entry[None, :], axis=1)  # unlike a minimum, it fuses with the comparison
        return first.astype(jnp.int32)
    order = jnp.argsort(entry)
    ordered = entry[order]
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])
    return jnp.zeros(entry.size, jnp.int32).at[order].set(jnp.cumsum(starts))
