r"""The norm of a gradient that is a sum of outer products, without forming it, as an upper bound that rounding can't break.

With rows \(a_t\) and \(g_t\) the squared norm of \(\sum_t a_t \otimes g_t\) is \(\sum_{s,t} K_{st} L_{st}\) for the Gram
matrices \(K_{st} = \langle a_s, a_t\rangle\) and \(L_{st} = \langle g_s, g_t\rangle\). Several uses of one parameter are
more rows: the sum runs over all pairs of them, whichever use they come from.

This sum can cancel. Where rows nearly cancel, its float32 value may come out far too small, or negative, and an example
would pass unclipped. A float32 inner product of p terms, added in any order, is off by at most
\(\gamma_{p} \lVert a_s\rVert \lVert a_t\rVert\) with \(\gamma_n = nu / (1 - nu)\), \(u = 2^{-24}\) (Higham, "Accuracy and
Stability of Numerical Algorithms", section 3.1). Hence the squared norm is off by at most

\[ \sum_{s,t} \gamma_p \lVert a_s\rVert\lVert a_t\rVert\,|L_{st}| + \gamma_d \lVert g_s\rVert\lVert g_t\rVert\,|K_{st}|
   + \gamma_p\gamma_d \lVert a_s\rVert\lVert a_t\rVert\lVert g_s\rVert\lVert g_t\rVert + \gamma_{m} |K_{st} L_{st}| \]

with m the additions of the outer sum, and this is added before the root is taken. Without cancellation it changes a norm
by parts in a million; with it, the example is clipped harder than need be.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._clip import Norm
from .._norm import UNIT_ROUNDOFF, gamma, sum_in_blocks, sum_in_blocks_error
from .._powers import exponent_of, times_power_of_two
from .rules import Dense, OneHot, OuterProducts
from .rules._rule import SquaredCounts


def norm_of_sum(uses: Sequence[OuterProducts], squared_counts: SquaredCounts | None) -> Norm:
    """The norm of one example's gradient with respect to one parameter.

    Args:
        uses: the parameter's uses, brought to the same axes.
        squared_counts: of the rule of the only use, if it is one of lookups that were merged, or needn't be; else None.

    Returns:
        float32 scalars; NaN or inf where a row has a NaN or infinite entry.
    """
    uses = [OuterProducts(*map(_in_rows, use)) for use in uses]
    uses, exponent = _scale([_repeat_single_row(use) for use in uses] if len(uses) > 1 else uses)
    if len(uses) == 1 and uses[0].left.row_count == uses[0].right.row_count == 1:
        squared, error = _square_of_outer_product(*uses[0])
    elif squared_counts is not None:
        squared, error = _square_of_lookups(uses[0], squared_counts)
    else:
        squared, error = _square_by_gram_matrices(uses)
    computed = jnp.sqrt(jnp.maximum(squared, error))
    upper = jnp.sqrt(jnp.maximum(squared, 0) + error) * jnp.float32(1 + 4 * UNIT_ROUNDOFF)
    return Norm(times_power_of_two(computed, exponent), times_power_of_two(upper, exponent))


def _in_rows(side: Dense | OneHot) -> Dense | OneHot:
    """A row's entries on one axis."""
    if isinstance(side, OneHot) or side.rows.ndim == 3:
        return side
    stack, rows, *entries = side.rows.shape
    return Dense(side.rows.reshape(stack, rows, math.prod(entries)))


def _repeat_single_row(use: OuterProducts) -> OuterProducts:
    """The same with as many rows on both sides."""
    count = max(use.left.row_count, use.right.row_count)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (x.shape[0], count, *x.shape[2:])), use)


def _scale(uses: Sequence[OuterProducts]) -> tuple[list[OuterProducts], Int[Array, ""]]:
    """Left and right rows by powers of two, and the exponent by which the gradient's norm is then too small.

    The scale is each row's own: a large left row may meet a small right one, and the other way round, and it is their
    product that counts. Left rows come into [1/2, 1), right rows take up how much smaller than the largest their outer
    product is; where one side is OneHot, the other takes all. A row whose outer product is zero has no scale: it becomes as
    small as it can, since infinity times zero would spoil the others; what isn't finite stays so.
    """
    uses = [_zero_missed_lookups(use) for use in uses]
    sizes = [
        [jnp.max(jnp.abs(side.rows), axis=2, initial=0) for side in use if isinstance(side, Dense)] for use in uses
    ]
    empties, exponents = [], []
    for each in sizes:
        empty = jnp.stack([jnp.broadcast_to(size == 0, each[-1].shape) for size in each]).any(axis=0)
        empties.append(empty)
        exponents.append(jnp.where(empty, -250, sum(exponent_of(size) for size in each)))
    largest = jnp.max(jnp.stack([jnp.max(e, initial=-250) for e in exponents]))
    scaled = []
    for (left, right), each, empty in zip(uses, sizes, empties, strict=True):
        if isinstance(left, Dense) and isinstance(right, Dense):
            own = exponent_of(each[0])
            left = Dense(times_power_of_two(left.rows, -own[:, :, None]))
            right = Dense(times_power_of_two(right.rows, jnp.where(empty, -250, own - largest)[:, :, None]))
        elif isinstance(right, Dense):
            right = Dense(times_power_of_two(right.rows, -largest[None, None, None]))
        elif isinstance(left, Dense):
            left = Dense(times_power_of_two(left.rows, -largest[None, None, None]))
        scaled.append(OuterProducts(left, right))
    return scaled, largest


