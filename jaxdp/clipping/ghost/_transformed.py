r"""The norm of a gradient with respect to parameters that are transformed before they are used, without pulling any back.

Weight standardisation and weight normalisation work on each output channel by itself: what they pull a gradient G back to is, for
the column \(g_o\) of each right entry o,

\[ y_o = d_o \odot g_o + \sum_b u_{bo}\, r_{bo}, \qquad r_{bo} = \langle w_{bo}, g_o \rangle \]

with d, u and w made of the parameters alone (`_pull_back` reads them from JAX's own), and a gain that is the
same for a column gets a number \(\sum_b c_{bo} r_{bo}\). So the clipped sum is made of gradients that aren't pulled back, as one
ordinary weight gradient, and pulled back once. The norm follows from sums over columns,

\[ \lVert y_o \rVert^2 = \sum (d_o \odot g_o)^2 + 2 \sum_b r_{bo} \langle u_{bo} \odot d_o, g_o \rangle
   + \sum_{bc} r_{bo} r_{co} \langle u_{bo}, u_{co} \rangle, \]

which the product that forms G makes on its way: all in one pass, and nothing is kept.

**Rounding.** With \(\tau_o = \max |d_o| + \sum_b \lVert u_{bo} \rVert \lVert w_{bo} \rVert\), no column becomes longer than
\(\tau_o \lVert g_o \rVert\). Each of these sums is off by \(\gamma\) of what it could be at most, and three factors of a term and
its additions by \(6 \gamma\) of \(\tau_o^2 \lVert g_o \rVert^2\) all together, which is added before the root is taken. What G
itself is off by, and the sum's factors, passes through the same map, and becomes longer by \(\tau = \max_o \tau_o\) at most
(`_rounded`, with R as there). Where \(\delta\) is bfloat16's, a cotangent times its clip factor is therefore summed in two parts,
each rounded to what the matrix unit reads, which leaves \(\delta^2\) of what rounding it once would.

Others' rows are rounded beside an example's, and their sum once more where it is pulled back. So that they aren't rounded to what
has a thousand times the clip norm and goes away afterwards, the first bound is no less than \(2^{-10} \tau_o^2 \lVert g_o
\rVert^2\), and the second no less than \(2^{-11} \tau R\): some per cent of an ordinary gradient's norm.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._platform import default_platform
from .._arithmetic import Arithmetic
from .._clip import Norm
from .._norm import SMALLEST, UNIT_ROUNDOFF, add_up_each, gamma
from ._gradient import columns_of, divided, form_columns, form_pieces
from ._pull_back import ITSELF, PullBack, is_of_columns
from ._rounded import ROOTS, SMALLEST_PRODUCT, Lengths
from ._uses import Site

_FLUSHED = 2.0**-122  # sixteen times what a product below float32's range could have been
_LEAST_OFF, _LEAST_PASSED = 2.0**-10, 2.0**-11


class Measured(NamedTuple):
    """A pull-back and how far it stretches columns, [columns] each.

    Attributes:
        by: the pull-back.
        products: of each two u, by number, for each anchor of the value's shape.
        largest: of each column, of all |d|.
        given, taken: the lengths of all u, and numbers |c|; of all w.
        stretch: how many times as long a column can become.
    """

    by: PullBack
    products: list[dict[tuple[int, int], Array]]
    largest: Array
    given: Array
    taken: Array
    stretch: Array


def measured(by: PullBack, site: Site) -> Measured:
    """How far a pull-back stretches what a site uses, at most."""
    lengths, products = _sums_of_coefficients(by, site)
    left = site.own.left
    slack = jnp.float32(1 + gamma(2 * (left + 16)))
    length = lambda squared: jnp.sqrt(squared + jnp.float32(2 * left * SMALLEST)) * slack
    largest = jnp.zeros(site.own.stack * site.own.right, jnp.float32)
    for of in by.of_wholes:
        largest += jnp.max(jnp.abs(of[ITSELF]), axis=site.own.left_axes).reshape(-1)
    stretch, given, taken = largest, 0 * largest, 0 * largest
    for b in range(1, len(by.sums) + 1):
        own = sum((length(both[b, b]) for both in products if (b, b) in both), jnp.zeros_like(largest))
        own += sum((jnp.abs(of[b]).reshape(-1) for of in by.of_columns if b in of), 0.0)
        stretch += own * length(lengths[b]) * slack
        given, taken = given + own, taken + length(lengths[b])
    return Measured(by, products, largest, given, taken, stretch)


def form_for_sums(site: Site, others: Sequence[jax.Array], cotangent: jax.Array) -> list[jax.Array]:
    """One example's gradient with respect to what the site uses, in pieces, as its sums along columns cost least."""
    if _is_on_its_side(site):
        return [form_columns(site, others, cotangent)]
    return form_pieces(site, others, cotangent)


