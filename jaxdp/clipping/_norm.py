r"""The L2 norm of each example's gradient, in float32, with a proven bound on its rounding error.

A norm that comes out too small lets an example through with more influence than was accounted. Two things make float32
norms too small: squares that underflow (or overflow), and the rounding of a sum of millions of squares. Here squares are
added in blocks of 32, blocks of blocks, and so on, so that no partial sum passes through more than 31 additions a level: the
relative error of the sum is at most \((31 \cdot \text{levels} + \text{leaves} + 2)\,u\) with \(u = 2^{-24}\)
(Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2): about 8e-6 for a million parameters, and half of that
for the norm. Where a sum doesn't show by its size that no square left float32's range, that example's gradient is first
scaled by a power of two (exactly) so that its largest entry lies in [1/2, 1); where branches cost something, or may not be, all
are.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._alike import Alike
from .._errors import UsageError
from .._mesh import branches_may_differ
from .._platform import default_platform
from ..jaxprs import as_one_value
from ._powers import exponent_of, times_power_of_two

_BLOCK = 32
ONE_SUM = 2**14  # squares: their sum is off by a fifth of a per cent at the most
_ROW = 2**10
_MANY = 2**12  # entries
_COLUMNS = 8  # as many as a TPU has rows in a register; of a single one XLA makes an ordinary sum
_TOGETHER = 32  # arrays that are added up in one operation: XLA has limits to what one may read
SMALLEST = 2.0**-126  # of float32's numbers that have all of their bits
UNIT_ROUNDOFF = 2.0**-24


def per_example_norms(grads: Any) -> Float[Array, " B"]:
    """The L2 norm of each example's gradient over all leaves together.

    Args:
        grads: pytree of float32 arrays [B, ...].

    Returns:
        float32 [B]. NaN or inf where the gradient has a NaN or infinite entry; inf where the norm itself exceeds float32.
    """
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(grads)]
    if not default_platform().branches_cost_nothing or branches_may_differ():
        return _of_scaled(rows)
    squares = sum(sum_in_blocks(jnp.square(row)) for row in rows)
    size = sum(row.shape[1] for row in rows)
    least = size * SMALLEST * 2.0**36  # 2^36 times what squares below float32's range can add up to
    # One number in both branches: that another example isn't in range must not round this one's otherwise.
    squares, norms = as_one_value((squares, jnp.sqrt(squares)))
    are_in_range = (squares > least) & jnp.isfinite(squares)
    scaled = lambda: jnp.where(are_in_range, norms, _of_scaled(rows))
    return jax.lax.cond(jnp.all(are_in_range), lambda: norms, scaled)


def _of_scaled(rows: Sequence[Float[Array, "B _"]]) -> Float[Array, " B"]:
    """In two passes, the first of them for the largest entry."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(row), axis=1, initial=0) for row in rows]), axis=0)
    exponent = exponent_of(largest)
    down = times_power_of_two(jnp.ones_like(largest), -exponent)
    squares = sum(sum_in_blocks(jnp.square(row * down[:, None])) for row in rows)
    norms = times_power_of_two(jnp.sqrt(squares), exponent)
    return jnp.where(jnp.isfinite(largest), norms, largest)


def relative_error_bound(grads: Any) -> float:
    """By how much, relatively, a clipped gradient's norm may exceed its target through rounding, at the most.

    Covers the sum of squares (halved by the square root), the square root itself, the division that makes the clip factor,
    the multiplication of each entry by it, and squares below float32's range.

    Args:
        grads: pytree of arrays [B, ...], or of anything with a `shape`.

    Returns:
        A plain float, such as 4e-6.
    """
    sizes = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(grads)]
    sum_of_squares = max(sum_in_blocks_error(size) for size in sizes) + len(sizes) * UNIT_ROUNDOFF
    return sum_of_squares / 2 + 6 * UNIT_ROUNDOFF


def gamma(n: int, unit_roundoff: float = UNIT_ROUNDOFF) -> float:
    """γ_n = nu / (1 - nu), the relative error of a float32 inner product of n terms, added in any order.

    Raises:
        UsageError: for so many that nothing would be left of a bound.
    """
    off = n * unit_roundoff
    if off >= 1:
        raise UsageError(
            f'the rounding of a sum of {n:,} numbers in float32 has no bound: choose precision="float32", or method="vmap"'
        )
    return off / (1 - off)


