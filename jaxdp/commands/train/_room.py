"""Steps that need more memory than there is: refused before they run where that can be told, and explained where they fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ... import dpsgd
from ..._errors import UsageError
from ..._types import LossFn, Params
from ...clipping import clipped_grad, takes_rng
from ...reading import Source
from ...runs._device import in_words, memory_of
from ...runs._devices import Devices

_SHARE = 0.8  # of what data and parameters leave, for what a step holds for itself
_EXHAUSTED = "RESOURCE_EXHAUSTED"  # as XLA's errors begin


def check_microbatch(loss: LossFn, params: Params, data: Any, size: int | None, devices: Devices, go_on: str) -> None:
    """Refuse `--microbatch-size`, by the compiler's figure, where it needs more memory than the device has.

    One that is no larger than what is usual is not asked about: that takes a compilation.

    Args:
        loss: of one example, with an auxiliary value.
        params: of the model.
        data: pytree of [n, ...], from which batches are drawn; a source isn't looked at.
        size: the examples that all devices together process at once; None for what is usual.
        devices: which have to hold it, each its part.
        go_on: the command that goes on with the run.

    Raises:
        UsageError: with the largest microbatch that fits.
    """
    room = memory_of(devices.own)
    if size is None or room is None or isinstance(data, Source):
        return
    each = -(-size // len(devices.all))
    batch, grad_fn = _batch_of(data, each), clipped_grad(loss, clip_norm=1.0, has_aux=True)
    traced = grad_fn.trace(params, batch, (), jax.random.key(0) if takes_rng(loss) else None)
    if each <= grad_fn.usual_microbatch_size(traced, params, each):
        return
    (found,) = dpsgd.step_memory(loss, params, batch, methods=("auto",), microbatch_sizes=(each,), has_aux=True)
    if found.temporary_bytes > (left := room - _bytes_of(data) - _bytes_of(params)):
        fix = _advice(loss, params, data, size, devices, go_on)
        raise UsageError(
            f"--microbatch-size={size} needs {found.temporary_bytes / 2**30:.1f} GiB, and beside data and parameters "
            f"{in_words(devices.own)} has {max(left, 0) / 2**30:.1f}: {fix}"
        )


@contextmanager
def memory_explained(
    loss: LossFn, params: Params, data: Any, size: int, devices: Devices, go_on: str, *, private: bool
) -> Iterator[None]:
    """Steps: where the device's memory is exhausted, raises `UsageError` with the microbatch that would fit.

    Args:
        loss: as for `check_microbatch`, as the others are.
        params: of the model.
        data: from which batches are drawn.
        size: the most examples that may have been processed at once, by all devices.
        devices: which had to hold it.
        go_on: the command that goes on with the run.
        private: whether the run works in microbatches.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        said = str(error).splitlines()[0]
        if _EXHAUSTED not in said:
            raise
        fix = "start another run with a smaller --batch-size"
        if private:
            fix = _advice(loss, params, data, size, devices, go_on)
        raise UsageError(f"{in_words(devices.own)} has no memory left ({said}): {fix}") from error


def _advice(loss: LossFn, params: Params, data: Any, size: int, devices: Devices, go_on: str) -> str:
    """What to give instead."""
    if isinstance(data, Source):
        return f"go on with smaller microbatches: {go_on} --microbatch-size N"
    number = len(devices.all)
    budget = _SHARE * ((memory_of(devices.own) or 0) - _bytes_of(data) - _bytes_of(params))
    try:
        fits = dpsgd.largest_microbatch(
            loss, params, _batch_of(data, -(-size // number)), budget_bytes=budget, has_aux=True
        )
    except UsageError:  # not even one example
        return "give a smaller model, or fewer data"
    return f"go on with smaller microbatches, which change speed alone: {go_on} --microbatch-size {number * fits}"


def _batch_of(data: Any, size: int) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), data)


def _bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
