r"""Noise on a grid: why the low bits of a release say nothing, and how its distribution is exact.

Noise that is drawn and added in floating point gives neighbouring values different sets of possible outputs, and an output
that only one of them can produce tells which it was. Here a value is first rounded to a multiple of \(g\), a power of two
about a thousandth of the noise's scale or less; the noise is a whole number of steps \(g\); and their sum, rounded by the
hardware as IEEE 754 says, is a function of an exact sum. Rounding can bring values apart by \(g\) more than they were, which
the noise covers.

For Gaussian noise the whole number is a discrete Gaussian (`_discrete_gaussian`). For Laplace noise it is
\(\lfloor L / g \rfloor\), so that a release is what continuous Laplace noise of the same scale would give after rounding, and
costs no more. Its magnitude is geometric, and the binary digits of a geometric variable are independent: each is drawn from
random bits by comparing integers, with no logarithm to round.

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

from ..noise.draws._threefry import draw_bits

COARSEST = 2**10  # steps in the noise's scale, at least
MOST_STEPS = 2**24  # in the scale of Laplace noise, whose draws are int32
ROUNDING = 2e-6  # what rounding the digits' probabilities to 64 bits can add to the privacy loss of a release
_DEEPEST = 64 * math.log(2)  # in scales: a digit beyond it is 0 but for 2^-64


def power_of_two(value: float) -> float:
    """The largest one that isn't above `value`."""
    return 2.0 ** math.floor(math.log2(value))


def finest_step(scale: float, moved: float, most_steps: float) -> float:
    """The grid for values whose noise has that scale, so fine that rounding costs next to nothing.

    Args:
        scale: of the noise, before rounding is covered.
        moved: the sensitivity over what rounding by one step can add to it, in steps.
        most_steps: of the grid in a scale.

    Returns:
        g, a power of two: a 256th of `moved` and a 1024th of the scale at most, unless that takes too many steps.
    """
    return power_of_two(max(scale / most_steps, min(scale / COARSEST, moved / 256)))


def whole_step(scale: float) -> float:
    """The grid for whole numbers, which all lie on it: g, a power of two between 2^-20 and 1."""
    return min(1.0, max(2.0**-20, power_of_two(scale / COARSEST)))


def discrete_laplace(key: Key[Array, ""], shape: tuple[int, ...], rate: float) -> Int[Array, "..."]:
    r"""\(\lfloor L \rfloor\) for independent Laplace variables L of scale 1/rate, within a privacy loss of `ROUNDING`.

    That holds but for outcomes of a chance below 10^-12, which need digits whose own chance has few bits left of 64, and for
    those beyond 44 scales, where draws end.

    Args:
        key: a scalar key, used here and nowhere else.
        shape: the shape to draw.
        rate: one over the scale in steps; 2^-24 to 1.

    Returns:
        int32 array of that shape; its distribution is symmetric about -1/2 and reaches 44 scales at least.
    """
    assert 1 <= 1 / rate <= MOST_STEPS
    thresholds = np.array([divmod(threshold, 2**32) for threshold in digit_thresholds(rate)], np.uint32)
    keys = jax.random.bits(key, (len(thresholds) + 1, 2), jnp.uint32)
    negative = (draw_bits(keys[-1], shape)[0] & jnp.uint32(1)) == 1

    def draw_digit(magnitude: jax.Array, digit: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        key, (upper, lower), place = digit
        first, second = draw_bits(key, shape)
        one = (first < upper) | ((first == upper) & (second < lower))
        return magnitude | (one.astype(jnp.int32) << place), None

    # In a loop: written out, two dozen ciphers take seconds to compile.
    digits: Any = keys[:-1], thresholds, jnp.arange(len(thresholds), dtype=jnp.int32)
    magnitude, _ = jax.lax.scan(draw_digit, jnp.zeros(shape, jnp.int32), digits)
    return jnp.where(negative, ~magnitude, magnitude)  # ~m is -1 - m: minus a fraction's floor


def digit_thresholds(rate: float) -> list[int]:
    r"""Of a geometric variable's binary digits, lowest first: digit i is 1 with probability \(1 / (1 + e^{2^i \cdot rate})\).

    Returns:
        The probabilities in units of 2^-64.
    """
    digits = math.floor(math.log2(_DEEPEST / rate)) + 1
    return [round(2**64 / (1 + math.exp(rate * 2**digit))) for digit in range(digits)]


def steps_of(values: Any, step: float) -> tuple[Any, Any]:
    """Values in whole steps of the grid, as high · 2^20 + low; division by a power of two is exact.

    Args:
        values: [...], NumPy's in float64, JAX's in float32, or JAX's in int32 where the step is 2^-20 to 1.
        step: g.

    Returns:
        high and low, int32 [...]; values beyond 2^50 steps are clamped.
    """
    if values.dtype == np.int32:
        digits = 20 + round(math.log2(step))  # of a whole number that make up the lower 20
        farthest = int(2**50 * step)
        values = jnp.clip(values, -min(2**31, farthest), min(2**31 - 1, farthest))
        return values >> digits, (values & (2**digits - 1)) << (20 - digits)
    xp = np if isinstance(values, np.ndarray) else jnp
    steps = xp.round(xp.clip(values * (1 / step), -(2.0**50), 2.0**50))
    high = xp.floor(steps * 2.0**-20)
    return high.astype(np.int32), (steps - high * 2.0**20).astype(np.int32)


def sum_on_grid(steps: tuple[Any, Any], noise: Int[Array, "..."], step: float, middle: float) -> Float[Array, "..."]:
    """(steps + noise + middle) · step in float32: a function of the exact sum, and the nearest float below 2^44 steps.

    Args:
        steps: high and low, as from `steps_of`.
        noise: int32 [...], below 2^30.
        step: g.
        middle: where in its step the noise is put, 0 or 0.5.
    """
    high, low = steps[0], steps[1] + noise
    high, low = high + (low >> 20), low & (2**20 - 1)
    return (high.astype(jnp.float32) * 2.0**20 + (low.astype(jnp.float32) + middle)) * jnp.float32(step)