def norm_of_transformed(
    formed: Sequence[Float[Array, "B ..."]],
    of: Measured,
    site: Site,
    reach: Float[Array, " B"],
    arithmetic: Arithmetic,
) -> Norm:
    """Of gradients, [B], once they are pulled back.

    Args:
        formed: by `form_for_sums`, from rounded factors.
        of: the pull-back.
        site: the use.
        reach: R, of factors before they are rounded.
        arithmetic: of the sums.
    """
    by, wholes = of.by, of.by.of_wholes
    scales = [whole[ITSELF] for whole in wholes]
    terms = [(i, b) for i, whole in enumerate(wholes) for b in whole if b != ITSELF]
    apart = [is_of_columns(scale, site) for scale in scales]  # needn't be multiplied within the sums
    crossed = [wholes[i][b] if apart[i] else wholes[i][b] * scales[i] for i, b in terms]
    own, found, squares = _sums_of_gradients(formed, [*by.sums, *crossed], scales, site)
    sums = dict(enumerate(found[: len(by.sums)], 1))
    none = jnp.zeros_like(own)
    square = sum(squares, none)
    for (i, b), total in zip(terms, found[len(by.sums) :], strict=True):
        square += 2 * sums[b] * (total * scales[i].reshape(1, -1) if apart[i] else total)
    for both in of.products:
        square += sum(((1 + (b != c)) * sums[b] * (sums[c] * x[None]) for (b, c), x in both.items()), none)
    for numbers in by.of_columns:
        square += jnp.square(sum((sums[b] * c.reshape(1, -1) for b, c in numbers.items()), none))

    left, columns = site.own.left, own.shape[1]
    at_once = max(math.prod(piece.shape[1:]) for piece in formed) // columns + len(formed)
    off_by = max(5.1 * gamma(2 * (at_once + 16)) + 1.1 * gamma(2 * (left + 16)), _LEAST_OFF)
    off = own * jnp.square(of.stretch)[None] * jnp.float32(off_by)
    flushed = (1 + of.given) * (1 + of.stretch) + of.taken * (1 + of.largest + of.taken)
    off += jnp.float32(left * _FLUSHED) * (flushed[None] * (1 + own))
    square, off = (jnp.sum(x, axis=1) for x in (jnp.maximum(square, 0), off))

    of_parts = arithmetic.factor_roundoff ** parts_of(arithmetic)
    kept = 2.1 * arithmetic.gamma(site.own.rows + 2) + of_parts + 2 * UNIT_ROUNDOFF
    passed = jnp.float32(max(kept, _LEAST_PASSED) * (1 + arithmetic.factor_roundoff) ** 2) * reach
    passed += jnp.float32(site.own.rows * site.source.aval.size * SMALLEST_PRODUCT)
    upper = jnp.sqrt(square + off) * jnp.float32(1 + gamma(2 * (columns + 16))) + jnp.max(of.stretch) * passed
    return Norm(jnp.sqrt(jnp.maximum(square, 0)), upper * jnp.float32(1 + ROOTS))


