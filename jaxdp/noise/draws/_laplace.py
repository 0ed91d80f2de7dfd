r"""Laplace noise with tails deep enough for pure differential privacy to be more than a claim.

A Laplace variable is an exponential one with a random sign, and an exponential is \(-\ln u\). From 24 random bits \(u\) would
end at \(2^{-24}\): an output beyond 16.6 scales could come from one of two neighbouring data sets alone. Here \(u\) has 63 bits
and reaches \(2^{-64}\), 44 scales from zero, with full float32 precision where it is small.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ... import _checks
from .._keys import Domain, own_key
from ._threefry import draw_bits

LARGEST_LAPLACE = 60 * math.log(
    2
)  # 41.6: how far the law is followed, where 16 of 2^64 points remain; draws go to 44.4


def standard_laplace(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Independent Laplace variables of scale 1 (standard deviation √2) in float32, within ±44.4.

    Args:
        key: a scalar key, used here and nowhere else.
        shape: the shape to draw.

    Returns:
        float32 array of that shape.
    """
    _checks.key(key)
    shape = _checks.shape(shape)
    high, low = draw_bits(jax.random.bits(own_key(key, Domain.LAPLACE), (2,), jnp.uint32), shape)
    sign = jnp.where((low & 1) == 1, jnp.float32(-1), jnp.float32(1))
    small = ((low >> jnp.uint32(1)).astype(jnp.float32) + 0.5) * jnp.float32(2**-63)
    u = jnp.minimum(high.astype(jnp.float32) * jnp.float32(2**-32) + small, 1)
    return sign * -jnp.log(u)