def sum_in_blocks_error(size: int) -> float:
    """The relative error of a sum of `size` float32 squares in blocks, the squaring included."""
    levels = math.ceil(math.log(max(size, 2), _BLOCK))
    return ((_BLOCK - 1) * levels + 2) * UNIT_ROUNDOFF


def sum_in_blocks(x: Float[Array, "B size"]) -> Float[Array, " B"]:
    """The sum of each row, added up in blocks of blocks."""
    while x.shape[1] > 1:
        block = min(_BLOCK, x.shape[1])
        columns = -(-x.shape[1] // block)
        padded = jnp.pad(x, ((0, 0), (0, columns * block - x.shape[1])))
        x = jnp.sum(padded.reshape(-1, block, columns), axis=1)
    return jnp.sum(x, axis=1)


def sum_of_squares(
    x: Float[Array, "*n"], apart: Sequence[int] = (), at_once: int = ONE_SUM, *others: Float[Array, "*n"]
) -> Float[Array, "*apart"]:
    """Of an array's entries, those along some axes apart, with what squares below float32's range could have added.

    A single pass, for devices on which that is what counts: inf where the sum exceeds float32, which is from lengths of 1e19 on.

    Args:
        x: any floating dtype; n entries to each sum.
        apart: axes that are kept.
        at_once: how many squares are added up in one sum, at most.
        *others: further arrays of the same shape, added entry by entry first: one operation for many small arrays.

    Returns:
        float32. The true sum exceeds it by at most `sum_of_squares_error` of the axes that aren't kept, relatively.
    """
    x = sum((jnp.square(other.astype(jnp.float32)) for other in others), jnp.square(x.astype(jnp.float32)))
    own = [axis for axis in range(x.ndim) if axis not in apart]
    below = jnp.float32((1 + len(others)) * math.prod(x.shape[axis] for axis in own) * 2 * SMALLEST)
    x, own = _in_sums(x, own, at_once)
    return jnp.sum(x, axis=own) + below


def are_added_up_by_products(shape: Sequence[int], apart: Sequence[int]) -> bool:
    """Whether there are so many entries on several axes, the last among them, that `squares_by_products` costs less.

    Axes of a single entry don't count: the product runs over the last one of the others.
    """
    axes = [axis for axis, size in enumerate(shape) if size != 1 or axis in apart]
    own = [shape[axis] for axis in axes if axis not in apart]
    ends_in_own = bool(axes) and axes[-1] not in apart
    return ends_in_own and math.prod(own[:-1]) > 1 and own[-1] <= ONE_SUM and math.prod(own) >= _MANY


def squares_by_products(
    arrays: Sequence[Float[Array, "*n"]], apart: Sequence[int], at_once: int
) -> Float[Array, "*apart"]:
    """`sum_of_squares` of all of some arrays of one shape, by a product with ones: a matrix unit reads the squares in bfloat16.

    By its compiler's estimate a v5e takes 2.4 to 2.6 thousand cycles for 16 arrays of 16 × 16 × 128, and 10.9 otherwise; for 16
    of 32 × 32 × 64 3.2 to 4.1, and 38.8.

    Returns:
        float32. The true sum exceeds it by at most the rounding of a square to bfloat16, `sum_of_squares_error` of the axes that
        aren't kept, and the rounding of an addition for each array, relatively.
    """
    single = [axis for axis, size in enumerate(arrays[0].shape) if size == 1 and axis not in apart]
    apart = [axis - sum(each < axis for each in single) for axis in apart]
    squares = reduce(jnp.add, (jnp.square(jnp.squeeze(array, single).astype(jnp.float32)) for array in arrays))
    last = squares.ndim - 1
    entries = len(arrays) * math.prod(size for axis, size in enumerate(squares.shape) if axis not in apart)
    ones = jnp.ones((squares.shape[last], _COLUMNS), jnp.bfloat16)
    over_last: Any = (((last,), (0,)), ((), ()))
    by_column = jax.lax.dot_general(
        squares.astype(jnp.bfloat16), ones, over_last, precision="default", preferred_element_type=jnp.float32
    )
    x, own = _in_sums(by_column[..., 0], [axis for axis in range(last) if axis not in apart], at_once)
    return jnp.sum(x, axis=own) + jnp.float32(entries * 2 * SMALLEST)


def squares_to_add_up(x: Float[Array, "B ..."]) -> Float[Array, "B 1 ..."]:
    """Each row's `sum_of_squares` but for what is below float32's range, and for the last sum where there is more than one."""
    squares, own = jnp.square(x.astype(jnp.float32)), list(range(1, x.ndim))
    if math.prod(x.shape[1:]) <= ONE_SUM:
        return jnp.sum(squares, axis=own)[:, None]
    return _in_sums(squares, own, ONE_SUM)[0][:, None]


def _in_sums(x: Float[Array, "..."], own: list[int], at_once: int) -> tuple[Float[Array, "..."], list[int]]:
    """Sums along some axes, so that at most so many entries of them are left, and those axes."""
    while math.prod(x.shape[axis] for axis in own) > at_once:  # an axis at a time: fewer additions one upon another
        axis = next(axis for axis in reversed(own) if x.shape[axis] > 1)
        if x.shape[axis] > ONE_SUM:
            x = jnp.pad(x, [(0, -size % _ROW if i == axis else 0) for i, size in enumerate(x.shape)])
            x = x.reshape(*x.shape[:axis], -1, _ROW, *x.shape[axis + 1 :])
            own = [*(i for i in own if i <= axis), *(i + 1 for i in own if i >= axis)]
            axis += 1
        x = as_one_value(jnp.sum(x, axis=axis, keepdims=True))
    return x, own


def sums_of_squares(
    arrays: Sequence[Float[Array, "*n"]], apart: Sequence[int], at_once: int
) -> list[Float[Array, "*apart"]]:
    """`sum_of_squares` of each of several arrays of one shape, which a GPU reads in one kernel where one sum is enough."""
    each = lambda *arrays: [sum_of_squares(array, apart, at_once) for array in arrays]
    own = [axis for axis in range(arrays[0].ndim) if axis not in apart]
    if len(arrays) == 1 or math.prod(arrays[0].shape[axis] for axis in own) > at_once:
        return each(*arrays)

    def together(*arrays: Float[Array, "*n"]) -> list[Float[Array, "*apart"]]:
        below = sum_of_squares(jnp.zeros_like(arrays[0]), apart, at_once)
        return [
            found + below for found in add_up_each([jnp.square(array.astype(jnp.float32)) for array in arrays], own)
        ]

    return jax.lax.platform_dependent(*arrays, cuda=together, rocm=together, default=each)


def added_up(parts: Sequence[Float[Array, "_ _ ..."]]) -> list[Float[Array, "_ _"]]:
    """Each along all axes but the first two: those of one shape in one operation, where that costs more than what it adds up."""
    totals = list(parts)
    for group in Alike.of(parts, math.inf, before=1).groups:
        shape = parts[group[0]].shape
        if len(shape) == 2:
            continue
        axes = list(range(1, len(shape) - 1))
        together = lambda *arrays, axes=axes: add_up_each(arrays, axes)
        each = lambda *arrays, axes=axes: [jnp.sum(array, axis=axes) for array in arrays]
        rows = [parts[i].reshape(shape[0] * shape[1], *shape[2:]) for i in group]
        found = jax.lax.platform_dependent(*rows, tpu=together, cuda=together, rocm=together, default=each)
        for i, total in zip(group, found, strict=True):
            totals[i] = total.reshape(shape[:2])
    return totals


def add_up_each(arrays: Sequence[Float[Array, "..."]], axes: Sequence[int]) -> list[Float[Array, "..."]]:
    """Of float32 arrays of one shape, in one operation for so many of them."""
    add = lambda x, y: [a + b for a, b in zip(x, y, strict=True)]
    by_operation = [list(arrays[i : i + _TOGETHER]) for i in range(0, len(arrays), _TOGETHER)]
    return [total for some in by_operation for total in jax.lax.reduce(some, [jnp.float32(0)] * len(some), add, axes)]


def sum_of_squares_error(shape: Sequence[int], at_once: int = ONE_SUM, others: int = 0) -> float:
    """By how much, relatively, the sum of squares of an array can be off, whichever way a device adds up and rounds.

    Args:
        shape: of what is added up, without the axes that are kept apart.
        at_once: as for the sum.
        others: how many further arrays there are.
    """
    left, terms = list(shape), others
    while math.prod(left) > at_once:
        axis = next(i for i in reversed(range(len(left))) if left[i] > 1)
        terms += _ROW if left[axis] > ONE_SUM else left[axis]
        left[axis] = -(-left[axis] // _ROW) if left[axis] > ONE_SUM else 1
    return gamma(2 * (terms + math.prod(left) + 4))
