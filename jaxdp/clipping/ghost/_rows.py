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

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._clip import Norm
from .._norm import UNIT_ROUNDOFF, sum_in_blocks, sum_in_blocks_error
from .._powers import exponent_of, times_power_of_two
from ._lookup_norm import square_of_lookups


class Dense(NamedTuple):
    """Rows [E, T, p] of any floating dtype."""

    rows: Float[Array, "E T p"]


class OneHot(NamedTuple):
    """Rows [E, T, p] whose element at `entry` is 1 and all others 0; an entry of -1 is a row of zeros."""

    entry: Int[Array, "E T"]
    size: int


class Factors(NamedTuple):
    """One use of a parameter: gradient[e] = Σ_t left[e, t] ⊗ right[e, t]; a single row on one side goes with all others."""

    left: Any
    right: Any


def norm_of_sum(uses: Sequence[Factors]) -> Norm:
    """The norm of one example's gradient with respect to one parameter.

    Args:
        uses: the parameter's uses, brought to the same axes.

    Returns:
        float32 scalars; NaN or inf where a row has a NaN or infinite entry.
    """
    if len(uses) > 1:
        uses = [_with_all_rows(use) for use in uses]
        uses = [_joined(uses)] if all(isinstance(use.left, OneHot) for use in uses) else uses
    lefts, rights, exponent = _scaled(uses)
    if len(uses) == 1 and _rows(lefts[0]) == _rows(rights[0]) == 1:
        square, error = _outer_product(lefts[0], rights[0])
    elif len(uses) == 1 and isinstance(lefts[0], OneHot):
        square, error = square_of_lookups(lefts[0].entry, rights[0].rows, _lengths(rights[0]))
    else:
        square, error = _gram(lefts, rights)
    computed = jnp.sqrt(jnp.maximum(square, error))
    upper = jnp.sqrt(jnp.maximum(square, 0) + error) * jnp.float32(1 + 4 * UNIT_ROUNDOFF)
    return Norm(times_power_of_two(computed, exponent), times_power_of_two(upper, exponent))


def _with_all_rows(use: Factors) -> Factors:
    rows = max(_rows(use.left), _rows(use.right))
    every = lambda side: jax.tree.map(lambda x: jnp.broadcast_to(x, (x.shape[0], rows, *x.shape[2:])), side)
    left = use.left._replace(entry=every(use.left.entry)) if isinstance(use.left, OneHot) else every(use.left)
    right = use.right._replace(entry=every(use.right.entry)) if isinstance(use.right, OneHot) else every(use.right)
    return Factors(left, right)


def _joined(lookups: Sequence[Factors]) -> Factors:
    """Several lookups in one table as one."""
    entries = jnp.concatenate([use.left.entry for use in lookups], axis=1)
    rows = jnp.concatenate([use.right.rows.astype(jnp.float32) for use in lookups], axis=1)
    return Factors(OneHot(entries, lookups[0].left.size), Dense(rows))


def _scaled(uses: Sequence[Factors]) -> tuple[list[Any], list[Any], Int[Array, ""]]:
    """Left and right rows by powers of two, and the exponent by which the gradient's norm is then too small.

    The scale is each row's own: a large left row may meet a small right one, and the other way round, and it is their
    product that counts. Left rows come into [1/2, 1), right rows take up how much smaller than the largest their outer
    product is; where one side is OneHot, the other takes all. A row whose outer product is zero has no scale: it becomes as
    small as it can, since infinity times zero would spoil the others; what isn't finite stays so.
    """
    pairs = [_without_missed(use) for use in uses]
    sizes = [
        [jnp.max(jnp.abs(side.rows), axis=2, initial=0) for side in pair if isinstance(side, Dense)] for pair in pairs
    ]
    empties, exponents = [], []
    for each in sizes:
        empty = jnp.stack([jnp.broadcast_to(size == 0, each[-1].shape) for size in each]).any(axis=0)
        empties.append(empty)
        exponents.append(jnp.where(empty, -250, sum(exponent_of(size) for size in each)))
    largest = jnp.max(jnp.stack([jnp.max(e, initial=-250) for e in exponents]))
    lefts, rights = [], []
    for (left, right), each, empty in zip(pairs, sizes, empties, strict=True):
        if len(each) == 2:
            own = exponent_of(each[0])
            left = Dense(times_power_of_two(left.rows, -own[:, :, None]))
            right = Dense(times_power_of_two(right.rows, jnp.where(empty, -250, own - largest)[:, :, None]))
        elif isinstance(right, Dense):
            right = Dense(times_power_of_two(right.rows, -largest[None, None, None]))
        else:
            left = Dense(times_power_of_two(left.rows, -largest[None, None, None]))
        lefts.append(left)
        rights.append(right)
    return lefts, rights, largest