def _zero_missed_lookups(use: OuterProducts) -> OuterProducts:
    """Dense rows in float32; zeros where the row on the other side is that of a lookup outside the table."""

    def clean(side: Dense | OneHot, other: Dense | OneHot) -> Dense | OneHot:
        if isinstance(side, OneHot):
            return side
        rows = side.rows.astype(jnp.float32)
        if isinstance(other, OneHot) and other.row_count == side.row_count:
            rows = jnp.where(other.entry[:, :, None] >= 0, rows, 0)
        return Dense(rows)

    return OuterProducts(clean(use.left, use.right), clean(use.right, use.left))


def _square_of_outer_product(left: Dense | OneHot, right: Dense | OneHot) -> tuple[jax.Array, jax.Array]:
    """The square of the norm, and its error, where each matrix is a single outer product: nothing can cancel."""
    lengths, bound = [], 4 * UNIT_ROUNDOFF
    for side in (left, right):
        if isinstance(side, OneHot):
            lengths.append((side.entry[:, 0] >= 0).astype(jnp.float32))
        else:
            rows = side.rows[:, 0]
            lengths.append(sum_in_blocks(jnp.square(rows)))
            bound += sum_in_blocks_error(rows.shape[1])
    square = jnp.sum(lengths[0] * lengths[1])
    return square, square * jnp.float32(bound + lengths[0].shape[0] * UNIT_ROUNDOFF)


def _square_of_lookups(use: OuterProducts, squared_counts: SquaredCounts) -> tuple[jax.Array, jax.Array]:
    """The square of the norm, and its error, of lookups of different entries, or of whatever entries with one row for all."""
    assert isinstance(use.left, OneHot)
    assert isinstance(use.right, Dense)
    entry, rows = use.left.entry, use.right.rows
    if rows.shape[1] < entry.shape[1]:
        squares = squared_counts(entry) * sum_in_blocks(jnp.square(rows[:, 0]))
        # Half a rounding of the norm for each lookup: so far off is a sum that adds the row to one entry as often.
        bound = sum_in_blocks_error(rows.shape[2]) + sum(entry.shape) * UNIT_ROUNDOFF
        return jnp.sum(squares), jnp.sum(squares) * jnp.float32(bound)
    found = sum_in_blocks(jnp.square(rows).reshape(1, -1))[0]
    return found, found * jnp.float32(sum_in_blocks_error(rows.size))


def _square_by_gram_matrices(uses: Sequence[OuterProducts]) -> tuple[Any, Any]:
    lefts, rights = [use.left for use in uses], [use.right for use in uses]
    left_lengths, right_lengths = [[side.lengths() for side in sides] for sides in (lefts, rights)]
    square, error = jnp.float32(0), jnp.float32(0)
    for i in range(len(lefts)):
        for j in range(i, len(lefts)):
            k, k_error = _products(lefts[i], lefts[j])
            g, g_error = _products(rights[i], rights[j])
            k_size = left_lengths[i][:, :, None] * left_lengths[j][:, None, :]
            g_size = right_lengths[i][:, :, None] * right_lengths[j][:, None, :]
            both = k * g
            additions = gamma(k.shape[0] + k.shape[1] + k.shape[2] + 4 + len(lefts) * (len(lefts) + 1))
            off = k_error * k_size * jnp.abs(g) + g_error * jnp.abs(k) * g_size
            off += (k_error * g_error) * k_size * g_size + additions * jnp.abs(both)
            weight = 1 if i == j else 2
            square += weight * _sum(both)
            error += weight * _sum(off)
    return square, error * jnp.float32(1.01)  # the bound itself is rounded too


def _products(x: Dense | OneHot, y: Dense | OneHot) -> tuple[Float[Array, "E S T"], float]:
    """All inner products of two sets of rows, and their relative error."""
    if isinstance(x, Dense) and isinstance(y, Dense):
        products = jnp.einsum("esp,etp->est", x.rows, y.rows, precision="highest", preferred_element_type=jnp.float32)
        return products, gamma(x.rows.shape[2] + 2)
    if isinstance(x, Dense):
        products, error = _products(y, x)
        return jnp.swapaxes(products, 1, 2), error
    if isinstance(y, Dense):
        taken = jnp.take_along_axis(y.rows, jnp.maximum(x.entry, 0)[:, None, :], axis=2)
        return jnp.where(x.entry[:, :, None] >= 0, jnp.swapaxes(taken, 1, 2), 0), 0.0
    same = (x.entry[:, :, None] == y.entry[:, None, :]) & (x.entry[:, :, None] >= 0)
    return same.astype(jnp.float32), 0.0


def _sum(x: Float[Array, "E S T"]) -> Float[Array, ""]:
    return jnp.sum(jnp.sum(jnp.sum(x, axis=2), axis=1))
