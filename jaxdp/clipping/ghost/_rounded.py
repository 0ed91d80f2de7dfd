r"""The norm of a gradient whose factors are rounded to what a matrix unit reads, as an upper bound that covers what is left.

With rows \(a_t\) and \(g_t\) of rounded numbers, the gradient is \(M = \sum_t a_t \otimes g_t = A^T G\). What is added up is
\(\sum_t a_t \otimes s_t\) with \(s_t\) the rounded \(c\,g_t\), each entry off by \(\delta c\,|g_t|\) at most, with \(\delta\) a
little above the type's unit roundoff: \(2^{-8}\) of bfloat16, \(2^{-11}\) of TensorFloat-32. All of that together is off by at
most \(\delta c\,\lVert A\rVert_2 \lVert G\rVert_F\), so that it is no longer than \(c\,(\lVert M\rVert + \delta R)\) with \(R =
\lVert A\rVert_F \lVert G\rVert_F\). The norm of M is taken in one of three ways. Products of numbers of either type are exact in
float32, and a sum of n of them is off by \(\gamma_n\), relatively to the sum of their absolute values:

A gradient that is formed and kept needs none of this: what is added up is what its norm is taken of.

- a single row: \(\lVert M\rVert = R\), of rows that the matrix unit rounds itself, which makes them longer by \(1 + \delta\) each
  at most, or no longer if it cuts off;
- Gram matrices: \(\lVert M\rVert^2 = \sum_{st} K_{st} L_{st}\) is off by at most
  \((\gamma_p + \gamma_d + \gamma_p\gamma_d) R^2 + \gamma_m \sum_{st} |K_{st} L_{st}|\), with m the additions of the outer sum;
  the lengths in R are roots of the traces of K and L, or of many rows those of the factors, on a TPU before they are
  rounded, longer by \(1 + \delta\) at most; and \(\lVert A\rVert_2^2 = \lVert K\rVert_2 \le \lVert K\rVert_F\);
- formed: each entry of M is off by \(\gamma_T \sum_t |a_t| \otimes |g_t|\), and so M by \(\gamma_T R\). What rounding adds is
  taken as \(\delta R\) here, since there is no K: up to \(\delta\sqrt T\) of the norm where rows have nothing in common.
  On a TPU its matrix unit adds up the squares, each rounded to bfloat16 or cut off: their root is off by \(\delta\), relatively.

Lengths in R that a matrix unit adds up are made longer by what rounding may have taken from them.

The clipped sum of many rows is off by \(\gamma_T R\), too, which is added.
Products below float32's range count as \(2^{-126}\), those above it make the bound infinite, and the example contributes nothing.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...jaxprs import as_one_value
from .._arithmetic import Arithmetic
from .._clip import Norm
from .._norm import (
    ONE_SUM,
    SMALLEST,
    UNIT_ROUNDOFF,
    are_added_up_by_products,
    squares_by_products,
    squares_to_add_up,
    sum_of_squares_error,
    sums_of_squares,
)
from ._gradient import outer_products
from ._plan import Component
from ._uses import Site
from .rules import Dense

SMALLEST_PRODUCT = (
    2.0**-125
)  # what a product below float32's range could have been, doubled for the rounding of sums of them
_SMALLEST_ROOT = 2.0**-62  # what the root of a square below that range could have been
_HUGE = 2.0**100
_HELD = 2**25  # bytes of pieces that are held until their squares have been added up
_AT_ONCE = 2**12  # products of pairs of rows that are added up in one sum
LOOSELY = 2**20  # squares that are added up in one sum, where a bound that is a seventh too large will do
ROOTS = 2.0**-18  # what a device's square roots, divisions and scalings are off by, all together


class Lengths(NamedTuple):
    """Squared lengths of all left rows of a use together and of all its right ones, at each step of the loops that stack, [B, L].

    They are no smaller, but for rounding.
    """

    left: Float[Array, "B L"]
    right: Float[Array, "B L"]


def without_infinite(operand: jax.Array) -> jax.Array:
    """The same numbers, but a finite one whose square is not in place of what is larger, infinite or NaN.

    An example that has it is too long to contribute, whatever its cotangents, and times zero it is zero, which NaN isn't.
    """
    if not jnp.issubdtype(operand.dtype, jnp.floating):
        return operand
    return jnp.where(jnp.abs(operand) < _HUGE, operand, jnp.asarray(_HUGE, operand.dtype))


def takes_lengths(component: Component) -> list[Site]:
    """The uses whose factors' lengths its norm is taken with: all but those with traces of Gram matrices in their place."""
    sites = [site for site in component.sites if site.rounded]
    if component.choice.form == "dropped" or component.is_single_row:
        return sites
    return [site for site in sites if not _has_traces(site, sites)]


