"""The device that was asked for, and whether it holds what a model keeps of the data."""

from typing import Any

import jax

from .._errors import UsageError
from ..models import Classifier
from ._memory import memory_of_process


def use_device(name: str) -> Any:
    """This process's device of that platform, chosen for all that follows; raises `UsageError` where there is no such device."""
    if name == "auto":
        return jax.local_devices()[0]
    try:
        device = jax.local_devices(backend=name)[0]
    except RuntimeError as error:
        known = ", ".join(sorted({device.platform for device in jax.devices()}))
        extra = {"gpu": "cuda", "tpu": "tpu"}.get(name)
        install = f"; in a clone of jaxdp, pip install '.[{extra}]' brings its driver" if extra else ""
        raise UsageError(f"--device={name}: JAX finds no such device here (found: {known}){install}") from error
    jax.config.update("jax_default_device", device)
    return device


def in_words(device: Any) -> str:
    """A device's platform and kind, for a person."""
    return " ".join(dict.fromkeys((device.platform, device.device_kind)))


def check_room(device: Any, model: Classifier, *inputs: Any, fix: str, copies: int = 1) -> None:
    """Refuse, before anything is computed, what a model would keep of these inputs in more memory than the device has.

    Args:
        device: which keeps it.
        model: with what it makes of an input before it is trained.
        inputs: [n, ...] each, of one kind; arrays, or what has their shapes and dtypes.
        fix: what to change.
        copies: how many devices of this process keep it, which share their memory where they are CPUs.
    """
    if not inputs:
        return
    room, number = memory_of(device), sum(map(len, inputs))
    one = jax.eval_shape(model.prepare, jax.ShapeDtypeStruct((1, *inputs[0].shape[1:]), inputs[0].dtype))
    needed = number * one.size * one.dtype.itemsize * (copies if device.platform == "cpu" else 1)
    if room is not None and needed > room:
        raise UsageError(
            f"--model={model.described['model']} keeps {one.size:,} numbers of each of {number:,} inputs, "
            f"{needed / 2**30:,.1f} GiB, and {in_words(device)} has {room / 2**30:,.1f}: {fix}"
        )


def memory_of(device: Any) -> int | None:
    """Bytes of memory in all, of a CPU those that this process may use; None where nobody tells."""
    if statistics := device.memory_stats():
        return statistics.get("bytes_limit")
    return memory_of_process() if device.platform == "cpu" else None
