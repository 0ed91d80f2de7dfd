"""The device that was asked for."""

from typing import Any

import jax

from .._errors import UsageError


def use_device(name: str) -> Any:
    """Choose the platform for all that follows; raises `UsageError` where there is no such device."""
    if name == "auto":
        return jax.devices()[0]
    try:
        device = jax.devices(name)[0]
    except RuntimeError as error:
        known = ", ".join(sorted({device.platform for device in jax.devices()}))
        extra = {"gpu": "cuda", "tpu": "tpu"}.get(name)
        install = f"; pip install 'jaxdp-privacy[{extra}]' brings its driver" if extra else ""
        raise UsageError(f"--device={name}: JAX finds no such device here (found: {known}){install}") from error
    jax.config.update("jax_default_device", device)
    return device


def in_words(device: Any) -> str:
    """A device's platform and kind, for a person."""
    return " ".join(dict.fromkeys((device.platform, device.device_kind)))
