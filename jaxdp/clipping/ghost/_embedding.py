"""The rule of lookups: the gradient of a table has the output's cotangents at the rows that were looked up."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ...jaxprs._jaxpr import GATHER, Eqn, Opened, is_cast, is_clipping, is_sum
from ._layout import Layout
from ._rows import Dense, Factors, OneHot
from ._types import INDICES, widened

NAME = "lookup"
OTHERS = INDICES
_MOST_ENTRIES = 2**31 - 1  # an entry's number is an int32


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use: a gather of whole rows, out of a table that is not a batch of tables."""
    if eqn.primitive is not GATHER or operand != 0:
        return False
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval
    looked_up = tuple(numbers.collapsed_slice_dims)
    whole = all(
        size == (1 if axis in looked_up else table.shape[axis]) for axis, size in enumerate(eqn.params["slice_sizes"])
    )
    counted = math.prod(table.shape[axis] for axis in looked_up) <= _MOST_ENTRIES
    every = sorted(numbers.start_index_map) == list(looked_up)
    return whole and counted and every and not numbers.operand_batching_dims


def layout(eqn: Eqn, operand: int) -> Layout:
    """Axes that are looked up are left (one entry of them is 1, the others 0), the rest right; lookups are rows."""
    table, looked_up = eqn.invars[0].aval.shape, tuple(eqn.params["dimension_numbers"].collapsed_slice_dims)
    kept = tuple(i for i in range(len(table)) if i not in looked_up)
    return Layout(
        stack_axes=(),
        left_axes=looked_up,
        right_axes=kept,
        stack=1,
        rows=math.prod(eqn.invars[1].aval.shape[:-1]),
        left=math.prod(table[i] for i in looked_up),
        right=math.prod(table[i] for i in kept),
        fixed=looked_up if len(looked_up) > 1 else None,
        one_hot=True,
    )


def is_pooled(eqn: Eqn, jaxpr: Opened) -> bool:
    """Whether nothing of a lookup's output is used but its sum over the lookups, as in a bag of words."""
    out = eqn.outvars[0]
    lookups = tuple(i for i in range(out.aval.ndim) if i not in eqn.params["dimension_numbers"].offset_dims)
    while True:
        users = [user for user in jaxpr.eqns if out in user.invars]
        if len(users) != 1 or out in jaxpr.outvars:
            return False
        if not is_cast(users[0]):
            return is_sum(users[0], lookups)
        out = users[0].outvars[0]


def factors(eqn: Eqn, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array) -> Factors:
    """The factors of one example's gradient: which entry each lookup took, and the output's cotangent as rows."""
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    indices = widened(others[0].reshape(-1, others[0].shape[-1]))
    by_axis = [indices[:, numbers.start_index_map.index(axis)] for axis in how.left_axes]
    sizes = [table[axis] for axis in how.left_axes]
    inside = jnp.ones(indices.shape[0], jnp.bool_)
    if is_clipping(eqn):
        by_axis = [jnp.clip(index, 0, size - 1) for index, size in zip(by_axis, sizes, strict=True)]
    else:  # whatever was read there, the gradient of what lies outside is zero
        for index, size in zip(by_axis, sizes, strict=True):
            inside &= (index >= 0) & (index < size)
    flat = jnp.zeros(indices.shape[0], jnp.int32)
    for index, size in zip(by_axis, sizes, strict=True):
        flat = flat * size + index.astype(jnp.int32)
    # Output axes named in `offset_dims` are those of the kept axes in order; all others are the lookups'.
    kept = sorted(set(range(len(table))) - set(numbers.collapsed_slice_dims))
    at = dict(zip(kept, numbers.offset_dims, strict=True))
    lookups = [i for i in range(cotangent.ndim) if i not in numbers.offset_dims]
    right = jnp.transpose(cotangent, (*lookups, *(at[axis] for axis in how.right_axes)))
    return Factors(OneHot(jnp.where(inside, flat, -1)[None], how.left), Dense(right.reshape(1, how.rows, how.right)))
