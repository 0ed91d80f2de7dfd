r"""The rule of lookups: the gradient of a table has the output's cotangents at the entries that were looked up.

Cotangents of lookups of the same entry are added up, and nothing else can meet: with the sums
\(s_v = \sum_{t: e_t = v} g_t\) the squared norm is \(\sum_v \lVert s_v\rVert^2\). They are made once for each example, and it is
they that clipped sums are made of: cotangents that cancel, far longer than their sum, must not meet in the sum over the batch,
where their rounding would take others' gradients with it. Where all \(g_t\) are the same, as in a bag of words, nothing cancels,
and the squared norm is \(\lVert g\rVert^2 \sum_v k_v^2\) with the counts \(k_v\).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from ....jaxprs._jaxpr import GATHER, Eqn, JaxprParts, clamps_indices, is_cast, is_sum
from ._rule import INDICES, Dense, Layout, Lookups, OneHot, OuterProducts, Rule, knows_settings, widen_index

_SETTINGS = frozenset(
    {"dimension_numbers", "fill_value", "indices_are_sorted", "mode", "slice_sizes", "unique_indices"}
)
MOST_ENTRIES = 2**31 - 1  # an entry's number is an int32
_COMPARE_ALL_PAIRS_BELOW = 256


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use: a gather of whole rows, out of a table that is not a batch of tables."""
    if eqn.primitive is not GATHER or operand != 0 or not knows_settings(eqn, _SETTINGS):
        return False
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval
    looked_up = tuple(numbers.collapsed_slice_dims)
    whole = all(
        size == (1 if axis in looked_up else table.shape[axis]) for axis, size in enumerate(eqn.params["slice_sizes"])
    )
    counted = math.prod(table.shape[axis] for axis in looked_up) <= MOST_ENTRIES
    every = sorted(numbers.start_index_map) == list(looked_up)
    return whole and counted and every and not numbers.operand_batching_dims


def layout(eqn: Eqn, operand: int) -> Layout:
    """Axes that are looked up are left (one entry of them is 1, the others 0), the rest right; lookups are rows."""
    looked_up = tuple(eqn.params["dimension_numbers"].collapsed_slice_dims)
    return layout_of_lookups(eqn.invars[0].aval.shape, looked_up, math.prod(eqn.invars[1].aval.shape[:-1]))


def layout_of_lookups(table: tuple[int, ...], looked_up: tuple[int, ...], rows: int) -> Layout:
    """That of so many lookups on some axes of a table of that shape, however they are written."""
    kept = tuple(i for i in range(len(table)) if i not in looked_up)
    return Layout(
        stack_axes=(),
        left_axes=looked_up,
        right_axes=kept,
        stack=1,
        rows=rows,
        left=math.prod(table[i] for i in looked_up),
        right=math.prod(table[i] for i in kept),
        fixed=looked_up if len(looked_up) > 1 else None,
        one_hot=True,
    )


def entries_at(by_axis: Sequence[Integer[Array, " T"]], sizes: Sequence[int], lookups: int) -> Int[Array, " T"]:
    """The number of the entry that each lookup takes, from its indices inside of axes of those sizes."""
    flat = jnp.zeros(lookups, jnp.int32)
    for index, size in zip(by_axis, sizes, strict=True):
        flat = flat * size + index.astype(jnp.int32)
    return flat


def outer_products(
    eqn: Eqn, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array
) -> OuterProducts:
    """The entry that each lookup took, and the output's cotangent as rows."""
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    indices = widen_index(others[0].reshape(-1, others[0].shape[-1]))
    by_axis = [indices[:, numbers.start_index_map.index(axis)] for axis in how.left_axes]
    sizes = [table[axis] for axis in how.left_axes]
    inside = jnp.ones(indices.shape[0], jnp.bool_)
    if clamps_indices(eqn):
        by_axis = [jnp.clip(index, 0, size - 1) for index, size in zip(by_axis, sizes, strict=True)]
    else:  # whatever was read there, the gradient of what lies outside is zero
        for index, size in zip(by_axis, sizes, strict=True):
            inside &= (index >= 0) & (index < size)
    flat = entries_at(by_axis, sizes, indices.shape[0])
    # Output axes named in `offset_dims` are those of the kept axes in order; all others are the lookups'.
    kept = sorted(set(range(len(table))) - set(numbers.collapsed_slice_dims))
    at = dict(zip(kept, numbers.offset_dims, strict=True))
    lookups = [i for i in range(cotangent.ndim) if i not in numbers.offset_dims]
    right = jnp.transpose(cotangent, (*lookups, *(at[axis] for axis in how.right_axes)))
    return OuterProducts(OneHot(jnp.where(inside, flat, -1)[None]), Dense(right.reshape(1, how.rows, how.right)))