def lengths_of(uses: Sequence[tuple[Site, int, Any, Any]], arithmetic: Arithmetic) -> list[Lengths]:
    """Of uses, so many of whose squares are added up in one sum, with their other operand and their cotangent, [B, ...] each."""
    longer = jnp.float32(1 + 2 * arithmetic.square_roundoff)
    alike: dict[Any, dict[tuple[int, int], jax.Array]] = {}
    for i, (site, at_once, *factors) in enumerate(uses):
        apart = (0, *(1 + axis for axis, stacked in enumerate(site.stacked) if stacked))
        for side, factor in enumerate(factors):
            alike.setdefault((factor.shape, apart, at_once), {})[i, side] = factor
    squares: dict[tuple[int, int], jax.Array] = {}
    for (shape, apart, at_once), those in alike.items():
        if arithmetic.square_roundoff and at_once == LOOSELY and are_added_up_by_products(shape, apart):
            found = [squares_by_products([each], apart, at_once) * longer for each in those.values()]
        else:
            found = sums_of_squares(list(those.values()), apart, at_once)
        squares |= {which: each.reshape(each.shape[0], -1) for which, each in zip(those, found, strict=True)}
    return [Lengths(squares[i, 0] * _repeats(site), squares[i, 1]) for i, (site, *_) in enumerate(uses)]


def _repeats(site: Site) -> Float[Array, ""]:
    """How often an entry of the other operand is in the left rows, at most: once in each."""
    in_rows = site.own.rows if site.rule.repeats is None else site.rule.repeats(site.eqn, site.operand)
    return jnp.float32(min(in_rows, site.own.rows))


def norm_of_single_row(site: Site, lengths: Lengths, arithmetic: Arithmetic) -> Norm:
    """Of gradients that are single outer products, [B], from factors that aren't rounded yet."""
    reach = reach_of(site, lengths, ONE_SUM)
    return Norm(reach.value, reach.upper * jnp.float32((1 + arithmetic.factor_roundoff) ** 2))


def sums_of_products(
    sites: Sequence[Site], others: Sequence[Sequence[jax.Array]], cotangents: Sequence[jax.Array]
) -> list[Float[Array, "_ ..."]]:
    """Of one example, what `norm_by_gram_matrices` takes the totals of, along all axes but the first, from rounded factors.

    For each pair of uses, the products of entries of their Gram matrices and their absolute values; for a use with itself also
    the squares of the operand's, and the two traces where there are such in place of lengths.
    """
    uses = [outer_products(*use) for use in zip(sites, others, cotangents, strict=True)]
    at_once = _are_few(sites)  # else there are fewer additions one upon another
    add_up = lambda x: jnp.sum(x, axis=(1, 2)) if at_once else as_one_value(jnp.sum(x, axis=2))
    sums = []
    for i, first in enumerate(uses):
        for second in uses[i:]:
            k, g = (_products(x, y) for x, y in zip(first, second, strict=True))
            both = k * g if first is second else 2 * k * g
            sums += map(add_up, (both, jnp.abs(both)))
            if first is second:
                of_operand, of_cotangent = (g, k) if sites[i].swap else (k, g)
                sums.append(add_up(jnp.square(of_operand)))
                sums += map(_traces, (of_operand, of_cotangent)) if _has_traces(sites[i], sites) else ()
    return sums


