"""Checks of single numbers on the host: each returns the value as a plain Python number, or says what to change.

Plain numbers matter: dp-accounting treats a NumPy or JAX scalar as another type than `float` and can then drop a
composition, and a traced value can't be checked at all.
"""

import math
import numbers
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._errors import UsageError

Real = float | np.floating | np.integer  # the numbers that are taken where a float is asked for (an int passes for one)
Count = int | np.integer


def real(name: str, value: Any, fix: str) -> float:
    """`value` as a `float`; refuses what is not one concrete real number (NaN, arrays, traced values, strings)."""
    if isinstance(value, Tracer):
        raise UsageError(f"{name} is traced by jax; it must be a plain number known before compilation: {fix}")
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise UsageError(f"{name}={value!r} is not a plain number but {type(value).__name__}: {fix}")
    number = float(value)
    if math.isnan(number):
        raise UsageError(f"{name} is NaN: {fix}")
    return number


def positive(name: str, value: Any, fix: str) -> float:
    """`value` as a finite `float` above zero."""
    number = real(name, value, fix)
    if not 0 < number < math.inf:
        raise UsageError(f"{name}={value} must be above 0 and finite: {fix}")
    return number


def non_negative(name: str, value: Any, fix: str) -> float:
    """`value` as a finite `float`, zero or above."""
    number = real(name, value, fix)
    if not 0 <= number < math.inf:
        raise UsageError(f"{name}={value} must be 0 or above, and finite: {fix}")
    return number


def whole(name: str, value: Any, fix: str) -> int:
    """`value` as an `int`, zero or above; a float is taken only where it is whole."""
    number = non_negative(name, value, fix)
    if number != int(number):
        raise UsageError(f"{name}={value} must be a whole number: {fix}")
    return int(number)


def count(name: str, value: Any, fix: str) -> int:
    """`value` as an `int` above zero; a float is taken only where it is whole."""
    number = positive(name, value, fix)
    if number != int(number):
        raise UsageError(f"{name}={value} must be a whole number: {fix}")
    return int(number)


def clip_norm(value: Any) -> float:
    """`value` as a clip norm: above zero, `inf` allowed (no clipping), within float32's normal range."""
    fix = "give the L2 norm to which each example's gradient is clipped, such as 1.0"
    number = real("clip_norm", value, fix)
    if number != math.inf and not 1e-30 <= number <= 1e30:
        raise UsageError(f"clip_norm={value} must lie between 1e-30 and 1e30, or be inf for no clipping: {fix}")
    return number


def delta(value: Any, num_examples: int | None = None) -> float:
    """`value` as the δ of (ε, δ): between 0 and 1, and below one over the number of examples where that is known."""
    number = real("delta", value, "give a probability well below 1 / num_examples, such as 1e-5")
    if not 0 < number < 1:
        raise UsageError(f"delta={value} must lie between 0 and 1, both excluded: 1e-5 is usual")
    if num_examples is not None and number >= 1 / num_examples:
        raise UsageError(
            f"delta={value} is not below 1/{num_examples}, one over the number of examples: at such a delta a mechanism "
            f"that publishes a random record would pass; choose delta below {1 / num_examples:.2g}"
        )
    return number


def key(value: Any) -> None:
    """Refuse what is not a scalar JAX key."""
    is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if not is_key or value.shape != ():
        raise UsageError(
            f"key={value!r} is not a scalar JAX key: pass jaxdp.key_from_entropy(), or jax.random.key(seed) in a test"
        )


def one_of(name: str, value: Any, known: Collection[str], fix: str = "choose one of these") -> str:
    """`value` where it is one of the `known` names."""
    if value not in known:
        raise UsageError(f"{name}={value!r} is not known; {fix}: {', '.join(sorted(known))}")
    return value
