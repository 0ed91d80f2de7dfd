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
    lefts = [_scaled(use.left) for use in uses]
    rights = [_scaled(use.right) for use in uses]
    exponents = [a.exponent + b.exponent for a, b in zip(lefts, rights, strict=True)]
    largest = exponents[0] if len(uses) == 1 else jnp.max(jnp.stack(exponents))
    if len(uses) == 1 and _rows(uses[0].left) == _rows(uses[0].right) == 1:
        square, error = _outer_product(lefts[0], rights[0])
    elif len(uses) == 1 and isinstance(uses[0].left, OneHot):
        square, error = square_of_lookups(uses[0].left.entry, rights[0].rows.rows, _lengths(rights[0].rows))
    else:
        square, error = _gram(lefts, rights, [times_power_of_two(jnp.float32(1), e - largest) for e in exponents])
    computed = jnp.sqrt(jnp.maximum(square, error))
    upper = jnp.sqrt(jnp.maximum(square, 0) + error) * jnp.float32(1 + 4 * UNIT_ROUNDOFF)
    return Norm(times_power_of_two(computed, largest), times_power_of_two(upper, largest))


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


class _Scaled(NamedTuple):
    """Rows divided by a power of two that brings their largest entry into [1/2, 1); OneHot rows are left alone."""

    rows: Any
    exponent: Int[Array, ""]


def _scaled(rows: Any) -> _Scaled:
    if isinstance(rows, OneHot):
        return _Scaled(rows, jnp.int32(0))
    dense = rows.rows.astype(jnp.float32)
    exponent = exponent_of(jnp.max(jnp.abs(dense), initial=0))
    return _Scaled(Dense(dense * times_power_of_two(jnp.float32(1), -exponent)), exponent)


def _outer_product(left: _Scaled, right: _Scaled) -> tuple[jax.Array, jax.Array]:
    """The square of the norm, and its error, where each matrix is a single outer product: nothing can cancel."""
    lengths, bound = [], 4 * UNIT_ROUNDOFF
    for side in (left.rows, right.rows):
        if isinstance(side, OneHot):
            lengths.append((side.entry[:, 0] >= 0).astype(jnp.float32))
        else:
            rows = side.rows[:, 0]
            lengths.append(sum_in_blocks(jnp.square(rows)))
            bound += sum_in_blocks_error(rows.shape[1])
    square = jnp.sum(lengths[0] * lengths[1])
    return square, square * jnp.float32(bound + lengths[0].shape[0] * UNIT_ROUNDOFF)


def _gram(lefts: Sequence[_Scaled], rights: Sequence[_Scaled], weights: Sequence[jax.Array]) -> tuple[Any, Any]:
    left_lengths, right_lengths = [[_lengths(side.rows) for side in sides] for sides in (lefts, rights)]
    square, error = jnp.float32(0), jnp.float32(0)
    for i in range(len(lefts)):
        for j in range(i, len(lefts)):
            k, k_error = _products(lefts[i].rows, lefts[j].rows)
            g, g_error = _products(rights[i].rows, rights[j].rows)
            k_size = left_lengths[i][:, :, None] * left_lengths[j][:, None, :]
            g_size = right_lengths[i][:, :, None] * right_lengths[j][:, None, :]
            both = k * g
            additions = _gamma(k.shape[0] + k.shape[1] + k.shape[2] + 4 + 3 * len(lefts))
            off = k_error * k_size * jnp.abs(g) + g_error * jnp.abs(k) * g_size
            off += (k_error * g_error) * k_size * g_size + additions * jnp.abs(both)
            weight = weights[i] * weights[j] * (1 if i == j else 2)
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