def parts_of(arithmetic: Arithmetic) -> int:
    """In how many parts a cotangent times its clip factor is summed: one, if rounding it adds no more than is added anyway."""
    return 1 if arithmetic.factor_roundoff <= 1.1 * _LEAST_PASSED else 2


def are_lost(of: Measured, site: Site, lengths: Lengths, clip_norm: Any) -> Bool[Array, " B"]:
    """Whether what is below float32's range in a cotangent times its clip factor may be more than a millionth of the clip norm.

    Each entry, in two parts at most, loses no more than two such numbers, which its row multiplies: that counts for clip norms
    of 1e-14.
    """
    entries = math.sqrt(site.own.rows * site.source.aval.size)
    lost = jnp.sqrt(lengths.left[:, 0]) + jnp.float32(site.own.rows)
    return jnp.max(of.stretch) * (jnp.float32(2.0**-124 * entries) * lost) > jnp.float32(clip_norm) * jnp.float32(
        2.0**-20
    )


def _is_on_its_side(site: Site) -> bool:
    """Whether a gradient is formed with its columns' entries side by side, and its columns are in the source's order then."""
    axes = [*site.own.stack_axes, *site.own.right_axes]
    return default_platform().adds_up_last_axes and (site.rule.divide is not None or axes == sorted(axes))


def _sums_of_gradients(
    formed: Sequence[Float[Array, "B ..."]], weights: Sequence[Array], scales: Sequence[Array], site: Site
) -> tuple[Any, list[Any], list[Any]]:
    """Along the columns of gradients, [B, columns] each, by one pass over every piece.

    Returns:
        Of their squares; of them times each weight; of the squares of them times each scale.
    """
    whole_weights, whole_scales = ([x for x in those if not is_of_columns(x, site)] for those in (weights, scales))
    if _is_on_its_side(site):
        of_pieces, axes = [[columns_of(site, x) for x in (*whole_weights, *whole_scales)]], (2,)
        add_up = lambda arrays, axes: [jnp.sum(x, axis=axes) for x in arrays]
    else:
        of_pieces, axes = divided(site, [*whole_weights, *whole_scales], len(formed))
        add_up = add_up_each
    total: list[Any] = [jnp.float32(0)] * (2 + len(whole_weights) + len(whole_scales))
    for piece, factors in zip(formed, of_pieces, strict=True):
        products = [piece * factor[None] for factor in factors]
        products[len(whole_weights) :] = map(jnp.square, products[len(whole_weights) :])
        found = add_up([jnp.square(piece), piece, *products], [axis + 1 for axis in axes])
        total = [sofar + x.reshape(x.shape[0], -1) for sofar, x in zip(total, found, strict=True)]
    own, plain, *rest = total
    left_over = iter(rest)
    take = lambda x, without: without(x.reshape(1, -1)) if is_of_columns(x, site) else next(left_over)
    of_weights = [take(x, lambda x: x * plain) for x in weights]
    return own, of_weights, [take(x, lambda x: jnp.square(x) * own) for x in scales]


def _sums_of_coefficients(by: PullBack, site: Site) -> tuple[dict[int, Any], list[dict[tuple[int, int], Any]]]:
    """Squared lengths of the columns of each w, [columns], and products of those of each two u, of each anchor of their shape."""
    wholes = by.of_wholes
    pairs = [(i, b, c) for i, of in enumerate(wholes) for b in of for c in of if ITSELF < b <= c]
    arrays = [*map(jnp.square, by.sums), *(wholes[i][b] * wholes[i][c] for i, b, c in pairs)]
    whole = [x for x in arrays if not is_of_columns(x, site)]
    added_up = iter(add_up_each(whole, site.own.left_axes))
    total = [x * jnp.float32(site.own.left) if is_of_columns(x, site) else next(added_up) for x in arrays]
    flat = [x.reshape(-1) for x in total]
    products: list[dict[tuple[int, int], Any]] = [{} for _ in wholes]
    for (i, b, c), x in zip(pairs, flat[len(by.sums) :], strict=True):
        products[i][b, c] = x
    return dict(enumerate(flat[: len(by.sums)], 1)), products
