"""A site's outer products, its gradient for one example, and its weighted sum over a batch, loops included."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._platform import default_platform
from ...jaxprs._jaxpr import DOT_GENERAL, bind_in_float32
from ._uses import Site
from .rules import Dense, OuterProducts
from .rules._rule import Layout, Pieces, the_only_piece, widen_index


def outer_products(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> OuterProducts:
    """One example's outer products, with the steps of loops as further rows or as further matrices.

    Args:
        site: the use.
        others: the operands that aren't the parameter, [loops..., ...].
        cotangent: the output's, [loops..., ...].

    Returns:
        Left and right rows on the axes of `site.layout`, exchanged where the site says so; of right rows that are all the
        same, the first.
    """

    def own(others: Sequence[jax.Array], cotangent: jax.Array) -> OuterProducts:
        return site.rule.outer_products(site.eqn, site.operand, site.own, others, cotangent)

    found = _over_loops(own, len(site.lengths))(list(others), cotangent)
    if site.pooled:
        found = found._replace(right=jax.tree.map(lambda rows: rows[:, :1], found.right))
    left, right = jax.tree.map(lambda rows: _merge_loops(rows, site.stacked), found)
    return OuterProducts(right, left) if site.swap else OuterProducts(left, right)


def form_pieces(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> list[jax.Array]:
    """One example's gradient with respect to the whole source, in float32, in the rule's pieces."""
    if site.by_products:
        return list(_sum_by_products(site, [other[None] for other in others], cotangent[None]))
    by_rule = site.rule.gradient
    if by_rule is None:
        of_rows = site.eqn.primitive is DOT_GENERAL and not site.lengths and not site.swap
        of_rows &= default_platform().rows_on_one_axis
        return [
            _product_of_rows(site, others, cotangent) if of_rows else _transpose(site, others, cotangent, batched=False)
        ]
    form = lambda others, cotangent: by_rule(site.eqn, site.operand, site.own, others, cotangent, site.precision)
    loops = len(site.lengths)
    more = tuple(i for i in range(loops) if not site.stacked[i])
    stacked = _over_loops(form, loops)(_widen(others), cotangent.astype(jnp.float32))
    return [jnp.sum(piece, axis=more) for piece in stacked]


def assemble(site: Site, pieces: Pieces) -> jax.Array:
    """The gradient with respect to the whole source from its pieces, or from sums of them."""
    if site.rule.gradient is None:
        return the_only_piece(site.eqn, site.operand, site.own, pieces)
    join = lambda pieces: site.rule.assemble(site.eqn, site.operand, site.own, pieces)
    return _over_loops(join, sum(site.stacked))(list(pieces))


def form_columns(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> Float[Array, "E d p"]:
    """One example's gradient with respect to what a use outside of loops reads, in float32: a column's entries side by side.

    Columns are in the order of the layout's stacked and right axes, which needn't be the source's.
    """
    left, right = _dense_rows(site, others, cotangent)
    return _product_of(right, left, site).reshape(site.own.stack, site.own.right, site.own.left)


def columns_of(site: Site, whole: jax.Array) -> Float[Array, "E d p"]:
    """An array of the source's shape as `form_columns` gives its gradient."""
    how = site.own
    if site.rule.divide is None:
        axes = (*how.stack_axes, *how.right_axes, *how.left_axes)
        return jnp.transpose(whole, axes).reshape(how.stack, how.right, how.left)
    (matrices,) = site.rule.divide(site.eqn, site.operand, how, whole, 1)
    return jnp.swapaxes(matrices, 1, 2)


def divided(site: Site, wholes: Sequence[jax.Array], count: int) -> tuple[list[list[jax.Array]], tuple[int, ...]]:
    """Arrays of the source's shape in as many pieces as `form_pieces` gives, and a piece's left axes; outside of loops.

    Returns:
        For each piece those of all arrays.
    """
    if site.rule.divide is None:
        return [list(wholes)], site.own.left_axes
    pieces = [site.rule.divide(site.eqn, site.operand, site.own, whole, count) for whole in wholes]
    return [list(those) for those in zip(*pieces, strict=True)] if wholes else [[]] * count, (1,)


def sum_gradients(site: Site, others: Sequence[jax.Array], cotangents: jax.Array) -> jax.Array:
    """The sum of a batch's gradients with respect to the whole source, in float32: an ordinary weight gradient."""
    if site.by_products:
        return assemble(site, _sum_by_products(site, others, cotangents))
    return _transpose(site, others, cotangents, batched=True)


