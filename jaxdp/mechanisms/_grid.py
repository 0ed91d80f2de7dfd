r"""Noise on a grid: why the low bits of a release say nothing, and how its distribution is exact.

Noise that is drawn and added in floating point gives neighbouring values different sets of possible outputs, and an output
that only one of them can produce tells which it was. Here a value is first rounded to a multiple of \(g\), a power of two
about a thousandth of the noise's scale or less; the noise is a whole number of steps \(g\); and their sum, rounded by the
hardware as IEEE 754 says, is a function of an exact sum. Rounding can bring values apart by \(g\) more than they were, which
the noise covers.

For Laplace noise the whole number is \(\lfloor L / g \rfloor\), so that a release is what continuous Laplace noise of the same
scale would give after rounding, and costs no more. Its magnitude is geometric, and the binary digits of a geometric variable
are independent: each is drawn from random bits by comparing integers, with no logarithm to round.

References:
    Mironov, "On significance of the least significant bits for differential privacy", 2012.
    Haney, Desfontaines, Hartman, Shrestha and Hay, "Precision-based attacks and interval refining: how to break, then fix,
    differential privacy on finite computers", arXiv 2207.13793.
    Ghosh, Roughgarden and Sundararajan, "Universally utility-maximizing privacy mechanisms", arXiv 0811.2841 (the geometric
    mechanism).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._errors import UsageError
from ..noise._threefry import index_bits

COARSEST = 2**10  # steps in the noise's scale, at least
ROUNDING = 2e-6  # what the digits' probabilities, rounded to 32 or 64 bits, can add to a privacy loss
_DEEPEST = 64 * math.log(2)  # in scales: a digit beyond it is 0 but for 2^-64


def power_of_two(value: float) -> float:
    """The largest one that isn't above `value`."""
    return 2.0 ** math.floor(math.log2(value))


def finest_step(scale: float, size: int, most_steps: int) -> float:
    """The grid for values whose noise has that scale, so fine that rounding `size` of them at once costs next to nothing.

    Args:
        scale: of the noise, before rounding is covered.
        size: how many values are rounded, as the sensitivity's norm counts them.
        most_steps: of the grid in a scale.

    Returns:
        g, a power of two.
    """
    return power_of_two(scale / min(max(COARSEST, 256 * size), most_steps))


def whole_step(scale: float) -> float:
    """The grid for whole numbers, which all lie on it: g, a power of two between 2^-10 and 1."""
    return min(1.0, max(2.0**-10, power_of_two(scale / COARSEST)))


def discrete_laplace(key: Key[Array, ""], shape: tuple[int, ...], rate: float) -> Int[Array, "..."]:
    r"""\(\lfloor L \rfloor\) for independent Laplace variables L of scale 1/rate, within a privacy loss of `ROUNDING`.

    Args:
        key: a scalar key, used here and nowhere else.
        shape: the shape to draw.
        rate: one over the scale in steps; 2^-24 to 1.

    Returns:
        int32 array of that shape; its distribution is symmetric about -1/2 and reaches 44 scales at least.
    """
    if not 2**-24 <= rate <= 1:
        raise UsageError(f"the noise's scale is {1 / rate:.3g} steps of the grid: it must lie between 1 and 2^24")
    thresholds = digit_thresholds(rate)
    needed = 1 + sum(2 if threshold % 2**32 else 1 for threshold in thresholds)
    pairs = jax.random.bits(key, ((needed + 1) // 2, 2), jnp.uint32)
    words = [word for pair in pairs for word in index_bits(pair, shape)]
    negative = (words.pop() & jnp.uint32(1)) == 1
    magnitude = jnp.zeros(shape, jnp.int32)
    for digit, threshold in enumerate(thresholds):
        high, low = (jnp.uint32(part) for part in divmod(threshold, 2**32))
        word = words.pop()
        one = word < high
        if threshold % 2**32:
            one = one | ((word == high) & (words.pop() < low))
        magnitude = magnitude | (one.astype(jnp.int32) << digit)
    return jnp.where(negative, ~magnitude, magnitude)  # ~m is -1 - m: minus a fraction's floor


def digit_thresholds(rate: float) -> list[int]:
    r"""Of a geometric variable's binary digits, lowest first: digit i is 1 with probability \(1 / (1 + e^{2^i \cdot rate})\).

    Returns:
        The probabilities in units of 2^-64, rounded to 25 significant bits or more; where that takes 32 bits, whole multiples of
        2^32.
    """
    digits = math.floor(math.log2(_DEEPEST / rate)) + 1
    probabilities = [1 / (1 + math.exp(rate * 2**digit)) for digit in range(digits)]
    return [round(p * 2**32) * 2**32 if p >= 2**-8 else round(p * 2**64) for p in probabilities]


def steps_of(values: Any, step: float) -> tuple[Any, Any]:
    """Values in whole steps of the grid, as high · 2^20 + low; division by a power of two is exact.

    Args:
        values: [...], NumPy's in float64, JAX's in float32, or JAX's in int32 where the step is 1 at most.
        step: g.

    Returns:
        high and low, int32 [...]; values beyond 2^40 steps are clamped, those in int32 beyond 2^30.
    """
    if values.dtype == np.int32:
        farthest = int(2**30 * step)
        steps = jnp.clip(values, -farthest, farthest) * jnp.int32(1 / step)
        return steps >> 20, steps & (2**20 - 1)
    xp = np if isinstance(values, np.ndarray) else jnp
    steps = xp.round(xp.clip(values * (1 / step), -(2.0**40), 2.0**40))
    high = xp.floor(steps * 2.0**-20)
    return high.astype(np.int32), (steps - high * 2.0**20).astype(np.int32)


def sum_on_grid(steps: tuple[Any, Any], noise: Int[Array, "..."], step: float, middle: float) -> Float[Array, "..."]:
    """The float32 nearest to (steps + noise + middle) · step: a function of the exact sum, since one addition alone rounds.

    Args:
        steps: high and low, as from `steps_of`.
        noise: int32 [...], below 2^30.
        step: g.
        middle: where in its step the noise is put, 0 or 0.5.
    """
    high, low = steps[0], steps[1] + noise
    high, low = high + (low >> 20), low & (2**20 - 1)
    return (high.astype(jnp.float32) * 2.0**20 + (low.astype(jnp.float32) + middle)) * jnp.float32(step)
