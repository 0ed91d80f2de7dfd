"""Checks of single values on the host that need no JAX: numbers, names, paths, functions."""

import math
import numbers
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import UsageError

Real = float | np.floating | np.integer  # the numbers that are taken where a float is asked for (an int passes for one)
Count = int | np.integer


def real(name: str, value: Any, fix: str) -> float:
    """`value` as a `float`; refuses what is not one concrete real number (NaN, arrays, traced values, strings)."""
    # NumPy counts a span of time among the integers.
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise _no_number(name, value, fix)
    try:
        number = float(value)
    except OverflowError as error:
        raise UsageError(f"{name} is of a size beyond all floats: {fix}") from error
    if math.isnan(number):
        raise UsageError(f"{name} is NaN: {fix}")
    return number


def _no_number(name: str, value: Any, fix: str) -> UsageError:
    from jax.core import Tracer  # which takes half a second, and most numbers are numbers

    if isinstance(value, Tracer):
        return UsageError(f"{name} is traced by jax; it must be a plain number known before compilation: {fix}")
    return UsageError(f"{name}={value!r} is not a plain number but {type(value).__name__}: {fix}")


def positive(name: str, value: Any, fix: str) -> float:
    """`value` as a finite `float` above zero."""
    number = real(name, value, fix)
    if not 0 < number < math.inf:
        raise UsageError(f"{name}={value} must be above 0 and finite: {fix}")
    return number


def between(name: str, value: Any, least: float, most: float, fix: str) -> float:
    """`value` as a `float` within limits."""
    number = positive(name, value, fix)
    if not least <= number <= most:
        raise UsageError(f"{name}={value} must lie between {least:g} and {most:g}: {fix}")
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


def clip_norm(value: Any) -> float:
    """`value` as a clip norm: above zero, `inf` allowed (no clipping), within float32's normal range."""
    fix = "give the L2 norm to which each example's gradient is clipped, such as 1.0"
    number = real("clip_norm", value, fix)
    if number != math.inf and not 1e-30 <= number <= 1e30:
        raise UsageError(f"clip_norm={value} must lie between 1e-30 and 1e30, or be inf for no clipping: {fix}")
    return number


def delta(value: Any, num_examples: int | None = None, of: str = "examples") -> float:
    """`value` as the δ of (ε, δ): between 0 and 1, and below one over the number of examples, or of what has one each at the
    least, where that is known."""
    number = real("delta", value, "give a probability well below 1 / num_examples, such as 1e-5")
    if not 0 < number < 1:
        raise UsageError(f"delta={value} must lie between 0 and 1, both excluded: 1e-5 is usual")
    if num_examples is not None and number >= 1 / num_examples:
        raise UsageError(
            f"delta={value} is not below 1/{num_examples}, one over the number of {of}: at such a delta a mechanism "
            f"that publishes a random record would pass; choose delta below {1 / num_examples:.2g}"
        )
    return number


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


def one_of(name: str, value: Any, known: Collection[str], fix: str = "choose one of these") -> str:
    """`value` where it is one of the `known` names."""
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{name}={value!r} is not known; {fix}: {', '.join(sorted(known))}")
    return value
