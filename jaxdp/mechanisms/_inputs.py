"""Checks of a mechanism's parameters and of values, before anything is compiled."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _checks
from .._errors import UsageError


def checked_epsilon(epsilon: Any, largest: float = 40.0) -> float:
    """ε between 1e-4, below which there is noise alone, and `largest`: draws end at 44 scales, and Δ must be below that."""
    fix = "give the ε of one release, such as 1.0"
    number = _checks.positive("epsilon", epsilon, fix)
    if number < 1e-4:
        raise UsageError(f"epsilon={epsilon} is below 1e-4, which is noise alone: {fix}")
    if number > largest:
        raise UsageError(f"epsilon={epsilon} is above {largest:g}, which hides nothing: {fix}")
    return number


def checked_sensitivity(sensitivity: Any) -> float:
    """Δ within what float32 and the grid can hold."""
    fix = "give the most by which adding or removing one record can move what is released"
    number = _checks.positive("sensitivity", sensitivity, fix)
    if not 1e-20 <= number <= 1e20:
        raise UsageError(f"sensitivity={sensitivity} must lie between 1e-20 and 1e20: {fix}")
    return number


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A tuple of whole numbers above 0."""
    fix = "give a tuple such as (3,)"
    if not isinstance(shape, tuple | list):
        raise UsageError(f"shape={shape!r} is not a tuple: {fix}")
    return tuple(_checks.count("shape", size, fix) for size in shape)


def leading(values: Any, shape: tuple[int, ...]) -> int:
    """How many releases `values` are: one for each index of the axes before `shape`."""
    return math.prod(_leading_axes(_array(values).shape, shape))


def checked_values(values: Any, shape: tuple[int, ...], *, integers: bool) -> jax.Array | np.ndarray:
    """Values after a look at their shape, their type and NaNs.

    Returns:
        JAX's array in int32 where they are `integers`, else in float32; NumPy's in float64 where these might not hold them, since
        float32 would move values beyond 2^24 by more than a record can.
    """
    given = _array(values)
    _leading_axes(given.shape, shape)
    whole = jnp.issubdtype(given.dtype, jnp.integer) or given.dtype == bool
    if integers and not whole:
        raise UsageError(f"values are {given.dtype}, and integers=True: give whole numbers, or leave integers out")
    if not whole:
        finite(given, "values")
    if not integers:
        return _as_floats(given, whole)
    return _as_int32(given)


def records_on_host(records: Any) -> np.ndarray:
    """Records as float64, in which they are clamped and counted exactly; refuses what isn't real, or is traced."""
    if isinstance(records, Tracer):
        raise UsageError(
            "records are traced by jax: summaries are computed on the host, so call them outside of jax.jit"
        )
    given = np.asarray(_array(records))
    _check_real(given, "records")
    return given.astype(np.float64)


def _array(values: Any) -> jax.Array | np.ndarray:
    _checks.unmasked("what is released", values, "or its .compressed()")
    try:
        given = values if isinstance(values, jax.Array) else np.asarray(values)
    except ValueError as error:
        raise UsageError(f"values are no array ({error}): give an array of numbers") from error
    if jnp.issubdtype(given.dtype, jax.dtypes.extended):
        raise UsageError(f"values are {given.dtype}: give real numbers")
    given = _checks.native(given)
    if given.dtype.kind == "m":
        raise UsageError(
            f"values are {given.dtype}, spans of time: give numbers of a unit, values / np.timedelta64(1, 's')"
        )
    if jnp.issubdtype(given.dtype, jnp.floating) and given.dtype.itemsize < 4:
        return given.astype(jnp.float32)
    return given.astype(np.float64) if given.dtype == np.longdouble else given


def _as_int32(given: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Whole numbers clamped to int32 before they are cast, which would wrap; NumPy's that are larger as float64."""
    if given.dtype == bool or given.dtype.itemsize < 4:
        return jnp.asarray(given, jnp.int32)
    if isinstance(given, Tracer) and given.dtype == np.uint32:
        raise UsageError("values are uint32, traced by jax: give int32, or call it outside of jax.jit")
    if given.dtype != np.int32 and not isinstance(given, Tracer):
        given = np.asarray(given)
    if isinstance(given, np.ndarray) and given.size and not (given.min() >= -(2**31) and given.max() < 2**31):
        return _as_floats(given, whole=True)
    ours, theirs = np.iinfo(np.int32), np.iinfo(given.dtype)
    lower, upper = max(ours.min, theirs.min), min(ours.max, theirs.max)
    return jnp.asarray(given.clip(given.dtype.type(lower), given.dtype.type(upper)), jnp.int32)


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
    given = _array(scores)
    if given.ndim == 0 or given.shape[-1] == 0:
        raise UsageError(
            f"scores of shape {given.shape} have no candidates: give [..., candidates], one candidate or more"
        )
    finite(given, "scores")
    if not given.size:
        return jnp.zeros(given.shape, jnp.float32)
    if jnp.issubdtype(given.dtype, jnp.floating):
        wide = given if given.dtype.itemsize > 4 else given.astype(np.float32)
        with np.errstate(over="ignore"):  # what trails by more than float32 can hold never wins
            return jnp.asarray(wide - wide.max(axis=-1, keepdims=True), jnp.float32)
    unsigned = np.uint64 if given.dtype.itemsize == 8 else np.uint32  # in which no difference overflows
    trailing = given.max(axis=-1, keepdims=True).astype(unsigned) - given.astype(unsigned)
    return -jnp.asarray(trailing, jnp.float32)


def whole_numbers(values: Any, name: str, categories: int) -> jax.Array:
    """Categories as int32, after a look at their type and, where they can be seen, their range."""
    given = _array(values)
    if not (jnp.issubdtype(given.dtype, jnp.integer) or given.dtype == bool):
        raise UsageError(f"{name} are {given.dtype}: give whole numbers from 0 to {categories - 1}")
    if not isinstance(given, Tracer) and given.size:
        with jax.ensure_compile_time_eval():
            least, most = int(given.min()), int(given.max())
        if not 0 <= least <= most < categories:
            raise UsageError(f"{name} lie from {least} to {most}: give whole numbers from 0 to {categories - 1}")
    return jnp.asarray(given, jnp.int32)


def finite(values: Any, name: str) -> None:
    """Refuse what isn't real, and NaNs and infinities where they can be seen; under `jax.jit` a caller has to."""
    _check_real(values, name)
    with np.errstate(over="ignore"), jax.ensure_compile_time_eval():  # for what is known while something else is traced
        if isinstance(values, Tracer) or bool(jnp.isfinite(jnp.asarray(values, jnp.float32)).all()):
            return
        bad = int((~np.isfinite(np.asarray(values).astype(np.float32))).sum())
    raise UsageError(
        f"{name} hold {bad} NaNs or infinities in float32, whose release would show them: replace them, record by record"
    )


def _check_real(values: Any, name: str) -> None:
    is_number = jnp.issubdtype(values.dtype, jnp.number) and not jnp.issubdtype(values.dtype, jnp.complexfloating)
    if not (is_number or values.dtype == bool):
        raise UsageError(f"{name} are {values.dtype}: give real numbers")


def _leading_axes(found: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    before = len(found) - len(shape)
    if before < 0 or found[before:] != shape:
        raise UsageError(f"values have shape {found}, and one release has shape={shape}: give [..., *shape]")
    return found[:before]
