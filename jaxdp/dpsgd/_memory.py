"""The memory that a clipped gradient will need, told by the compiler before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import _checks
from .._errors import UsageError
from .._types import Batch, LossFn, Params
from ..clipping import check_batch, check_params, clipped_grad, takes_rng


@dataclass(frozen=True)
class StepMemory:
    """The memory of a clipped gradient, beside its parameters and its batch.

    Attributes:
        method: of clipping.
        microbatch_size: examples processed at once; None where the device's usual number is.
        temporary_bytes: what the compiled program holds for itself.
    """

    method: str
    microbatch_size: int | None
    temporary_bytes: int

    def __str__(self) -> str:
        rows = "usual microbatches" if self.microbatch_size is None else f"microbatches of {self.microbatch_size}"
        return f"{self.method}, {rows}: {self.temporary_bytes / 2**20:,.1f} MiB"


def step_memory(
    loss_fn: LossFn,
    params: Params,
    batch: Batch,
    *,
    methods: Sequence[str] = ("auto", "ghost", "vmap"),
    microbatch_sizes: Sequence[int | None] = (None,),
    has_aux: bool = False,
) -> tuple[StepMemory, ...]:
    """The memory of the clipped gradient of a batch, by method and microbatch; compiles each and runs none.

    Args:
        loss_fn: as `jaxdp.clipped_grad` takes it.
        params: pytree of arrays, or of `jax.ShapeDtypeStruct`.
        batch: pytree of the same, leading axis B.
        methods: of clipping.
        microbatch_sizes: examples processed at once; None for what is usual on the device.
        has_aux: as `jaxdp.clipped_grad` takes it.

    Returns:
        A `StepMemory` for each method and microbatch; each prints as a line.

    Raises:
        UsageError: as `jaxdp.clipped_grad` does.
    """
    for name, value in {"methods": methods, "microbatch_sizes": microbatch_sizes}.items():
        _checks.instance(name, value, list | tuple, "give a list of them")
    return tuple(
        StepMemory(method, rows, _temporary_bytes(loss_fn, params, batch, method, rows, has_aux))
        for method in methods
        for rows in microbatch_sizes
    )


def largest_microbatch(
    loss_fn: LossFn,
    params: Params,
    batch: Batch,
    *,
    budget_bytes: float,
    method: str = "auto",
    has_aux: bool = False,
) -> int:
    """The most examples, a power of two or the whole batch, that can be processed at once within a budget of memory.

    Args:
        loss_fn: as `jaxdp.clipped_grad` takes it.
        params: pytree of arrays, or of `jax.ShapeDtypeStruct`.
        batch: pytree of the same, leading axis B.
        budget_bytes: for what the program holds beside parameters and batch.
        method: of clipping.
        has_aux: as `jaxdp.clipped_grad` takes it.

    Returns:
        A microbatch size for `jaxdp.DPSGD` or `jaxdp.clipped_grad`.

    Raises:
        UsageError: where not even one example fits.
    """
    budget = _checks.positive("budget_bytes", budget_bytes, "give the bytes that the step may hold, such as 2e9")
    size = check_batch(batch)
    sizes = [2**i for i in range(size.bit_length()) if 2**i < size] + [size]
    fits, fails = -1, len(sizes)
    while fails - fits > 1:
        middle = fails - 1 if fits == -1 and fails == len(sizes) else (fits + fails) // 2
        needed = _temporary_bytes(loss_fn, params, batch, method, sizes[middle], has_aux)
        fits, fails = (middle, fails) if needed <= budget else (fits, middle)
    if fits == -1:
        raise UsageError(
            f"budget_bytes={budget:.3g} is less than method={method!r} needs for one example: give more, or another method"
        )
    return sizes[fits]


def _temporary_bytes(
    loss_fn: LossFn, params: Params, batch: Batch, method: str, rows: int | None, has_aux: bool
) -> int:
    grad_fn = clipped_grad(loss_fn, clip_norm=1.0, method=method, microbatch_size=rows, has_aux=has_aux)
    check_params(params)
    check_batch(batch)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), (params, batch))
    keys = {"rng": jax.random.key(0)} if takes_rng(loss_fn) else {}
    analysis: Any = jax.jit(grad_fn).lower(*shapes, **keys).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)