def equal_cotangents(eqn: Eqn, body: JaxprParts) -> tuple[int, ...]:
    """The lookups' axes of the output, if nothing of it is used but its sum over them, as in a bag of words."""
    out = eqn.outvars[0]
    lookups = tuple(i for i in range(out.aval.ndim) if i not in eqn.params["dimension_numbers"].offset_dims)
    while True:
        users = [user for user in body.eqns if out in user.invars]
        if len(users) != 1 or out in body.outvars:
            return ()
        if not is_cast(users[0]):
            return lookups if is_sum(users[0], lookups) else ()
        out = users[0].outvars[0]


def merge(uses: Sequence[OuterProducts]) -> Lookups:
    """What several lookups in one table add to each of its entries.

    Args:
        uses: the entries, and the cotangents, of which a single row goes with all entries.

    Returns:
        As many rows as all uses have entries; those that are left over are at entry -1.
    """

    def spread(use: OuterProducts) -> Lookups:
        assert isinstance(use.left, OneHot)
        assert isinstance(use.right, Dense)
        entry, rows = use.left.entry, use.right.rows.astype(jnp.float32)
        return Lookups(entry, jnp.broadcast_to(rows, (*entry.shape, rows.shape[2])))

    def one(entry: Int[Array, " T"], rows: Float[Array, "T d"]) -> tuple[Int[Array, " T"], Float[Array, "T d"]]:
        group = _groups(entry)
        rows = jnp.where(entry[:, None] >= 0, rows, 0)
        return jnp.full_like(entry, -1).at[group].max(entry), jnp.zeros_like(rows).at[group].add(rows)

    return Lookups(*jax.vmap(one)(*(jnp.concatenate(parts, axis=1) for parts in zip(*map(spread, uses), strict=True))))


def squared_counts(entry: Int[Array, "E T"]) -> Float[Array, " E"]:
    """Σ_v k_v² with the lookups k_v of entry v, which is the number of pairs of lookups of the same entry."""
    return jax.vmap(_squared_counts)(entry)


def _squared_counts(entry: Int[Array, " T"]) -> Float[Array, ""]:
    if entry.size <= _COMPARE_ALL_PAIRS_BELOW:
        same = entry[:, None] == jnp.where(entry >= 0, entry, -2)[None, :]
        return jnp.sum(same.astype(jnp.float32))  # exact: of at most 2^16; as integers it takes a CPU twice as long
    inside = (entry >= 0).astype(jnp.float32)
    return jnp.sum(jnp.square(jnp.zeros(entry.size, jnp.float32).at[_groups(entry)].add(inside)))


def _groups(entry: Int[Array, " T"]) -> Int[Array, " T"]:
    """A number below T for each lookup, the same for lookups of the same entry and for no others."""
    if entry.size <= _COMPARE_ALL_PAIRS_BELOW:
        first = jnp.argmax(entry[:, None] == entry[None, :], axis=1)  # unlike a minimum, it fuses with the comparison
        return first.astype(jnp.int32)
    order = jnp.argsort(entry)
    ordered = entry[order]
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])
    return jnp.zeros(entry.size, jnp.int32).at[order].set(jnp.cumsum(starts))


LOOKUP = Rule(
    name="lookup",
    covers=covers,
    layout=layout,
    outer_products=outer_products,
    types=INDICES,
    merge=merge,
    squared_counts=squared_counts,
    equal_cotangents=equal_cotangents,
)
