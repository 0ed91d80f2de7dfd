"""What is chosen by the kind of device, in one table, with what each figure rests on.

The kind is that of the device that JAX computes on by default where a function is traced: `jax.default_device`, as
`jaxdp train --device` sets it, before the backend that the process happens to have. What is traced here for a device that isn't
there is traced within `compiling_for`; `precision=` and `microbatch_size=` come before the table.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of device.

    Attributes:
        precision: what `precision="auto"` is.
        products_are_float32: whether a product of float32 numbers at the default precision is one; else it may be rounded.
        operations_per_byte: in full float32, in the time that memory takes for a byte: what forming a gradient is weighed by.
        microbatch_bytes: of the activations of a microbatch; None for a quarter of the device's memory.
        arranged: whether its compiler needs programs as `jaxprs.for_cpus` arranges them: to be fast, and to be right.
        branches_cost_nothing: so that what is seldom needed may wait in one; else what is before and after one isn't fused, and a
            GPU's host waits for what it depends on.
        computes_again: whether what a step of a loop can cheaply compute again isn't kept for its way back: where no cache holds
            it, reading it costs more.
        rows_on_one_axis: whether a product's several axes of rows are brought to one first, where its gradient is formed for each
            example.
        adds_up_last_axes: whether one pass makes as many sums along an array's last axis as are asked for, and few along others.
        steps_per_call: of training, at most.
        draws_together: of how many values, of the smallest arrays, noise is drawn as that of one array.
        compiler_options: how its compiler makes steps, which run often.
    """

    precision: str
    products_are_float32: bool
    operations_per_byte: float
    microbatch_bytes: int | None
    arranged: bool
    branches_cost_nothing: bool
    computes_again: bool
    rows_on_one_axis: bool
    adds_up_last_axes: bool
    steps_per_call: int
    draws_together: int
    compiler_options: tuple[tuple[str, int], ...] = ()


CPU = Platform(
    precision="float32",
    products_are_float32=True,
    operations_per_byte=8,  # two cores: what the models of benchmarks/clipping.py were fastest with
    microbatch_bytes=24 * 2**20,  # from 32 MiB on, glibc maps a temporary anew at every call
    arranged=True,  # 10 to 40 times slower otherwise (benchmarks/clipping.py, the CNN in microbatches)
    branches_cost_nothing=True,
    computes_again=False,  # the LSTM of benchmarks/clipping.py in microbatches: 52 ms, and 57 with it
    rows_on_one_axis=True,  # as on a GPU
    adds_up_last_axes=False,  # not measured: gradients that ask for it aren't formed there, but by another device's arithmetic
    steps_per_call=1,  # a loop is no faster and hurts some models
    draws_together=2**17,  # each array of its own took 0.2 s to trace and compile, by hand; an index takes 8 bytes
    compiler_options=(
        ("xla_cpu_prefer_vector_width", 512),  # a processor with AVX-512 draws noise in half the time, others as before
    ),
)
GPU = Platform(
    precision="tensorfloat32",
    products_are_float32=False,
    operations_per_byte=20,  # NVIDIA's data sheet of the H100 SXM: 67e12 operations in float32, 3.35e12 bytes a second
    microbatch_bytes=None,
    arranged=False,
    branches_cost_nothing=False,
    computes_again=True,  # by its compiler, an H100 moves 21 GB for the LSTM's clipped gradient, and 29 without
    rows_on_one_axis=True,  # by its compiler, an H100 runs 46 kernels for the CNN's clipped gradient, and 48 without
    adds_up_last_axes=True,  # by its compiler, an H100 moves 2.17 GB for a standardised WRN-16-4's, and 2.36 without
    steps_per_call=64,  # a dispatch costs more than a short step
    draws_together=0,  # draws are fused with what reads them
)
TPU = Platform(
    precision="bfloat16",
    products_are_float32=False,
    operations_per_byte=40,  # Google's figures for v5e: 197e12 operations in bfloat16, six for one in float32, 0.82e12 bytes
    microbatch_bytes=None,
    arranged=False,
    branches_cost_nothing=False,
    computes_again=True,  # the LSTM's clipped gradient takes v5e's compiler 2.13 million cycles, and 2.52 without
    rows_on_one_axis=False,  # the CNN's takes a 7x's compiler 269 thousand cycles, and 316 with it; v5e's 482, and 468
    adds_up_last_axes=False,  # sums are made on a product's way, by any axes
    steps_per_call=64,
    draws_together=0,
)
_PLATFORMS = {"cpu": CPU, "tpu": TPU}
_elsewhere: ContextVar[str | None] = ContextVar("elsewhere", default=None)


def default_platform() -> Platform:
    """Of the device that JAX computes on by default; what is no CPU and no TPU counts as a GPU."""
    return _PLATFORMS.get(_elsewhere.get() or default_device().platform, GPU)


@contextmanager
def compiling_for(kind: str) -> Iterator[None]:
    """Trace what will be compiled for a kind of device that isn't here, as "tpu"."""
    token = _elsewhere.set(kind)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def compiler_options() -> dict[str, int]:
    """How the default device's compiler makes what runs often; what `XLA_FLAGS` says comes before."""
    asked = os.environ.get("XLA_FLAGS", "")
    options = default_platform().compiler_options
    return {name: value for name, value in options if name not in asked and is_known_to_compiler(name, value)}


@cache
def is_known_to_compiler(name: str, value: Any) -> bool:
    """Whether this version of XLA has an option: at one that it doesn't know, it stops."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


def default_device() -> Any:
    """The device that JAX computes on by default."""
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen
