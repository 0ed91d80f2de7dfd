"""What a user asked for, as it is kept beside a run: plain values for JSON and back; and that a resumed run is asked the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from ._errors import UsageError

Options = TypeVar("Options")


def flag(name: str) -> str:
    """A field's name as it is typed."""
    return "--" + name.replace("_", "-")


def to_dict(options: Any) -> dict[str, Any]:
    """The options as plain values for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(options), default=str))


def from_dict(kind: type[Options], stored: dict[str, Any]) -> Options:
    """The inverse of `to_dict` for options of that kind."""
    of_paths = [field.name for field in dataclasses.fields(kind) if "Path" in str(field.type)]  # pyright: ignore[reportArgumentType]
    paths = {name: Path(stored[name]) for name in of_paths if stored.get(name)}
    return kind(**{**stored, **paths})


def check_resumed(folder: Path, stored: dict[str, Any], options: Any, may_change: tuple[str, ...]) -> None:
    """Refuse to go on with a run under other options than it was started with, apart from those that may change."""
    started = from_dict(type(options), stored)
    differences = [
        f"{flag(field.name)}: {getattr(started, field.name)}, {getattr(options, field.name)}"
        for field in dataclasses.fields(options)
        if field.name not in may_change and getattr(started, field.name) != getattr(options, field.name)
    ]
    if differences:
        raise UsageError(
            f"--resume {folder}: the options differ from those the run was started with ({'; '.join(differences)}): "
            "leave them out to go on, or start another run in another folder"
        )
