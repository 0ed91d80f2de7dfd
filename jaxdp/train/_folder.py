"""The folder of a run: what is in it, and how it is written so that a kill never leaves half a file.

config.json      options, run, data fingerprint, versions
metrics.jsonl    one line an epoch
statement.txt    the privacy of the run in plain English; statement.json for programs, with the ledger
summary.json     the last line of the metrics, and times
metrics.png      loss, accuracy and epsilon by epoch
epsilon.png      epsilon against steps, by each accountant
checkpoints/     the newest checkpoint (two while training)
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from .._errors import UsageError

_ROOM_NEEDED = 64 * 2**20


def new_path(name: str) -> Path:
    """Where a run of that name that begins now goes."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Reading what a run wrote to `path`: raises `UsageError` where it has another shape."""
    try:
        yield
    except UsageError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise UsageError(
            f"{path} is not as a run writes it ({type(error).__name__}: {said}): bring back the run's own folder"
        ) from error


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.plot = path / "metrics.png"
        self.epsilon_plot = path / "epsilon.png"

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new folder, made and tried for writing.

        Raises:
            UsageError: where there is a run already or anything else, no right to write, or less than 64 MiB of room.
        """
        folder = cls(path)
        if (path / "config.json").exists():
            raise UsageError(
                f"--output={path} holds a run already: go on with it by --resume {path}, or give another folder"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (found := next(path.iterdir(), None)) is not None:
                raise UsageError(
                    f"--output={path} holds {found.name}, which is no run's: give a new folder, or an empty one"
                )
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(b"room?")
        except OSError as error:
            raise UsageError(f"--output={path} can't be written ({error.strerror}): give a folder that can") from error
        free = shutil.disk_usage(path).free
        if free < _ROOM_NEEDED:
            raise UsageError(
                f"--output={path} has {free / 2**20:.0f} MiB of room, and a run may need {_ROOM_NEEDED // 2**20}: "
                "free some, or give a folder elsewhere"
            )
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """The folder of a run that was started; raises `UsageError` where there is none."""
        if not (path / "config.json").exists():
            raise UsageError(f"{path} holds no run (there is no config.json): give the folder that a run made")
        return cls(path)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file, all or nothing."""
        self.write_text(name, json.dumps(content, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write a text file, all or nothing."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_text(content, "utf-8")
        temporary.replace(target)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file; raises `UsageError` where it is missing or damaged."""
        try:
            return json.loads((self.path / name).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name} can't be read ({error}): the run's folder is damaged") from error

    def metrics(self, up_to_step: int | None = None) -> list[dict[str, Any]]:
        """The epochs recorded so far, none that ended after `up_to_step`; a line cut short by a kill is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        records = [record for record in records if isinstance(record, dict) and "step" in record]
        return [record for record in records if up_to_step is None or record["step"] <= up_to_step]

    def keep_metrics(self, records: list[dict[str, Any]]) -> None:
        """Make `records` all that is recorded."""
        self.write_text("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Record one more epoch."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
