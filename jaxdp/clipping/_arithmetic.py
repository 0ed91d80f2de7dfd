"""In which arithmetic clipped gradients are summed: all of it in float32, or products of factors that a matrix unit reads.

A TPU reads bfloat16 into its matrix unit, and makes six passes for a product in float32; a GPU's tensor cores read
TensorFloat-32, and stand idle for one. Ordinary training takes what is read, and so may a clipped sum, if a norm is that of the
numbers that are added up: products of two bfloat16 or TensorFloat-32 numbers are exact in float32, so the factors of a weight
gradient are rounded once, and norms and sums both come from the rounded ones (`ghost/_rounded.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import UsageError
from .._platform import GPU, TPU, default_platform
from ..jaxprs import as_one_value
from ._norm import UNIT_ROUNDOFF, gamma

PRECISIONS = ("auto", "float32", "tensorfloat32", "bfloat16")


@dataclass(frozen=True)
class Arithmetic:
    """Of clipped sums.

    Attributes:
        mantissa_bits: of the factors of products, 23 where they are left as they are.
        factor_roundoff: by how much, relatively, rounding them moves one at most.
        unit_roundoff: of an addition within a product, relatively, at most.
        convolutions: whether a convolution multiplies its factors, and not transforms of them.
        rounds_formed: whether those of gradients that are formed and kept are, too: else these are kept behind a barrier, as the
            matrix unit makes them, where a pass over the factors costs more than one over them.
        packs: whether an operation costs more than copying small operands into one for them all, as on a CPU.
        formed_costs: an operation of products whose results are only squared and added up, in those of Gram matrices.
        kept_costs: an entry of a gradient that is formed and kept until clip factors are known, in those of its rows.
        transformed_costs: an entry of a gradient that is formed, pulled back through a transformation and then kept, in those of
            its rows.
        least_transformed: entries of such a gradient from which on it is dropped; below, further operations cost more.
        square_roundoff: by how much, relatively, squares are rounded for a matrix unit that adds them up; zero where none does.
    """

    mantissa_bits: int
    factor_roundoff: float
    unit_roundoff: float
    convolutions: bool
    rounds_formed: bool
    packs: bool
    formed_costs: float = 1.0
    kept_costs: float = 1.0
    transformed_costs: float = 1.0
    least_transformed: int = 0
    square_roundoff: float = 0.0

    @property
    def rounds(self) -> bool:
        """Whether factors of products are rounded."""
        return self.mantissa_bits < 23

    def gamma(self, terms: int) -> float:
        """The relative error of a product's sum of so many terms, as `_norm.gamma`."""
        return gamma(terms, self.unit_roundoff)


_HALF = 1.01 / 2  # of the last bit, and what computing it may add
FLOAT32 = Arithmetic(23, 0.0, UNIT_ROUNDOFF, convolutions=True, rounds_formed=True, packs=True)
# A TPU adds up in float32 and doesn't say how it rounds: to cut off is at most twice as bad as to round to the nearest.
# By v5e's compiler (0.0.42) 16 products of 256 × 256 × 1024 take 23,086 cycles to form, square and add up (by a product: by a sum
# 45,664), and 25,692 to 38,748 by both Gram matrices, at 1.25 times the operations; those of 256 × 256 × 256 take 7,394 (14,432),
# and 18,784 at twice as many. What is kept is written and read in float32, rows are read in bfloat16. Nine times 16 products
# of 256 × 64 × 256 take 116,554 with the sums of their squares along columns, and 127,796 with two of weighted entries beside.
BFLOAT16 = Arithmetic(
    7,
    _HALF * 2.0**-7,
    2 * UNIT_ROUNDOFF,
    convolutions=True,
    rounds_formed=True,
    packs=False,
    formed_costs=1.25,
    kept_costs=4.0,
    transformed_costs=4.0,
    square_roundoff=_HALF * 2.0**-7,
)
# Tensor cores align the numbers that they add with the largest of them, and cut off what is below its last bits (Fasi, Higham,
# Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). cuDNN may compute convolutions by transforms. Rows of
# a gradient that isn't kept are written once more, rounded: by its compiler, an H100 moves 4.6 GB for the clipped gradient of
# 16 sequences of 256 (benchmarks/workloads.py, transformer-256), and 5.5 with what is kept counted four times. What is pulled
# back before it is kept is read and written twice more: for 16 images of WRN-16-4 with standardised weights it moves 2.51 GB and
# takes 224 MB with all of that kept; 2.17 and 125 with it counted once; 2.21 and 117 with it counted two and a half times. To
# launch a kernel costs as much as to write and read 2^14 entries of 64 examples.
TENSORFLOAT32 = Arithmetic(
    10,
    _HALF * 2.0**-10,
    4 * UNIT_ROUNDOFF,
    convolutions=False,
    rounds_formed=False,
    packs=False,
    transformed_costs=2.5,
    least_transformed=2**14,
)
_ARITHMETIC = {"float32": FLOAT32, "tensorfloat32": TENSORFLOAT32, "bfloat16": BFLOAT16}


