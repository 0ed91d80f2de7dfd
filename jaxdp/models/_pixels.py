"""Pixels scaled by public constants: nothing is computed from the data."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num


def scaled_pixels(image: Num[Array, "..."]) -> Float[Array, "..."]:
    """uint8 pixels 0 to 255 as float32 from -1 (black) to 1; floats are taken as scaled already."""
    if jnp.issubdtype(image.dtype, jnp.floating):
        return image
    return image.astype(jnp.float32) / 127.5 - 1