def sum_lookups(site: Site, entries: Int[Array, "B E T"], rows: Float[Array, "B E T d"]) -> jax.Array:
    """The sum of a batch's gradients with respect to the whole source, of `Lookups` of every example."""
    how, shape = site.layout, site.source.aval.shape
    by_matrix = lambda x: jnp.moveaxis(x, 1, 0).reshape(how.stack, -1, *x.shape[3:])
    add_up = lambda at, rows: jnp.zeros((how.left, how.right), jnp.float32).at[at].add(rows, mode="drop")
    return _laid_out(
        jax.vmap(add_up)(by_matrix(jnp.where(entries < 0, how.left, entries)), by_matrix(rows)), how, shape
    )


def _product_of_rows(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> jax.Array:
    """As `_transpose` of one example, its rows on one axis: of several, a GPU's compiler would transpose the cotangent first."""
    product = _product_of(*_dense_rows(site, others, cotangent), site)
    return _laid_out(product, site.own, site.eqn.invars[site.operand].aval.shape)


def _dense_rows(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Left and right, [E, T, *p] and [E, T, *d], in float32, of a rule that looks nothing up."""
    left, right = outer_products(site, _widen(others), cotangent.astype(jnp.float32))
    assert isinstance(left, Dense)
    assert isinstance(right, Dense)
    return left.rows, right.rows


def _product_of(first: jax.Array, second: jax.Array, site: Site) -> jax.Array:
    """[E, *p, *d] of [E, T, *p] and [E, T, *d]."""
    dimensions = ((1,), (1,)), ((0,), (0,))
    return jax.lax.dot_general(first, second, dimensions, precision=(site.precision, site.precision))


def _laid_out(matrices: jax.Array, how: Layout, shape: Sequence[int]) -> jax.Array:
    """Entries of matrices [E, left, right] on the axes on which they were before."""
    axes = (*how.stack_axes, *how.left_axes, *how.right_axes)
    return jnp.transpose(matrices.reshape([shape[axis] for axis in axes]), [axes.index(i) for i in range(len(axes))])


def _sum_by_products(site: Site, others: Sequence[jax.Array], cotangents: jax.Array) -> Pieces:
    assert site.rule.summed is not None
    others, cotangents = _widen(others), cotangents.astype(jnp.float32)
    return site.rule.summed(site.eqn, site.operand, site.own, others, cotangents, site.precision)


def _transpose(site: Site, others: Sequence[jax.Array], cotangent: jax.Array, *, batched: bool) -> jax.Array:
    """The cotangent pulled back through the primitive, which is linear in the parameter."""
    others = _widen(others)

    def use(others: Sequence[jax.Array], weight: jax.Array) -> jax.Array:
        operands = list(others)
        operands.insert(site.operand, weight)
        return bind_in_float32(site.eqn, operands, precision=site.precision)

    fn = use
    for stacked in reversed(site.stacked):
        fn = jax.vmap(fn, in_axes=(0, 0 if stacked else None))
    if batched:
        fn = jax.vmap(fn, in_axes=(0, None))
    shape = (*_stack_lengths(site), *site.eqn.invars[site.operand].aval.shape)
    pull = jax.linear_transpose(lambda weight: fn(others, weight), jax.ShapeDtypeStruct(shape, jnp.float32))
    return pull(cotangent.astype(jnp.float32))[0]


def _stack_lengths(site: Site) -> list[int]:
    return [n for n, stacked in zip(site.lengths, site.stacked, strict=True) if stacked]


def _over_loops(fn: Callable[..., Any], loops: int) -> Callable[..., Any]:
    for _ in range(loops):
        fn = jax.vmap(fn)
    return fn


def _merge_loops(rows: jax.Array, stacked: Sequence[bool]) -> jax.Array:
    """[loops..., E, T, ...] as [stacking loops and E, other loops and T, ...]."""
    loops = len(stacked)
    stack = [i for i in range(loops) if stacked[i]]
    more = [i for i in range(loops) if not stacked[i]]
    rows = jnp.transpose(rows, (*stack, loops, *more, *range(loops + 1, rows.ndim)))
    merged, of_each = math.prod(rows.shape[: len(stack) + 1]), math.prod(rows.shape[len(stack) + 1 : loops + 2])
    return rows.reshape(merged, of_each, *rows.shape[loops + 2 :])


def _widen(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Floats in float32; indices in 32 bits, since XLA drops rows that a narrow type numbers in a table longer than its range."""
    return [a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else widen_index(a) for a in arrays]
