"""The winner of noisy counts, for all examples in one call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Key

from ... import _checks
from ...noise import standard_laplace, standard_normal

# Beyond them noise would leave float32, and what it costs the accountants' float64.
_LEAST, _MOST = 1e-9, 1e9


def in_range(name: str, value: Any, fix: str) -> float:
    """A parameter that is in votes, or one over votes, as a checked plain number."""
    return _checks.between(name, value, _LEAST, _MOST, fix)


def laplace_winner(votes: Any, key: Key[Array, ""], scale: float) -> Int32[Array, " examples"]:
    """The class with the largest count under Laplace noise of this scale, in votes."""
    return _winner(_with_laplace_noise(np.asarray(votes, np.int32), key, np.float32(scale)))


def gaussian_winner(votes: Any, key: Key[Array, ""], sigma: float) -> Int32[Array, " examples"]:
    """The class with the largest count under Gaussian noise of this standard deviation, in votes."""
    return _winner(_with_gaussian_noise(np.asarray(votes, np.int32), key, np.float32(sigma)))


# Two programs each: in one, the compiler fuses the draw into the search and draws everything several times over.
@jax.jit
def _with_laplace_noise(
    votes: Int32[Array | np.ndarray, "examples classes"], key: Any, scale: Any
) -> Float32[Array, "examples classes"]:
    return votes.astype(jnp.float32) + scale * standard_laplace(key, votes.shape)


@jax.jit
def _with_gaussian_noise(
    votes: Int32[Array | np.ndarray, "examples classes"], key: Any, sigma: Any
) -> Float32[Array, "examples classes"]:
    return votes.astype(jnp.float32) + sigma * standard_normal(key, votes.shape)


@jax.jit
def _winner(noisy: Float32[Array, "examples classes"]) -> Int32[Array, " examples"]:
    return jnp.argmax(noisy, axis=1).astype(jnp.int32)
