"""The rule of convolutions: each output position is a row, the input patch under the kernel there its left vector.

A batch dimension within the example adds rows; groups are stacked. Patches are strided slices of the input and the zeros around
it, one for each position in the kernel, so that no convolution runs a second time.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product, starmap

import jax
import jax.numpy as jnp

from ....jaxprs import in_order_on_tpus
from ....jaxprs._jaxpr import CONV, Eqn
from ._rule import Dense, Layout, OuterProducts, Pieces, Rule, knows_settings

_SETTINGS = frozenset(
    {
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "feature_group_count"),
        *("batch_group_count", "precision", "preferred_element_type", "out_sharding"),
    }
)


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use: a parameter as the kernel, any strides, dilation and groups, any padding that adds.

    With padding that takes away, XLA's convolutions on a CPU read beyond their input.
    """
    is_kernel = eqn.primitive is CONV and operand == 1 and knows_settings(eqn, _SETTINGS)
    adds = is_kernel and all(n >= 0 for ends in eqn.params["padding"] for n in ends)
    return adds and eqn.params["batch_group_count"] == 1


def layout(eqn: Eqn, operand: int) -> Layout:
    """Input channels and kernel positions are left, output channels right, groups stacked, output positions rows."""
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    kernel, out = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    out_channel, in_channel, *window = numbers.rhs_spec
    return Layout(
        stack_axes=(),
        left_axes=(*window, in_channel),
        right_axes=(out_channel,),
        stack=groups,
        rows=math.prod(out) // out[numbers.out_spec[1]],
        left=math.prod(kernel) // kernel[out_channel],
        right=kernel[out_channel] // groups,
        fixed=(groups, *numbers.rhs_spec),
    )


def outer_products(
    eqn: Eqn, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array
) -> OuterProducts:
    """The patches, and the output's cotangent as rows."""
    parts = _parts(eqn, how, others[0])
    left = Dense(jnp.concatenate(parts, axis=2), () if _is_one_piece(eqn) else parts)
    return OuterProducts(left, Dense(_right(eqn, how, cotangent)))


def gradient(
    eqn: Eqn,
    operand: int,
    how: Layout,
    others: Sequence[jax.Array],
    cotangent: jax.Array,
    precision: jax.lax.Precision,
) -> list[jax.Array]:
    """One example's gradient, a matrix product for each position in the kernel, or one with all patches."""
    if _is_one_piece(eqn):
        return [_product_of_few_channels(_patches(eqn, how, others[0]), _right(eqn, how, cotangent), precision)]
    # Positions on their own axes: products read shifted slices where they are, which as rows would be copied first.
    x, right = in_order_on_tpus(others[0]), _outputs(eqn, in_order_on_tpus(cotangent))
    positions = tuple(range(right.ndim - 2))
    axes = (positions, positions), ((right.ndim - 2,), (right.ndim - 2,))
    return [jax.lax.dot_general(left, right, axes, precision=precision) for left in _shifted_inputs(eqn, x)]


def summed(
    eqn: Eqn,
    operand: int,
    how: Layout,
    others: Sequence[jax.Array],
    cotangents: jax.Array,
    precision: jax.lax.Precision,
) -> list[jax.Array]:
    """A batch's gradient in one piece, by one product of all patches."""
    left = jax.vmap(lambda x: _patches(eqn, how, x))(others[0])
    right = jax.vmap(lambda g: _right(eqn, how, g))(cotangents)
    return [jnp.einsum("betp,betd->epd", left, right, precision=precision)]


