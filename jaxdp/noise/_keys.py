"""Keys that nobody can guess, and names for them that tell nothing."""

import hashlib
import os
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Key, UInt32


def key_from_entropy() -> jax.Array:
    """A JAX key that holds as many bits of the operating system's entropy as JAX's default generator takes.

    `jax.random.key(seed)` reads only 32 bits of a seed (64 with x64 enabled): few enough to try them all, and whoever
    finds the seed can subtract the noise. This fills the whole key instead (64 bits for `threefry2x32`).

    Returns:
        A scalar key array.
    """
    return key_of_bytes(os.urandom(64))


def key_of_bytes(material: bytes) -> Key[Array, ""]:
    """A key of JAX's default generator whose every bit follows from `material`, by SHA-256."""
    implementation = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    digest = hashlib.sha256(b"jaxdp key:" + material).digest()
    words = np.frombuffer(digest, np.uint32, count=int(np.prod(shape))).reshape(shape)
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=implementation)


def nonce_of(key: Key[Array, ""]) -> UInt32[Array, "4"]:
    """A name for what is drawn from a key, the same for the same key: 128 bits of a SHA-256, from which the key can't be found.

    Under a transformation, where the key's words aren't known yet, the host is asked for it when they are.
    """
    label = f"jaxdp nonce:{jax.random.key_impl(key)}:".encode()

    def digest(words: Any) -> np.ndarray:
        found = hashlib.sha256(label + np.asarray(words, ">u4").tobytes()).digest()
        return np.frombuffer(found, ">u4", count=4).astype(np.uint32)

    words = jax.random.key_data(key)
    if isinstance(words, Tracer):
        shape = jax.ShapeDtypeStruct((4,), np.uint32)
        return jax.pure_callback(digest, shape, words, vmap_method="sequential")
    return jax.numpy.asarray(digest(np.asarray(words)))


def nonce_in_hex(nonce: UInt32[Array, "4"]) -> str:
    """How a ledger writes a nonce: 32 hexadecimal digits."""
    return np.asarray(nonce, ">u4").tobytes().hex()