def norm_by_gram_matrices(
    sites: Sequence[Site],
    totals: Sequence[Float[Array, "B _"]],
    lengths: Sequence[Lengths | None],
    arithmetic: Arithmetic,
) -> Norm:
    """Of gradients, [B], from the totals of `sums_of_products`, and lengths where `takes_lengths` names their uses."""
    widest = max(max(site.layout.left, site.layout.right) for site in sites)
    rows, stack = sum(site.layout.rows for site in sites), sites[0].layout.stack
    below = stack * rows * widest * SMALLEST_PRODUCT  # of a trace, and of all that products of two rows can have lost
    additions = (stack * rows**2 if _are_few(sites) else rows + stack * rows) + len(sites) ** 2 + 4
    longer = jnp.float32((1 + arithmetic.factor_roundoff) ** 2 * (1 + _squares_error(sites, LOOSELY)))
    square, size, reach, moved, lost = (jnp.float32(0) for _ in range(5))
    left_over = iter(totals)
    for i in range(len(sites)):
        for j in range(i, len(sites)):
            square, size = (sofar + jnp.sum(next(left_over), axis=1) for sofar in (square, size))
            if i == j:
                spread = jnp.sqrt(next(left_over))
                measured = lengths[i]
                if measured is None:
                    left, right = (next(left_over) + below for _ in range(2))
                else:  # passes over large matrices cost more than one over the factors
                    left, right = (each * longer + below for each in measured)
                spread = spread * jnp.float32(1 + arithmetic.gamma(additions)) + jnp.float32(rows * _SMALLEST_ROOT)
                spread = jnp.minimum(left, spread + jnp.float32(arithmetic.gamma(widest + 4)) * left + below)
                reach += jnp.sqrt(jnp.sum(left * right, axis=1))
                moved += jnp.sqrt(jnp.sum(spread * right, axis=1))
                lost += jnp.sum(left, axis=1) + jnp.sum(right, axis=1)
    product = (1 + arithmetic.gamma(widest + 2)) ** 2 - 1
    slack = jnp.float32(1 + arithmetic.gamma(widest + rows + 4) + ROOTS)
    reach, moved = reach * slack, moved * slack
    off = jnp.float32(product) * jnp.square(reach) + jnp.float32(arithmetic.gamma(additions)) * size
    off += jnp.float32(4 * rows * below) * lost
    upper = jnp.sqrt(jnp.maximum(square, 0) + off) + jnp.float32(arithmetic.factor_roundoff) * moved
    upper += jnp.float32(arithmetic.gamma(rows + len(sites))) * reach
    return Norm(jnp.sqrt(jnp.maximum(square, off)), upper * jnp.float32(1 + ROOTS))


def squares_of_formed(pieces: Sequence[Float[Array, "B ..."]], arithmetic: Arithmetic) -> list[Float[Array, "B 1 ..."]]:
    """What `norm_of_formed` takes the totals of, along all axes but the first two.

    Squares of small pieces of one shape are added up before a matrix unit reads them: by its compiler's estimate a v5e forms 9 of
    128 × 128 for 16 examples in 11.5 thousand cycles and adds up their squares in 3.7, and takes 33 for each by itself.
    """
    if not arithmetic.square_roundoff:
        return list(map(squares_to_add_up, pieces))
    alike: dict[tuple[int, ...], list[jax.Array]] = {}
    for piece in pieces:
        alike.setdefault(piece.shape, []).append(piece)
    found = []
    for shape, those in alike.items():
        if not are_added_up_by_products(shape, (0,)):
            found += map(squares_to_add_up, those)
            continue
        are_small = 1 < len(those) <= _HELD // (4 * math.prod(shape))
        groups = [as_one_value(those)] if are_small else [[each] for each in those]
        found += [squares_by_products(group, (0,), ONE_SUM)[:, None] for group in groups]
    return found


