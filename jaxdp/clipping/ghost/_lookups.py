r"""The norm of a table's gradient in one pass over the cotangents, for devices on which passes over memory are what counts.

Lookups of different entries are as long as all their rows together; of lookups whose cotangents are all the same, the squared
norm is \(\lVert g\rVert^2 \sum_v k_v^2\) (`rules/_embedding.py`). In either case nothing cancels, so that squares are added up as
those of gradients that are formed (`_rounded`): what they may have lost below float32's range is added, and the norm is inf from
1e19 on. `_norms` scales the rows before it squares them, in three passes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arithmetic import Arithmetic
from .._clip import Norm
from .._norm import SMALLEST, UNIT_ROUNDOFF, are_added_up_by_products, sum_of_squares_error
from ._rounded import ROOTS, squares_of_formed
from .rules import Dense, OneHot, OuterProducts
from .rules._rule import SquaredCounts


def squares_of_lookups(use: OuterProducts, arithmetic: Arithmetic) -> Float[Array, "B E ..."]:
    """Of a batch, what `norm_of_lookups` takes the totals of, along all axes but the first two.

    Args:
        use: lookups of different entries, or of whatever entries with one right row for all, in float32: [B, E, T, ...].
        arithmetic: of norms.
    """
    assert isinstance(use.left, OneHot)
    assert isinstance(use.right, Dense)
    entry, rows = use.left.entry, use.right.rows
    if rows.shape[2] == entry.shape[2]:  # whatever was read outside the table, the gradient of that is zero
        rows = jnp.where(entry[..., None] >= 0, rows, 0)
    (squares,) = squares_of_formed([rows.reshape(-1, *rows.shape[2:])], arithmetic)
    return squares.reshape(*rows.shape[:2], *squares.shape[2:])


def norm_of_lookups(
    use: OuterProducts, squared_counts: SquaredCounts, arithmetic: Arithmetic, totals: Sequence[Float[Array, "B E"]]
) -> Norm:
    """The norms of the gradients, [B].

    Args:
        use: as for `squares_of_lookups`, of which `totals` has the totals.
        squared_counts: of the rule.
        arithmetic: of norms.
        totals: one array.
    """
    assert isinstance(use.left, OneHot)
    assert isinstance(use.right, Dense)
    (total,), entry = totals, use.left.entry
    (stack, rows, entries), lookups = use.right.rows.shape[1:], entry.shape[2]
    # A rounding for each lookup: half of them for the counts, half for a sum that adds the row to one entry as often.
    worst = sum_of_squares_error((rows, entries)) + (stack + lookups + 4) * UNIT_ROUNDOFF
    worst += arithmetic.square_roundoff if are_added_up_by_products((1, rows, entries), (0,)) else 0
    each = total + jnp.float32(2 * SMALLEST * rows * entries)
    if rows < lookups:
        each *= jax.vmap(squared_counts)(entry)
    value = jnp.sqrt(jnp.sum(each, axis=1))
    return Norm(value, value * jnp.float32(1 + worst + ROOTS))
