"""What a user asked for, as it is kept beside a run: plain values for JSON and back, and what differs between two askings."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

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


def differences(ours: Any, theirs: Any, apart_from: tuple[str, ...]) -> list[str]:
    """What differs between two sets of options, as "--flag: this, that"."""
    return [
        f"{flag(field.name)}: {getattr(ours, field.name)}, {getattr(theirs, field.name)}"
        for field in dataclasses.fields(ours)
        if field.name not in apart_from and getattr(ours, field.name) != getattr(theirs, field.name)
    ]
