"""What a mechanism takes: checks of values before anything is compiled."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._errors import UsageError


def leading(values: Any, shape: tuple[int, ...]) -> int:
    """How many releases `values` are: one for each index of the axes before `shape`."""
    return math.prod(_leading_axes(np.shape(values), shape))


def checked_values(values: Any, shape: tuple[int, ...], *, integers: bool) -> jax.Array | np.ndarray:
    """Values after a look at their shape, their type and NaNs.

    Returns:
        JAX's array in int32 where they are `integers`, else in float32; NumPy's in float64 where float32 might round them, which
        would move values beyond 2^24 by more than a record can.
    """
    _leading_axes(np.shape(values), shape)
    given = values if isinstance(values, jax.Array) else np.asarray(values)
    whole = jnp.issubdtype(given.dtype, jnp.integer) or given.dtype == bool
    if integers and not whole:
        raise UsageError(f"values are {given.dtype}, and integers=True: give whole numbers, or leave integers out")
    if not whole:
        finite(given, "values")
    if not integers:
        return _as_floats(given, whole)
    limits = np.iinfo(np.int32)
    if isinstance(given, np.ndarray):
        given = given.astype(np.int64).clip(limits.min, limits.max)
    elif given.dtype == jnp.uint32:
        given = jnp.minimum(given, jnp.uint32(limits.max))
    return jnp.asarray(given, jnp.int32)


def _as_floats(given: jax.Array | np.ndarray, whole: bool) -> jax.Array | np.ndarray:
    if np.can_cast(given.dtype, np.float32):
        return jnp.asarray(given, jnp.float32)
    if isinstance(given, Tracer):
        raise UsageError(
            f"values are {given.dtype}, which float32 would round: give float32, or integers=True for whole numbers"
        )
    on_host = np.asarray(given).astype(np.float64)
    return np.asarray(on_host.clip(-(2.0**53), 2.0**53)) if whole else on_host  # beyond it they were rounded, too


def checked_scores(scores: Any) -> jax.Array:
    """By how much each of [..., candidates] is above the best, as float32, after a look at candidates and values.

    The difference is taken before anything is rounded to float32, which would move scores such as counts above 2^24 by more than
    a record can.
    """
    given = scores if isinstance(scores, jax.Array) else np.asarray(scores)
    if given.ndim == 0 or given.shape[-1] == 0:
        raise UsageError(
            f"scores of shape {given.shape} have no candidates: give [..., candidates], one candidate or more"
        )
    finite(given, "scores")
    if not given.size:
        return jnp.zeros(given.shape, jnp.float32)
    if jnp.issubdtype(given.dtype, jnp.floating):
        wide = given.astype(jnp.promote_types(given.dtype, jnp.float32))
        return jnp.asarray(wide - wide.max(axis=-1, keepdims=True), jnp.float32)
    unsigned = np.uint64 if given.dtype.itemsize == 8 else np.uint32  # in which no difference overflows
    trailing = given.max(axis=-1, keepdims=True).astype(unsigned) - given.astype(unsigned)
    return -jnp.asarray(trailing, jnp.float32)


def whole_numbers(values: Any, name: str, categories: int) -> jax.Array:
    """Categories as int32, after a look at their type and, where they can be seen, their range."""
    given = values if isinstance(values, jax.Array) else np.asarray(values)
    if not (jnp.issubdtype(given.dtype, jnp.integer) or given.dtype == bool):
        raise UsageError(f"{name} are {given.dtype}: give whole numbers from 0 to {categories - 1}")
    if not isinstance(given, Tracer) and given.size and not (given.min() >= 0 and given.max() < categories):
        raise UsageError(
            f"{name} lie from {given.min()} to {given.max()}: give whole numbers from 0 to {categories - 1}"
        )
    return jnp.asarray(given, jnp.int32)


def finite(values: Any, name: str) -> None:
    """Refuse NaNs and infinities where they can be seen; under `jax.jit` a caller has to."""
    if isinstance(values, Tracer) or bool(jnp.isfinite(jnp.asarray(values, jnp.float32)).all()):
        return
    bad = int((~np.isfinite(np.asarray(values, np.float32))).sum())
    raise UsageError(
        f"{name} hold {bad} NaNs or infinities, whose release would show them: replace them, record by record"
    )


def _leading_axes(found: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    before = len(found) - len(shape)
    if before < 0 or found[before:] != shape:
        raise UsageError(f"values have shape {found}, and one release has shape={shape}: give [..., *shape]")
    return found[:before]
