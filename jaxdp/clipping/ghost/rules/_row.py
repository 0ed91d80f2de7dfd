"""The rule of a table's row at one index, `table[user]`: a lookup that JAX writes as a dynamic slice, not as a gather.

One entry of each axis that is indexed, all of every other. Its vectors and its norm are those of a lookup.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ....jaxprs._jaxpr import DYNAMIC_SLICE, Eqn
from ._embedding import MOST_ENTRIES, entries_at, layout_of_lookups, merge, squared_counts
from ._rule import INDICES, Dense, Layout, OneHot, OuterProducts, Rule, knows_settings, widen_index

_SETTINGS = frozenset({"slice_sizes"})


def _indexed(eqn: Eqn) -> tuple[int, ...]:
    """The axes of which not all is taken."""
    sizes = zip(eqn.params["slice_sizes"], eqn.invars[0].aval.shape, strict=True)
    return tuple(axis for axis, (size, n) in enumerate(sizes) if size != n)


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use: one entry of some axes, by indices whose types number all of them."""
    if eqn.primitive is not DYNAMIC_SLICE or operand != 0 or not knows_settings(eqn, _SETTINGS):
        return False
    table, indexed = eqn.invars[0].aval.shape, _indexed(eqn)
    if not indexed or any(eqn.params["slice_sizes"][axis] != 1 for axis in indexed):
        return False
    types = [eqn.invars[1 + axis].aval.dtype for axis in indexed]
    if any(dtype not in INDICES for dtype in types):
        return False
    reaches = all(table[axis] - 1 <= np.iinfo(dtype).max for axis, dtype in zip(indexed, types, strict=True))
    return reaches and math.prod(table[axis] for axis in indexed) <= MOST_ENTRIES


def layout(eqn: Eqn, operand: int) -> Layout:
    """Axes that are indexed are left (one entry of them is 1, the others 0), the rest right; there is one row."""
    return layout_of_lookups(eqn.invars[0].aval.shape, _indexed(eqn), rows=1)


def outer_products(
    eqn: Eqn, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array
) -> OuterProducts:
    """The entry that was taken, which XLA clamps to the table, and the output's cotangent as the one row."""
    sizes = [eqn.invars[0].aval.shape[axis] for axis in how.left_axes]
    indices = [widen_index(jnp.asarray(others[axis])).reshape(1) for axis in how.left_axes]
    inside = [jnp.clip(index, 0, size - 1) for index, size in zip(indices, sizes, strict=True)]
    right = jnp.transpose(cotangent, (*how.left_axes, *how.right_axes)).reshape(1, 1, how.right)
    return OuterProducts(OneHot(entries_at(inside, sizes, 1)[None]), Dense(right))


ROW = Rule(
    name="row",
    covers=covers,
    layout=layout,
    outer_products=outer_products,
    types=INDICES,
    merge=merge,
    squared_counts=squared_counts,
)
