"""Exact scaling by powers of two, so that squares neither overflow nor vanish: the exponent's bits and nothing else.

`jnp.frexp` and `jnp.ldexp` do the same for every float type and every edge, in dozens of operations each.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def exponent_of(x: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """The e with x in [2^(e-1), 2^e), for x of at least 2^-126; -125 to 126, at the ends for all that lies beyond."""
    bits = jax.lax.bitcast_convert_type(jnp.asarray(x, jnp.float32), jnp.int32)
    return jnp.clip(((bits >> 23) & 0xFF) - 126, -125, 126)


def times_power_of_two(x: Float[Array, "*#n"], exponent: Int[Array, "*#n"]) -> Float[Array, "..."]:
    """x · 2^e for e up to 254, in two steps that are each in float32's range; smaller e count as -250."""
    exponent = jnp.maximum(exponent, -250)
    half = exponent // 2
    return x * _power(half) * _power(exponent - half)


def _power(exponent: Int[Array, "*n"]) -> Float[Array, "*n"]:
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
