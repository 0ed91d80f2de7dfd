"""Checks of single numbers on the host: each returns the value as a plain Python number, or says what to change.

Plain numbers matter: dp-accounting treats a NumPy or JAX scalar as another type than `float` and can then drop a
composition, and a traced value can't be checked at all.
"""

import math
import numbers
import os
from collections.abc import Collection
from pathlib import Path
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
    # NumPy counts a span of time among the integers.
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise UsageError(f"{name}={value!r} is not a plain number but {type(value).__name__}: {fix}")
    try:
        number = float(value)
    except OverflowError as error:
        raise UsageError(f"{name} is of a size beyond all floats: {fix}") from error
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


def shape(value: Any) -> tuple[int, ...]:
    """`value` as a shape: a tuple of whole numbers from 0 on."""
    fix = "give a tuple such as (3,)"
    if not isinstance(value, tuple | list):
        raise UsageError(f"shape={value!r} is not a tuple: {fix}")
    return tuple(whole("shape", size, fix) for size in value)


def step(name: str, value: Any) -> int:
    """`value`, a scalar array too, as the number of a step: whole, from 0 on, and such as 32 bits can hold."""
    fix = "give the number of a step, counted from 0"
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.shape == () and is_real(value):
        value = np.asarray(value)[()]
    number = whole(name, value, fix)
    if number >= 2**31 - 1:
        raise UsageError(f"{name}={number} is too large: {fix}")
    return number


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


def key(value: Any, name: str = "key") -> None:
    """Refuse what is not a scalar JAX key."""
    is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if not is_key or value.shape != ():
        raise UsageError(
            f"{name}={value!r} is not a scalar JAX key: pass jaxdp.key_from_entropy(), or jax.random.key(seed) in a test"
        )


def key_with_value(value: Any, name: str = "key") -> None:
    """Refuse what is not a scalar JAX key, or is traced."""
    key(value, name)
    if isinstance(value, Tracer):
        raise UsageError(f"{name} is traced by jax; its words are needed on the host: call it outside of jax.jit")


def flag(name: str, value: Any) -> bool:
    """`value` where it is True or False, and not something that merely counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name}={value!r} is {type(value).__name__}: give True or False")
    return bool(value)


def instance(name: str, value: Any, kinds: Any, fix: str) -> None:
    """Refuse what isn't of one of these classes."""
    if not isinstance(value, kinds):
        raise UsageError(f"{name}={value!r:.200} is a {type(value).__name__}: {fix}")


def text(name: str, value: Any) -> None:
    """Refuse what is no string."""
    instance(name, value, str, "give a string")


def texts(name: str, value: Any) -> None:
    """Refuse what is no list or tuple of strings; one string, whose letters it would take for them, too."""
    instance(name, value, list | tuple, "give a list of strings")
    for item in value:
        text(f"an entry of {name}", item)


def path(name: str, value: Any) -> Path:
    """`value`, a string too, as a path."""
    instance(name, value, str | os.PathLike, "give a path, as a string or a pathlib.Path")
    if "\0" in os.fsdecode(value):
        raise UsageError(f"{name}={value!r} has a zero byte in it: give a path")
    return Path(os.fsdecode(value))


def generator(name: str, value: Any) -> None:
    """Refuse what is no NumPy generator."""
    instance(name, value, np.random.Generator, "give numpy.random.default_rng()")


def function(name: str, value: Any, fix: str) -> None:
    """Refuse what can't be called."""
    if not callable(value):
        raise UsageError(f"{name}={value!r} is {type(value).__name__} and can't be called: {fix}")


def set_fields(value: Any, **checked: Any) -> None:
    """Put checked plain numbers in the place of what a frozen value was given: NumPy's small integers would wrap."""
    for name, field in checked.items():
        object.__setattr__(value, name, field)


def hashable(name: str, value: Any) -> None:
    """Refuse what can't be hashed: a list in a field, or a dataclass that isn't frozen."""
    try:
        hash(value)
    except TypeError as error:
        raise UsageError(
            f"{name}={value!r:.200} can't be hashed ({error}), and programs are compiled by it: make it a frozen dataclass with "
            "tuples in the place of lists"
        ) from error


def is_array(value: Any) -> bool:
    """Whether `value` is an array of numbers, bools or keys, traced or not, or the shape and dtype of one."""
    dtype = getattr(value, "dtype", None)
    if not hasattr(value, "shape") or dtype is None:
        return False
    if getattr(dtype, "char", None) in ("m", "g", "G"):  # spans of time, which NumPy counts among integers, and 80 bits
        return False
    if not getattr(dtype, "isnative", True):
        return False
    return jnp.issubdtype(dtype, jax.dtypes.extended) or jnp.issubdtype(dtype, np.number) or dtype == np.bool_


def is_number(value: Any) -> bool:
    """Whether `value` is an array as `is_array` says, of values, or a plain Python number or bool."""
    if isinstance(value, int) and not isinstance(value, bool):
        limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(int))
        return limits.min <= value <= limits.max
    has_values = is_array(value) and not isinstance(value, jax.ShapeDtypeStruct)
    return has_values or isinstance(value, bool | float | complex)


def is_real(value: Any) -> bool:
    """Whether `value` is a number or an array of floating-point or whole numbers: no bools, keys or complex numbers."""
    return is_number(value) and any(jnp.issubdtype(jnp.result_type(value), kind) for kind in (np.floating, np.integer))


def numbers_alone(name: str, tree: Any, fix: str, *, real: bool = False) -> None:
    """Refuse a pytree with a leaf that is no array of numbers and no number: a string, a function, an object."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not (is_real(leaf) if real else is_array(leaf) or is_number(leaf)):
            kind = f"an array of {leaf.dtype}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
            raise UsageError(
                f"{name}{jax.tree_util.keystr(path)} is {kind} and no array of {'real ' * real}numbers: {fix}"
            )


def has_nan(value: Any) -> bool:
    """Whether an array holds NaN; False where that can't be seen, in a traced one or a shape."""
    if isinstance(value, Tracer | jax.ShapeDtypeStruct) or not getattr(value, "is_fully_addressable", True):
        return False
    with jax.ensure_compile_time_eval():  # for what is known while something else is traced
        given = jnp.asarray(value)
        return jnp.issubdtype(given.dtype, jnp.floating) and bool(jnp.isnan(given).any())


def array(name: str, value: Any, fix: str) -> np.ndarray | jax.Array:
    """`value` as an array: JAX's as it is, all else, lists as well, on the host; refuses what holds anything but numbers."""
    if isinstance(value, Tracer):
        raise UsageError(
            f"{name} is traced by jax; this is computed on the host: call it outside of jax.jit and jax.vmap"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, and its mask would be lost: give its .filled(...) ({fix})")
    try:
        given = value if isinstance(value, jax.Array) else np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:  # rows of several lengths, mostly
        raise UsageError(f"{name} is no array ({error}): {fix}") from error
    if isinstance(given, np.ndarray) and not given.dtype.isnative:
        given = given.astype(given.dtype.newbyteorder("="))
    if not is_array(given) or jnp.issubdtype(given.dtype, jax.dtypes.extended):
        raise UsageError(f"{name} is {type(value).__name__} of {given.dtype} and no array of numbers: {fix}")
    return given


def one_of(name: str, value: Any, known: Collection[str], fix: str = "choose one of these") -> str:
    """`value` where it is one of the `known` names."""
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{name}={value!r} is not known; {fix}: {', '.join(sorted(known))}")
    return value
