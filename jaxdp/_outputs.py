"""Where the command line writes one file: tried before the work, written all or nothing, nothing that exists lost unasked."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._errors import UsageError


def check_output(option: str, path: Path, *, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse what can't be written, and what exists, unless it may be overwritten; a device or a pipe always may.

    Args:
        option: that names the file.
        path: of the file.
        overwrite: whether a file that exists may be replaced.
        suffixes: what the name may end in; anything if none are given.

    Raises:
        UsageError: naming the option, the path and the fix.
    """
    try:
        if path.is_dir() or not path.name:
            raise UsageError(f"{option}={path} is a folder: give a file's name in it")
        if not _is_file_or_new(path):
            return
        if suffixes and path.suffix.lower() not in suffixes:
            raise UsageError(f"{option}={path} would not be what its name says: give one that ends in {suffixes[0]}")
        if path.exists() and not overwrite:
            raise UsageError(f"{option}={path} exists already: give another name, or --overwrite to replace it")
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise UsageError(f"{option}={path} can't be written ({error.strerror}): give a file that can") from error


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` where the block ends without an error.

    Raises:
        UsageError: where it can't be written.
    """
    temporary = None
    try:
        if not _is_file_or_new(path):
            yield path
            return
        target = path.resolve()  # of a link, what it points to
        temporary = target.with_name(f".{target.name[:60]}.{os.getpid()}.tmp")
        yield temporary
        temporary.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}): give a file that can, with room") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _is_file_or_new(path: Path) -> bool:
    return path.is_file() or not path.exists()
