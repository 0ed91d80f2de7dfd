"""How options are told on the command line: types in words, a default that is left open as such, other libraries' names."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
from dataclasses import replace
from typing import Any, Union, get_args

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from .._checks import meant, without
from .._errors import UsageError

IN_WORDS = ConstructorRegistry()
_NUMBERS = {int: ("INTEGER", "a whole number, such as 12"), float: ("NUMBER", "a number, such as 0.5")}
_OPEN = "unset"


@IN_WORDS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return _of_numbers(info.type) if info.type in _NUMBERS else None


@functools.cache
def _of_numbers(kind: type[Any]) -> PrimitiveConstructorSpec[Any]:
    metavar, words = _NUMBERS[kind]

    def read(given: list[str]) -> Any:
        try:
            return kind(given[0])
        except ValueError as error:
            raise ValueError(f"{given[0]!r} is not {words}") from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: (
            isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        ),
        str_from_instance=lambda value: [f"{value:g}" if kind is float and abs(value) < 1e6 else str(value)],
    )


@IN_WORDS.primitive_rule
def _maybe(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """A value that may be left open is read and shown as if it had to be given: nobody types None."""
    kinds = get_args(info.type)
    if info.type_origin not in (Union, types.UnionType) or type(None) not in kinds or len(kinds) != 2:
        return None
    [kind] = (kind for kind in kinds if kind is not type(None))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return spec
    return replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: [_OPEN] if value is None else spec.str_from_instance(value),
    )


def join_lines(kind: type[Any]) -> None:
    """Make one line of what stands below each field of these options: tyro would keep its line breaks, and break it again."""
    found: dict[str, str] = {}
    for each in reversed([each for each in kind.__mro__ if dataclasses.is_dataclass(each)]):
        [described] = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(described, ast.ClassDef)
        for field, below in itertools.pairwise(described.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    for field in dataclasses.fields(kind):
        if field.name in found:
            field.metadata = types.MappingProxyType({**field.metadata, "help": found[field.name]})


def check_names(given: list[str], known: set[str]) -> None:
    """Name the right option for one that is another library's.

    Args:
        given: what was typed.
        known: the command's options.

    Raises:
        UsageError: with both names.
    """
    for typed in given:
        name = typed.partition("=")[0].removeprefix("--").replace("-", "_")
        if not typed.startswith("--") or name in known:
            continue
        if name == "num_microbatches":
            raise UsageError(f"{typed.partition('=')[0]}: {without(name)}")
        if right := meant(name, known):
            raise UsageError(f"{typed.partition('=')[0]} is --{right.replace('_', '-')} here: give that")
