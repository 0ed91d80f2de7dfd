"""The types that rules take. What is not listed here has no rule: it is differentiated directly, or refused.

A rule's arithmetic is that of real numbers. A complex operand would lose its imaginary part, and an 8-bit one rounds
cotangents to a few values; an index that is compared in a narrow type of its own compares with a size that wrapped.
"""

import jax
import jax.numpy as jnp

from ...jaxprs._jaxpr import Eqn

REAL = frozenset(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))
INDICES = frozenset(jnp.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))


def are_taken(eqn: Eqn, operand: int, others: frozenset[jnp.dtype]) -> bool:
    """Whether the parameter and the outputs of a use are real, and its other operands of the types `others`."""
    types = [v.aval.dtype for v in eqn.invars]
    parameter = types.pop(operand)
    return (
        parameter in REAL and all(v.aval.dtype in REAL for v in eqn.outvars) and all(dtype in others for dtype in types)
    )


def types_of(eqn: Eqn) -> str:
    """The types of an equation's operands, each once: "complex64, float32"."""
    return ", ".join(dict.fromkeys(str(v.aval.dtype) for v in eqn.invars))


def widened(index: jax.Array) -> jax.Array:
    """The same indices in 32 bits or more, in which they can be compared with a table's size."""
    return index.astype(jnp.int32) if index.dtype.itemsize < 4 else index