def arithmetic_of(precision: str) -> Arithmetic:
    """That of a precision's name; "auto" is what the default device's matrix unit reads.

    Raises:
        UsageError: for one that the default device would round once more.
    """
    platform = default_platform()
    if precision == "tensorfloat32" and platform is TPU:
        raise UsageError(
            f'precision={precision!r} is for GPUs: a TPU would round the factors again. Give "bfloat16", or leave it out'
        )
    arithmetic = _ARITHMETIC[platform.precision if precision == "auto" else precision]
    if arithmetic is BFLOAT16 and platform is GPU:
        return replace(  # the same tensor cores add up
            arithmetic,
            unit_roundoff=TENSORFLOAT32.unit_roundoff,
            convolutions=TENSORFLOAT32.convolutions,
            transformed_costs=TENSORFLOAT32.transformed_costs,
            least_transformed=TENSORFLOAT32.least_transformed,
            square_roundoff=TENSORFLOAT32.square_roundoff,
        )
    return arithmetic


def rounded(
    factor: Float[Array, "B *n"], arithmetic: Arithmetic, placed: Callable[[jax.Array], jax.Array] | None = None
) -> Float[Array, "B *n"]:
    """A factor in a matrix unit's type, the same for all who read it: XLA would keep float32 for some of them.

    Args:
        factor: in any floating dtype.
        arithmetic: of the sums.
        placed: says how what is rounded lies in memory.
    """
    if arithmetic.mantissa_bits == BFLOAT16.mantissa_bits:
        narrow = factor.astype(jnp.bfloat16)
    else:
        narrow = rounded_on_its_way(factor.astype(jnp.float32), arithmetic)
    return _as_one_long_value(narrow) if placed is None else as_one_value(placed(narrow))


def _as_one_long_value(batch: Float[Array, "B *n"]) -> Float[Array, "B *n"]:
    """Without axes of a single entry, such as that of a batch of one within the example.

    A TPU's compiler has none in its own convolutions. Where such an axis is between them and this value, it computes it twice: by
    its estimate a v5e takes 130 thousand of 2.48 million cycles less without, for WRN-16-4's clipped gradient at 16 images.
    """
    single = [axis for axis in range(1, batch.ndim) if batch.shape[axis] == 1]
    return jnp.expand_dims(as_one_value(jnp.squeeze(batch, single)), single)


def rounded_on_its_way(factor: Float[Array, "*n"], arithmetic: Arithmetic) -> Float[Array, "*n"]:
    """The same numbers in float32 for a single reader, into which the rounding fuses: no pass of its own over long factors."""
    return jax.lax.reduce_precision(factor, exponent_bits=8, mantissa_bits=arithmetic.mantissa_bits)
