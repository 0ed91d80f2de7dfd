r"""Discrete Gaussian noise from integers alone: what `jaxdp.mechanisms.Gaussian` adds, in steps of its grid.

A float32 normal times thousands, rounded, falls on some steps more often than on their neighbours, and many coordinates together
would tell the parity of what the noise hides. Here a draw is \(X_0 + b X_1 + \dots + b^{n-1} X_{n-1}\) of independent discrete
Gaussians of standard deviation \(\tau \ge 1.3 b\), each from a table of integers (Walker's alias method: one comparison of 53
random bits). Such a sum is a discrete Gaussian but for a relative 10⁻¹³, since each term smooths out the lattice of the next; and
a discrete Gaussian of a thousand steps or more costs what the continuous one does but for a relative 10⁻⁷. `MARGIN` covers both.

References:
    Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", arXiv 2004.00010.
    Micciancio and Walter, "Gaussian sampling over the integers: efficient, generic, constant-time", IACR 2017/259 (sums of
    discrete Gaussians).
    Walker, "An efficient method for generating discrete random variables with general distributions", 1977.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt32

from ..noise.draws._threefry import draw_bits

MOST_STEPS = 2**26  # in a standard deviation, so that draws are int32
MARGIN = 1e-6  # by which σ is larger than the accounted one
_REACH = 9.3  # standard deviations at which the table of a term ends; its entries below 2^-65 are 0, from 8.9 on
_CELLS = 2048  # of a table
_CELL = 2**53  # its units of probability, of which there are 2^64 in all
_LARGEST_BASE = 64


def discrete_gaussian(key: Key[Array, ""], shape: tuple[int, ...], sigma: float) -> Int[Array, "..."]:
    """Discrete Gaussian variables.

    Args:
        key: a scalar key, used here and nowhere else.
        shape: the shape to draw.
        sigma: standard deviation in steps; 2^10 to 2^26.

    Returns:
        int32 array of that shape.
    """
    assert 2**10 <= sigma <= MOST_STEPS
    count, base, tau = terms(sigma)
    pairs = jax.random.bits(key, (count, 2), jnp.uint32)
    total = jnp.zeros(shape, jnp.int32)
    for pair in pairs:  # the coarsest first
        total = total * base + _from_table(pair, shape, tau)
    return total


def terms(sigma: float) -> tuple[int, int, float]:
    """How many terms, the base b, and each term's standard deviation τ, with which they have `sigma` together.

    τ is 1.3 times b or more: that smooths what a term leaves of the next one's lattice.
    """
    count = max(2, math.ceil(math.log(sigma) / math.log(_LARGEST_BASE)))
    base = math.floor(0.85 * sigma ** (1 / count))
    return count, base, sigma / math.sqrt(sum(base ** (2 * i) for i in range(count)))


@functools.lru_cache(maxsize=64)
def weights(tau: float) -> dict[int, int]:
    """Of each value, its probability in units of 2^-64."""
    reach = math.ceil(_REACH * tau)
    density = {x: math.exp(-(x**2) / (2 * tau**2)) for x in range(-reach, reach + 1)}
    total = math.fsum(density.values())
    found = {x: round(2**64 * value / total) for x, value in density.items()}
    found[0] += 2**64 - sum(found.values())
    return found


@functools.lru_cache(maxsize=64)
def alias_table(tau: float) -> tuple[UInt32[np.ndarray, " cells"], UInt32[np.ndarray, " cells"]]:
    """Walker's table: in each cell, the value of its own place up to a threshold, and another one's from there.

    Returns:
        The thresholds' upper 21 bits with the other place's 11 behind them, and the thresholds' lower 32 bits.
    """
    left = [*weights(tau).values()]
    left += [0] * (_CELLS - len(left))
    threshold, other = [_CELL] * _CELLS, list(range(_CELLS))
    small = [cell for cell, weight in enumerate(left) if weight < _CELL]
    large = [cell for cell, weight in enumerate(left) if weight > _CELL]
    while small:
        cell = small.pop()
        giver = large[-1]
        threshold[cell], other[cell] = left[cell], giver
        left[giver] -= _CELL - left[cell]
        if left[giver] <= _CELL:
            large.pop()
            if left[giver] < _CELL:
                small.append(giver)
    packed = [min(_CELL - 1, units) for units in threshold]  # a full cell's other place is its own
    upper = np.array([(units >> 32) << 11 | place for units, place in zip(packed, other, strict=True)], np.uint32)
    return upper, np.array([units & (2**32 - 1) for units in packed], np.uint32)


def _from_table(key: UInt32[Array, " 2"], shape: tuple[int, ...], tau: float) -> Int[Array, "..."]:
    upper, lower = (jnp.asarray(table) for table in alias_table(tau))
    first, second = draw_bits(key, shape)
    cell = first & jnp.uint32(_CELLS - 1)
    bits, entry = first >> 11, upper[cell]
    own = (bits < entry >> 11) | ((bits == entry >> 11) & (second < lower[cell]))
    place = jnp.where(own, cell, entry & jnp.uint32(_CELLS - 1))
    return place.astype(jnp.int32) - math.ceil(_REACH * tau)
