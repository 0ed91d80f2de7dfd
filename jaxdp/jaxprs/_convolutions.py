"""Arrangements of axes that XLA's compilers have fast code for: of convolutions on a CPU, of what they read on a TPU."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from ._jaxpr import CONV, Eqn

_LANES = 128  # of a TPU's registers, to which the last axis is padded


def in_order(eqn: Eqn, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution over [batch, *space, channel] by [*window, in, out]."""
    params, numbers, last = dict(eqn.params), eqn.params["dimension_numbers"], inputs.ndim - 1
    channel_last = lambda spec: (spec[0], *spec[2:], spec[1])
    out = channel_last(numbers.out_spec)
    space = tuple(range(1, last))
    params["dimension_numbers"] = jax.lax.ConvDimensionNumbers(
        (0, last, *space), (last, last - 1, *range(last - 1)), (0, last, *space)
    )
    kernel = jnp.transpose(kernel, (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]))
    result = CONV.bind(jnp.transpose(inputs, channel_last(numbers.lhs_spec)), kernel, **params)
    return jnp.transpose(result, [out.index(axis) for axis in range(last + 1)])


def with_less_before(eqn: Eqn, inputs: jax.Array) -> tuple[Eqn, jax.Array]:
    """A convolution whose padding takes nothing away, of inputs from which that was taken before; else both as they are.

    XLA's convolutions on a CPU read beyond inputs that padding makes smaller (JAX 0.10): into what the next example has.
    """
    padding, dilation = eqn.params["padding"], eqn.params["lhs_dilation"]
    if all(n >= 0 for ends in padding for n in ends):
        return eqn, inputs
    config = [(0, 0, 0)] * inputs.ndim
    for axis, (low, high), step in zip(eqn.params["dimension_numbers"].lhs_spec[2:], padding, dilation, strict=True):
        config[axis] = (low, high, step - 1)
    inputs = jax.lax.optimization_barrier(jax.lax.pad(inputs, inputs.dtype.type(0), config))
    nothing = {"padding": ((0, 0),) * len(padding), "lhs_dilation": (1,) * len(padding)}
    return eqn.replace(params={**eqn.params, **nothing}), inputs


def in_order_on_tpus(array: jax.Array) -> jax.Array:
    """The same, with its axes in memory as they are numbered where a program is compiled for a TPU.

    Its compiler keeps examples side by side, as its convolutions read them; what reads shifted slices of each example by itself
    would then copy every slice.
    """
    return _ordered_on_tpus(array, range(array.ndim))


def heads_outside_on_tpus(array: jax.Array) -> jax.Array:
    """The same rows of several heads, [B, ..., T, heads, d], with a matrix [T, d] for each head in memory on a TPU.

    So attention computes them and reads them; beside other products its compiler would copy all of them once more. Of T and d
    the one that fills the 128 lanes better is last. Where the B examples fill them best, they stay as the compiler likes.
    """
    *outer, rows, heads, entries = range(array.ndim)
    examples, by_rows, by_entries = (
        -(-array.shape[axis] // _LANES) * _LANES / max(array.shape[axis], 1) for axis in (0, rows, entries)
    )
    if examples < min(by_rows, by_entries):
        return array
    last = (entries, rows) if by_rows < by_entries else (rows, entries)
    return _ordered_on_tpus(array, (*outer, heads, *last))


def _ordered_on_tpus(array: jax.Array, major_to_minor: Sequence[int]) -> jax.Array:
    order = Layout(major_to_minor=tuple(major_to_minor))
    return jax.lax.platform_dependent(array, tpu=lambda x: with_layout_constraint(x, order), default=lambda x: x)
