"""One process at a time in a run's folder: a lock that the kernel holds, and releases when the process dies, however it does."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .._errors import UsageError

_BYTE = 2**30  # that is locked on Windows: beyond what is written, so that the others can read it


@contextmanager
def locked(path: Path, folder: Path, go_on: str) -> Iterator[None]:
    """Hold the lock in the file `path` while in `folder`; `go_on` says how to where another process did.

    Raises:
        UsageError: where another process, or another thread of this one, holds it; and where nothing can.
    """
    with _opened(path) as file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise UsageError(
                f"{folder} is in use by {file.read().strip() or 'another process'}: two would write over each other's results "
                f"and draw the same noise. Wait for its end, or end it (taking {path.name} away ends nothing) and {go_on}; "
                "or give another folder"
            ) from error
        except OSError as error:
            raise UsageError(
                f"{path} can't be locked ({error.strerror}), so that two processes could run in {folder} at once: give a folder "
                "on a file system with locks"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _opened(path: Path) -> IO[str]:
    try:
        return open(path, "a+", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}): give a folder that can") from error


def _lock(file: IO[Any]) -> None:
    """Take the lock or raise; closing the file gives it back."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        file.seek(0)
    else:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