def _product_of_few_channels(left: jax.Array, right: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """[E, p, d] of [E, T, p] and [E, T, d].

    A TPU pads the last axis to 128 entries. There it is the rows', of which there are many.
    """
    last = lambda rows: jnp.swapaxes(rows, 1, 2)
    return jax.lax.platform_dependent(
        left,
        right,
        tpu=lambda left, right: jnp.einsum("ept,edt->epd", last(left), last(right), precision=precision),
        default=lambda left, right: jnp.einsum("etp,etd->epd", left, right, precision=precision),
    )


def assemble(eqn: Eqn, operand: int, how: Layout, pieces: Pieces) -> jax.Array:
    """The kernel's axes in their order."""
    kernel = eqn.invars[1].aval.shape
    out_channel, in_channel, *window = eqn.params["dimension_numbers"].rhs_spec
    formed = _stacked(*pieces)
    formed = formed.reshape(how.stack, *(kernel[i] for i in window), kernel[in_channel], how.right)
    formed = jnp.moveaxis(formed, 0, -2).reshape(*formed.shape[1:-1], kernel[out_channel])
    return jnp.transpose(formed, _inverse((*window, in_channel, out_channel)))


def divide(eqn: Eqn, operand: int, how: Layout, whole: jax.Array, count: int) -> list[jax.Array]:
    """Of an array on the kernel's axes, a piece for each position in the kernel, or one for them all."""
    out_channel, in_channel, *window = eqn.params["dimension_numbers"].rhs_spec
    matrices = jnp.transpose(whole, (*window, in_channel, out_channel)).reshape(how.left, how.stack, how.right)
    return jnp.split(jnp.moveaxis(matrices, 1, 0), count, axis=1)


@jax.custom_batching.custom_vmap
def _stacked(*pieces: jax.Array) -> jax.Array:
    """Along a new second axis.

    A TPU's compiler writes one piece after another: by its estimate a v5e takes 17 thousand cycles for 9 of 64 × 64, and 3.5
    thousand to add them up, each among zeros. Of every example's that costs more.
    """

    def among_zeros(place: int, piece: jax.Array) -> jax.Array:
        beside = [(0, 0, 0), (place, len(pieces) - 1 - place, 0), *[(0, 0, 0)] * (piece.ndim - 1)]
        return jax.lax.pad(piece[:, None], jnp.zeros((), piece.dtype), beside)

    add_up = lambda *pieces: reduce(jnp.add, starmap(among_zeros, enumerate(pieces)))
    return jax.lax.platform_dependent(*pieces, tpu=add_up, default=lambda *pieces: jnp.stack(pieces, axis=1))


@_stacked.def_vmap
def _(size: int, batched: Sequence[bool], *pieces: jax.Array) -> tuple[jax.Array, bool]:
    each = [
        x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
        for x, is_batched in zip(pieces, batched, strict=True)
    ]
    return jnp.stack(each, axis=2), True


def _is_one_piece(eqn: Eqn) -> bool:
    """Whether there are too few channels for products of their own."""
    return eqn.invars[1].aval.shape[eqn.params["dimension_numbers"].rhs_spec[1]] < 8


def _parts(eqn: Eqn, how: Layout, x: jax.Array) -> tuple[jax.Array, ...]:
    """Of the patches, what each position in the kernel sees."""
    return tuple(_in_rows(how, seen) for seen in _shifted_inputs(eqn, x))


def _patches(eqn: Eqn, how: Layout, x: jax.Array) -> jax.Array:
    return jnp.concatenate(_parts(eqn, how, x), axis=2)


def _right(eqn: Eqn, how: Layout, cotangent: jax.Array) -> jax.Array:
    return _in_rows(how, _outputs(eqn, cotangent))


def _in_rows(how: Layout, positions: jax.Array) -> jax.Array:
    """[groups, T, channels] of [*positions, groups, channels]."""
    return jnp.moveaxis(positions.reshape(how.rows, *positions.shape[-2:]), 1, 0)


def _outputs(eqn: Eqn, cotangent: jax.Array) -> jax.Array:
    """[*positions, groups, channels]."""
    batch, channel, *positions = eqn.params["dimension_numbers"].out_spec
    return _in_groups(eqn, jnp.transpose(cotangent, (batch, *positions, channel)))


def _in_groups(eqn: Eqn, positions: jax.Array) -> jax.Array:
    groups = eqn.params["feature_group_count"]
    return positions.reshape(*positions.shape[:-1], groups, positions.shape[-1] // groups)


def _shifted_inputs(eqn: Eqn, x: jax.Array) -> Iterator[jax.Array]:
    """For each position in the kernel, what it sees of the input at every output position: [*positions, groups, channels]."""
    numbers = eqn.params["dimension_numbers"]
    batch, channel, *space = numbers.lhs_spec
    window = [eqn.invars[1].aval.shape[i] for i in numbers.rhs_spec[2:]]
    out = [eqn.outvars[0].aval.shape[i] for i in numbers.out_spec[2:]]
    strides, dilation = eqn.params["window_strides"], eqn.params["rhs_dilation"]
    x = jnp.transpose(x, (batch, *space, channel))
    padding = eqn.params["padding"]
    early = [ends if by == 1 else (0, 0) for ends, by in zip(padding, strides, strict=True)]
    x = _pad(x, [(lo, hi, d - 1) for (lo, hi), d in zip(early, eqn.params["lhs_dilation"], strict=True)])
    late = [lo - done for (lo, _), (done, _) in zip(padding, early, strict=True)]
    for offset in product(*(range(size) for size in window)):
        starts = [o * d - lo for o, d, lo in zip(offset, dilation, late, strict=True)]
        seen = [_seen(start, *axis) for start, *axis in zip(starts, strides, x.shape[1:-1], out, strict=True)]
        yield _in_groups(eqn, _pad(x[:, *(within for within, _ in seen)], [zeros for _, zeros in seen]))


def _pad(x: jax.Array, space: Sequence[tuple[int, int, int]]) -> jax.Array:
    """With zeros before, after and between what is on each axis of [batch, *space, channel]."""
    none = (0, 0, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [none, *space, none]) if any(map(any, space)) else x


def _seen(start: int, stride: int, size: int, out: int) -> tuple[slice, tuple[int, int, int]]:
    """Of an axis, what one position in the kernel sees at each output, and the zeros before and after it.

    Where a window steps on, inputs are sliced before they are padded: by its compiler's estimate a v5e takes 71 thousand cycles
    to pad 16 × 32 × 32 × 64 of them by one row and column. With a stride of one the other order is the cheaper one.
    """
    first = min(max(0, -(start // stride)), out)
    last = max(first, min(out, -((start - size) // stride)))
    return slice(start + first * stride, start + last * stride, stride), (first, out - last, 0)


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(permutation.index(i) for i in range(len(permutation)))


def repeats(eqn: Eqn, operand: int) -> int:
    """Once for each position in the kernel that a step of the window doesn't skip."""
    window = [eqn.invars[1].aval.shape[i] for i in eqn.params["dimension_numbers"].rhs_spec[2:]]
    steps = [
        by // math.gcd(by, d) for by, d in zip(eqn.params["window_strides"], eqn.params["rhs_dilation"], strict=True)
    ]
    return math.prod(math.ceil(size / step) for size, step in zip(window, steps, strict=True))


CONVOLUTION = Rule(
    name="conv",
    covers=covers,
    layout=layout,
    outer_products=outer_products,
    gradient=gradient,
    assemble=assemble,
    divide=divide,
    repeats=repeats,
    summed=summed,
)
