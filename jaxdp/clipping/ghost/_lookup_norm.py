r"""The norm of a table's gradient: cotangents of lookups of the same entry are added up, and nothing else can meet.

With the sums \(s_v = \sum_{t: e_t = v} g_t\) the squared norm is \(\sum_v \lVert s_v\rVert^2\). A float32 sum of k rows is off
by at most \(\gamma_{k-1} \sum_t \lVert g_t\rVert\), which is added to the norm: nothing for an entry looked up once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._norm import UNIT_ROUNDOFF, sum_in_blocks, sum_in_blocks_error

_COMPARE_ALL_PAIRS_BELOW = 256


def square_of_lookups(
    entry: Int[Array, "E T"], rows: Float[Array, "E T d"], lengths: Float[Array, "E T"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The square of the norm, and its error.

    Args:
        entry: which entry each lookup took; -1 for a lookup outside the table, whose gradient is zero.
        rows: the lookups' cotangents.
        lengths: at least the length of each row.

    Returns:
        float32 scalars; NaN or inf where a row has a NaN or infinite entry.
    """
    inside = (entry >= 0).astype(jnp.float32)
    add_up = jax.vmap(lambda group, values: jnp.zeros_like(values).at[group].add(values))
    group = jax.vmap(_groups)(entry)
    sums = add_up(group, rows * inside[:, :, None])
    repeats = jnp.maximum(add_up(group, inside) - 1, 0)
    off = repeats * add_up(group, lengths * inside)  # in units of 1.01 times the roundoff
    square = sum_in_blocks(sums.reshape(1, -1) ** 2)[0]
    missing = jnp.sqrt(jnp.sum(jnp.square(off))) * jnp.float32(1.02 * UNIT_ROUNDOFF)
    error = square * jnp.float32(sum_in_blocks_error(sums.size))
    return square, error + missing * (2.02 * jnp.sqrt(square) + missing)


def _groups(entry: Int[Array, " T"]) -> Int[Array, " T"]:
    """A number below T for each lookup, the same for lookups of the same entry and for no others."""
    if entry.size <= _COMPARE_ALL_PAIRS_BELOW:
        return jnp.argmax(entry[:, None] == entry[None, :], axis=1).astype(
            jnp.int32
        )  # the first of them, unmaterialised
    order = jnp.argsort(entry)
    ordered = entry[order]
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])
    return jnp.zeros(entry.size, jnp.int32).at[order].set(jnp.cumsum(starts))
