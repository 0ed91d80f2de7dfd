"""Options in general: the checks that jobs share, plain values for JSON and back, and that a resumed run is asked the same."""

import dataclasses
import json
from collections.abc import Callable, Hashable
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .._errors import UsageError

Options = TypeVar("Options")
ALONE: dict[str, Any] = {  # where a process runs on all of its devices and with no others; no folder says more of it
    "devices": None,
    "distributed": False,
    "coordinator": None,
    "num_processes": None,
    "process_id": None,
}
_MAY_CHANGE = ("output", "resume", "device", "microbatch_size", "reading", *ALONE)  # when a run is resumed
_PLACE_AND_SPEED = (*_MAY_CHANGE, "seed")  # on which no draw depends
_ITS_OWN = (
    "output",
    "resume",
    "distributed",
    "coordinator",
    "num_processes",
    "process_id",
)  # of each of several processes


def flag(name: str) -> str:
    """A field's name as it is typed."""
    return "--" + name.replace("_", "-")


def alone(options: Options) -> Options:
    """The same options for a process that runs on all of its devices and with no others."""
    names = {field.name for field in dataclasses.fields(options)}  # pyright: ignore[reportArgumentType]
    changes = {name: value for name, value in ALONE.items() if name in names}
    return dataclasses.replace(options, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]


def to_dict(options: Any) -> dict[str, Any]:
    """The options as plain values for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(options), default=str))


def of_paths(kind: Any) -> list[str]:
    """The names of those options that are paths."""
    return [field.name for field in dataclasses.fields(kind) if "Path" in str(field.type)]


def from_dict(kind: type[Options], stored: dict[str, Any]) -> Options:
    """The inverse of `to_dict` for options of that kind; raises `UsageError` for what isn't of them."""
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    for name, value in stored.items():
        if name not in names or not _fits(value, hints[name]):
            raise UsageError(
                f"the options that the run was started with have {name}={value!r}, which is none of this version of jaxdp: bring "
                "back the config.json that the run wrote, or start another run"
            )
    paths = {name: Path(stored[name]) for name in of_paths(kind) if stored.get(name)}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    return kind(**{**plain, **paths})


def check_types(options: Any) -> None:
    """Refuse values of types that no option on the command line has, where options are made in Python."""
    hints = get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        if not _fits(value, hint, of_json=False):
            of_path = isinstance(value, str) and _fits(Path(value), hint, of_json=False)
            fix = f"give Path({value!r}), of pathlib" if of_path else f"give {_in_words(hint)}"
            raise UsageError(f"{field.name}={value!r} is {type(value).__name__} and none of its values: {fix}")


def _in_words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    return "None" if hint is type(None) else hint.__name__ if type(hint) is type else str(hint).replace("pathlib.", "")


def _fits(value: Any, hint: Any, *, of_json: bool = True) -> bool:
    """Whether a value is one of an option's, or is what JSON makes of one."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one, of_json=of_json) for one in parts)
    if origin is Literal:
        return isinstance(value, Hashable) and value in parts
    if isinstance(value, bool):
        return hint is bool
    if origin is tuple:
        if not isinstance(value, (list, tuple) if of_json else tuple):
            return False
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(each) == len(value) and all(_fits(*pair, of_json=of_json) for pair in zip(value, each, strict=True))
    plain: dict[Any, Any] = {int: Integral, float: Real, **({Path: (str, Path)} if of_json else {})}
    kind = origin or hint
    return isinstance(value, plain.get(kind, kind))


def check_given(options: Any, check: Callable[[str, Any, str], Any], fixes: dict[str, str]) -> None:
    """Put those of the named options that are given to a check of `_checks`, each with its fix."""
    for name, fix in fixes.items():
        if getattr(options, name) is not None:
            check(flag(name), getattr(options, name), fix)


def check_holdout(holdout: int) -> None:
    """Refuse a number of examples that can't be held back."""
    if holdout < 0:
        raise UsageError(f"--holdout={holdout} must be 0 or above: give the examples to hold back, such as 10000")


def check_seed(seed: int | None) -> None:
    """Refuse a seed that JAX would cut."""
    if seed is not None and not 0 <= seed < 2**32:
        raise UsageError(f"--seed={seed} must lie between 0 and 2^32 - 1")


def seeded(what: str) -> str:
    """A statement's sentence about a seed, without the seed."""
    return (
        f"{what} was seeded (--seed): to whoever knows the seed, or tries all 2^32, it is not private. Its random keys follow "
        "from the seed, so that they can't be erased."
    )


def check_resumed(folder: Path, stored: dict[str, Any], options: Any) -> None:
    """Refuse to go on with a run under other options than it was started with."""
    started = from_dict(type(options), stored)
    differences = [
        f"{flag(field.name)}: {getattr(started, field.name)}, {getattr(options, field.name)}"
        for field in dataclasses.fields(options)
        if field.name not in _MAY_CHANGE and getattr(started, field.name) != getattr(options, field.name)
    ]
    if differences:
        raise UsageError(
            f"--resume {folder}: the options differ from those the run was started with ({'; '.join(differences)}): "
            "leave them out to go on, or start another run in another folder"
        )


def that_matter(options: Any) -> dict[str, Any]:
    """The options on which a run's draws depend: not where it lies and runs, nor from where its data are read."""
    leave_out = (*_PLACE_AND_SPEED, *of_paths(type(options)))
    return {name: value for name, value in to_dict(options).items() if name not in leave_out}


def plan_that_matters(plan: dict[str, Any]) -> dict[str, Any]:
    """The same of a training run's plan, in JSON."""
    run = plan["run"]
    return plan if run is None else {**plan, "run": {**run, "microbatch_size": None}}


def facts_of(options: Any) -> dict[str, str]:
    """The options on which several processes must agree, by their flags: all but where each of them finds and puts files."""
    leave_out = (*_ITS_OWN, *of_paths(type(options)))
    facts = {flag(name): json.dumps(value) for name, value in to_dict(options).items() if name not in leave_out}
    return {**facts, "--resume": json.dumps(options.resume is not None)}
