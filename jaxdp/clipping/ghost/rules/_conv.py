"""The rule of convolutions: each output position is a row, the input patch under the kernel there its left vector.

A batch dimension within the example adds rows; groups are stacked. Patches are strided slices of the padded input, one
for each position in the kernel, so that no convolution runs a second time.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import jax
import jax.numpy as jnp

from ....jaxprs._jaxpr import CONV, Eqn
from ._rule import Dense, Layout, OuterProducts, Pieces, Rule, knows_settings

_SETTINGS = frozenset(
    {
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "feature_group_count"),
        *("batch_group_count", "precision", "preferred_element_type", "out_sharding"),
    }
)


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use: a parameter as the kernel, any strides, padding, dilation and groups."""
    is_kernel = eqn.primitive is CONV and operand == 1 and knows_settings(eqn, _SETTINGS)
    return is_kernel and eqn.params["batch_group_count"] == 1


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
    return OuterProducts(Dense(_patches(eqn, how, others[0])), Dense(_right(eqn, how, cotangent)))


def gradient(
    eqn: Eqn,
    operand: int,
    how: Layout,
    others: Sequence[jax.Array],
    cotangent: jax.Array,
    precision: jax.lax.Precision,
) -> list[jax.Array]:
    """One example's gradient, a matrix product for each position in the kernel, or one with all patches."""
    right = _right(eqn, how, cotangent)
    multiply = lambda left: jnp.einsum("etp,etd->epd", left, right, precision=precision)
    if _is_one_piece(eqn):
        return [multiply(_patches(eqn, how, others[0]))]
    return [multiply(left) for left in _shifted_inputs(eqn, others[0])]


def assemble(eqn: Eqn, operand: int, how: Layout, pieces: Pieces) -> jax.Array:
    """The kernel's axes in their order."""
    kernel = eqn.invars[1].aval.shape
    out_channel, in_channel, *window = eqn.params["dimension_numbers"].rhs_spec
    formed = pieces[0] if _is_one_piece(eqn) else jnp.stack(pieces, axis=1)
    formed = formed.reshape(how.stack, *(kernel[i] for i in window), kernel[in_channel], how.right)
    formed = jnp.moveaxis(formed, 0, -2).reshape(*formed.shape[1:-1], kernel[out_channel])
    return jnp.transpose(formed, _inverse((*window, in_channel, out_channel)))


def _is_one_piece(eqn: Eqn) -> bool:
    """Whether there are too few channels for products of their own."""
    return eqn.invars[1].aval.shape[eqn.params["dimension_numbers"].rhs_spec[1]] < 8


def _patches(eqn: Eqn, how: Layout, x: jax.Array) -> jax.Array:
    return jnp.concatenate(list(_shifted_inputs(eqn, x)), axis=2)


def _right(eqn: Eqn, how: Layout, cotangent: jax.Array) -> jax.Array:
    batch, channel, *positions = eqn.params["dimension_numbers"].out_spec
    rows = jnp.transpose(cotangent, (batch, *positions, channel)).reshape(how.rows, how.stack, how.right)
    return jnp.moveaxis(rows, 1, 0)


def _shifted_inputs(eqn: Eqn, x: jax.Array) -> Iterator[jax.Array]:
    """For each position in the kernel, what it sees of the input at every output position: [groups, T, channels]."""
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    batch, channel, *space = numbers.lhs_spec
    window = [eqn.invars[1].aval.shape[i] for i in numbers.rhs_spec[2:]]
    out = [eqn.outvars[0].aval.shape[i] for i in numbers.out_spec[2:]]
    strides, dilation = eqn.params["window_strides"], eqn.params["rhs_dilation"]
    x = jnp.transpose(x, (batch, *space, channel))
    spread = zip(eqn.params["padding"], eqn.params["lhs_dilation"], strict=True)
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in spread), (0, 0, 0)])
    for offset in product(*(range(size) for size in window)):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [s + (n - 1) * by + 1 if n else s for s, n, by in zip(start, out, strides, strict=True)]
        seen = jax.lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *strides, 1))
        yield jnp.moveaxis(seen.reshape(-1, groups, x.shape[-1] // groups), 1, 0)


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
    repeats=repeats,
)
