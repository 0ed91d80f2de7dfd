"""In which arithmetic clipped gradients are summed: all of it in float32, or products of factors that a matrix unit reads.

A TPU reads bfloat16 into its matrix unit, and makes six passes for a product in float32. Ordinary training takes one, and so may
a clipped sum, if a norm is that of the numbers that are added up: products of two bfloat16 numbers are exact in float32, so the
factors of a weight gradient are rounded once, and norms and sums both come from the rounded ones (`ghost/_rounded.py`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._platform import default_platform
from ._norm import UNIT_ROUNDOFF, gamma

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class Arithmetic:
    """Of clipped sums.

    Attributes:
        rounds: whether factors of products are rounded to bfloat16.
        factor_roundoff: by how much, relatively, that moves a factor at most.
        unit_roundoff: of an addition within a product, relatively, at most.
        packs: whether an operation costs more than copying small operands into one for them all, as on a CPU.
    """

    rounds: bool
    factor_roundoff: float
    unit_roundoff: float
    packs: bool

    def gamma(self, terms: int) -> float:
        """The relative error of a product's sum of so many terms, as `_norm.gamma`."""
        return gamma(terms, self.unit_roundoff)


FLOAT32 = Arithmetic(rounds=False, factor_roundoff=0.0, unit_roundoff=UNIT_ROUNDOFF, packs=True)
# A TPU adds up in float32 and doesn't say how it rounds: to cut off is at most twice as bad as to round to the nearest.
BFLOAT16 = Arithmetic(rounds=True, factor_roundoff=2.0**-8 * 1.01, unit_roundoff=2 * UNIT_ROUNDOFF, packs=False)


def arithmetic_of(precision: str) -> Arithmetic:
    """That of a precision's name; "auto" is what the default device's matrix unit reads."""
    if precision == "auto":
        precision = default_platform().precision
    return BFLOAT16 if precision == "bfloat16" else FLOAT32


def rounded(factor: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """A factor in bfloat16, the same for all who read it: XLA would keep float32 for some of them."""
    return jax.lax.optimization_barrier(factor.astype(jnp.bfloat16))


def rounded_on_its_way(factor: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The same numbers in float32 for a single reader, into which the rounding fuses: no pass of its own over long factors."""
    return jax.lax.reduce_precision(factor, exponent_bits=8, mantissa_bits=7)
