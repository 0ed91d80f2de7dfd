"""Frozen values as plain JSON, and back.

A value is written as the name of its class with its fields, and read by that name among classes that the reader knows: nothing
is ever imported because a file names it, so that a file from a stranger runs no code. What JSON lacks (tuples, infinite numbers,
dicts whose keys aren't strings) is written as such a pair, too.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .._errors import UsageError

_TYPE = "type"
_OF_PYTHON = ("float", "tuple", "dict")


def to_plain(value: Any, name: str) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None.

    Args:
        value: a frozen dataclass; or a number, a string, a list, tuple or dict, of such.
        name: what an error calls it.

    Raises:
        UsageError: for anything else, such as a function.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_TYPE: "float", "value": str(value)}
    if type(value) is list:
        return [to_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return {_TYPE: "tuple", "items": to_plain(list(value), name)}
    if type(value) is dict:
        if all(type(key) is str for key in value) and _TYPE not in value:
            return {key: to_plain(item, f"{name}[{key!r}]") for key, item in value.items()}
        return {_TYPE: "dict", "items": [to_plain(list(pair), name) for pair in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        described = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {_TYPE: type(value).__name__} | {key: to_plain(each, f"{name}.{key}") for key, each in described.items()}
    raise UsageError(
        f"{name}={value!r:.200} is a {type(value).__name__} and can't be written as JSON: give numbers and strings, lists, "
        "tuples and dicts of them, or a frozen dataclass of such"
    )


def from_plain(plain: Any, name: str, known: Mapping[str, type[Any]]) -> Any:
    """The inverse of `to_plain`.

    Args:
        plain: what it gave.
        name: what an error calls it.
        known: the classes that may be made, by name.

    Raises:
        UsageError: for a class that isn't known, and for fields that it hasn't, or refuses.
    """
    if isinstance(plain, list):
        return [from_plain(item, f"{name}[{i}]", known) for i, item in enumerate(plain)]
    if not isinstance(plain, dict):
        return plain
    if _TYPE not in plain:
        return {key: from_plain(item, f"{name}[{key!r}]", known) for key, item in plain.items()}
    rest = {key: from_plain(item, f"{name}.{key}", known) for key, item in plain.items() if key != _TYPE}
    kind = plain[_TYPE]
    try:
        if kind in _OF_PYTHON:
            return _of_python(kind, **rest)
        if kind in known:
            return known[kind](**rest)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} is no {kind} as it is written ({error}): bring back the description as it was"
        ) from error
    raise UsageError(
        f"{name} is of type {kind!r}, which is not known here: pass its class, as in from_dict(description, known=({kind},)); "
        f"known are {', '.join(sorted(known))}"
    )


def by_name(own: Collection[type[Any]], others: Collection[type[Any]]) -> dict[str, type[Any]]:
    """Classes by name; refuses two of one name, of which a description couldn't tell which it means."""
    known: dict[str, type[Any]] = {}
    for kind in (*own, *others):
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise UsageError(
                f"known holds {kind!r:.200}, which is no dataclass: give the classes, such as (MySampling,)"
            )
        if known.setdefault(kind.__name__, kind) is not kind or kind.__name__ in _OF_PYTHON:
            raise UsageError(f"known holds another class of the name {kind.__name__!r}: rename yours")
    return known


def refuse_name_of(own: Collection[type[Any]], values: Collection[Any]) -> None:
    """Refuse a value whose class isn't one of `own` and is called like one: it would be read back as that."""
    names = {kind.__name__ for kind in own}
    for value in values:
        if type(value) not in own and type(value).__name__ in names:
            raise UsageError(f"{value!r:.200} is of a class that has the name of one of jaxdp's own: rename yours")


def _of_python(kind: str, *, items: Any = (), value: Any = "") -> Any:
    if kind == "float":
        return float(value)
    return tuple(items) if kind == "tuple" else dict(items)
