"""Keys that nobody can guess."""

import os

import jax
import numpy as np


def key_from_entropy() -> jax.Array:
    """A JAX key that holds as many bits of the operating system's entropy as JAX's default generator takes.

    `jax.random.key(seed)` reads only 32 bits of a seed (64 with x64 enabled): few enough to try them all, and whoever
    finds the seed can subtract the noise. This fills the whole key instead (64 bits for `threefry2x32`).

    Returns:
        A scalar key array.
    """
    implementation = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), np.uint32).reshape(shape)
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=implementation)