def _without_missed(use: Factors) -> tuple[Any, Any]:
    """Dense rows in float32; zeros where the row on the other side is that of a lookup outside the table."""

    def cleaned(side: Any, other: Any) -> Any:
        if isinstance(side, OneHot):
            return side
        rows = side.rows.astype(jnp.float32)
        if isinstance(other, OneHot) and other.entry.shape[1] == rows.shape[1]:
            rows = jnp.where(other.entry[:, :, None] >= 0, rows, 0)
        return Dense(rows)

    return cleaned(use.left, use.right), cleaned(use.right, use.left)


def _outer_product(left: Any, right: Any) -> tuple[jax.Array, jax.Array]:
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


def _gram(lefts: Sequence[Any], rights: Sequence[Any]) -> tuple[Any, Any]:
    left_lengths, right_lengths = [[_lengths(side) for side in sides] for sides in (lefts, rights)]
    square, error = jnp.float32(0), jnp.float32(0)
    for i in range(len(lefts)):
        for j in range(i, len(lefts)):
            k, k_error = _products(lefts[i], lefts[j])
            g, g_error = _products(rights[i], rights[j])
            k_size = left_lengths[i][:, :, None] * left_lengths[j][:, None, :]
            g_size = right_lengths[i][:, :, None] * right_lengths[j][:, None, :]
            both = k * g
            additions = _gamma(k.shape[0] + k.shape[1] + k.shape[2] + 4 + len(lefts) * (len(lefts) + 1))
            off = k_error * k_size * jnp.abs(g) + g_error * jnp.abs(k) * g_size
            off += (k_error * g_error) * k_size * g_size + additions * jnp.abs(both)
            weight = 1 if i == j else 2
            square += weight * _sum(both)
            error += weight * _sum(off)
    return square, error * jnp.float32(1.01)  # the bound itself is rounded too


def _products(x: Any, y: Any) -> tuple[Float[Array, "E S T"], float]:
    """All inner products of two sets of rows, and their relative error."""
    if isinstance(x, OneHot) and isinstance(y, OneHot):
        same = (x.entry[:, :, None] == y.entry[:, None, :]) & (x.entry[:, :, None] >= 0)
        return same.astype(jnp.float32), 0.0
    if isinstance(x, OneHot):
        taken = jnp.take_along_axis(y.rows, jnp.maximum(x.entry, 0)[:, None, :], axis=2)
        return jnp.where(x.entry[:, :, None] >= 0, jnp.swapaxes(taken, 1, 2), 0), 0.0
    if isinstance(y, OneHot):
        products, error = _products(y, x)
        return jnp.swapaxes(products, 1, 2), error
    products = jnp.einsum("esp,etp->est", x.rows, y.rows, precision="highest", preferred_element_type=jnp.float32)
    return products, _gamma(x.rows.shape[2] + 2)


def _lengths(rows: Any) -> Float[Array, "E T"]:
    """At least the length of each row."""
    if isinstance(rows, OneHot):
        return (rows.entry >= 0).astype(jnp.float32)
    return jnp.sqrt(jnp.sum(jnp.square(rows.rows), axis=2)) * jnp.float32(1 + _gamma(rows.rows.shape[2] + 4))


def _sum(x: Float[Array, "E S T"]) -> Float[Array, ""]:
    return jnp.sum(jnp.sum(jnp.sum(x, axis=2), axis=1))


def _gamma(n: int) -> float:
    return n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)


def _rows(side: Any) -> int:
    return side.entry.shape[1] if isinstance(side, OneHot) else side.rows.shape[1]