def norm_of_formed(
    totals: Sequence[Float[Array, "B 1"]],
    shapes: Sequence[tuple[int, ...]],
    sites: Sequence[Site],
    lengths: Sequence[Lengths],
    arithmetic: Arithmetic,
) -> Norm:
    """Of gradients, [B], that were formed in pieces of some shapes from rounded factors, and are then dropped.

    From the totals of the pieces' `squares_of_formed`.
    """
    below = 2 * SMALLEST * sum(map(math.prod, shapes))
    value = jnp.sqrt(sum((total[:, 0] for total in totals), jnp.float32(below)))
    worst = max(map(sum_of_squares_error, shapes)) + len(shapes) * UNIT_ROUNDOFF + arithmetic.square_roundoff
    reach = sum((reach_of(*use, LOOSELY).upper for use in zip(sites, lengths, strict=True)), jnp.float32(0))
    rows = sum(site.layout.rows for site in sites) + len(sites)
    reach *= jnp.float32((1 + arithmetic.factor_roundoff) ** 2)
    off = jnp.float32(2 * arithmetic.gamma(rows) + arithmetic.factor_roundoff) * reach
    off += jnp.float32(rows * sum(map(math.prod, shapes)) * SMALLEST_PRODUCT)
    return Norm(value, value * jnp.float32(1 + worst + ROOTS) + off)


def _has_each_entry_once(site: Site) -> bool:
    """Whether all left rows of a single matrix are the other operand, each entry once, so that they are as long together."""
    operand = site.eqn.invars[1 - site.operand].aval
    return site.own.stack == 1 and operand.size == site.own.rows * site.own.left


def _has_traces(site: Site, sites: Sequence[Site]) -> bool:
    """Whether squared lengths of rows are taken from its Gram matrices, of a component with such uses."""
    return _are_few(sites) or not _has_each_entry_once(site)


def _are_few(sites: Sequence[Site]) -> bool:
    """Whether products of all pairs of rows are so few that one sum is enough for them."""
    return sites[0].layout.stack * sum(site.layout.rows for site in sites) ** 2 <= _AT_ONCE


def reach_of(site: Site, lengths: Lengths, at_once: int) -> Norm:
    """R, of which so many squares were added up in one sum; of the loops that stack, each step has rows of its own."""
    left, right = lengths
    value = jnp.sqrt(jnp.sum(left * right, axis=1))
    return Norm(value, value * jnp.float32(1 + 2 * _squares_error([site], at_once) + (left.shape[1] + 8) * ROOTS))


def _squares_error(sites: Sequence[Site], at_once: int) -> float:
    """By how much, relatively, these can be too small."""
    shapes = [
        (*(n for n, stacked in zip(site.lengths, site.stacked, strict=True) if not stacked), *v.aval.shape)
        for site in sites
        for v in (site.eqn.invars[1 - site.operand], site.eqn.outvars[0])
    ]
    return max(sum_of_squares_error(shape, at_once) for shape in shapes)


def _products(x: Any, y: Any) -> Float[Array, "E S T"]:
    """All inner products of two sets of rows of rounded numbers, whose products are exact in any precision.

    A TPU adds up those of the rows' parts, which it would have to copy into whole rows first: by its compiler's estimate, a v5e
    takes 138 thousand of 2.68 million cycles less for WRN-16-4's clipped gradient at 16 images. Elsewhere it is one product.
    """
    assert isinstance(x, Dense)
    whole = lambda: _inner_products(x.rows, y.rows)
    if not x.parts or [part.shape[2] for part in x.parts] != [part.shape[2] for part in y.parts]:
        return whole()
    return jax.lax.platform_dependent(
        tpu=lambda: reduce(jnp.add, map(_inner_products, x.parts, y.parts)), default=whole
    )


def _inner_products(x: Float[Array, "E S *p"], y: Float[Array, "E T *p"]) -> Float[Array, "E S T"]:
    entries = tuple(range(2, x.ndim))
    left, right = (rows.astype(jnp.float32) for rows in (x, y))
    return jax.lax.dot_general(left, right, ((entries, entries), ((0,), (0,))), precision="default")


def _traces(products: Float[Array, "E T T"]) -> Float[Array, " E"]:
    """Sums of the squared lengths of rows."""
    return jnp.sum(jnp.where(jnp.eye(products.shape[1], dtype=jnp.bool_), products, 0), axis=(1, 2))
