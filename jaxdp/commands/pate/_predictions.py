"""Predictions of teachers who live elsewhere, from a file; and the labels, to a file and back."""

import csv
import hashlib
import hmac
import io
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from ..._errors import NOT_ARRAYS, UsageError
from ...pate._votes import check_predictions
from ...runs._folder import PRIVATE, close_to_others

UNPLACED = f"{PRIVATE}/labels.tmp"  # labels before they are in their place: half of them are not to be shared
_HEADER = ("example", "label", "answered")
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")  # int() takes 1_0 and figures of other scripts, too
_UNREADABLE = (OSError, ValueError, OverflowError, csv.Error)


def read_predictions(path: Path) -> Int[np.ndarray, "teachers examples"]:
    """Whole numbers [teachers, examples] from a .npy or a .csv file.

    Raises:
        UsageError: for a file that can't be read, another kind of file, or a cell that is not a whole number, by line and column.
    """
    if path.suffix not in (".npy", ".csv"):
        raise UsageError(
            f"{path} is neither .npy nor .csv: save [teachers, examples] by numpy.save, or a line a teacher"
        )
    try:
        found = np.load(path) if path.suffix == ".npy" else _read_csv(path)
    except UsageError:
        raise
    except (*_UNREADABLE, *NOT_ARRAYS) as error:
        raise UsageError(
            f"{path} can't be read ({error}): give predictions as whole numbers [teachers, examples]"
        ) from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} holds several arrays: save the predictions alone, by numpy.save")
    check_predictions(found)
    return found


def _read_csv(path: Path) -> np.ndarray:
    rows: list[list[int]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, line in enumerate(csv.reader(file, strict=True), 1):
            wrong = next(((i, cell) for i, cell in enumerate(line, 1) if not _WHOLE.fullmatch(cell)), None)
            if wrong is not None:
                column, cell = wrong
                raise UsageError(
                    f"{path}, line {number}, column {column}: {cell!r} is not a whole number; give a line a teacher and a column "
                    "an example, without a header"
                )
            rows.append([int(cell) for cell in line])
            if len(rows[-1]) != len(rows[0]):
                raise UsageError(
                    f"{path}, line {number} has {len(rows[-1])} columns and line 1 has {len(rows[0])}: every teacher predicts "
                    "every example"
                )
    return np.array(rows, np.int64)


def write_labels(
    folder: Path, labels: Int[np.ndarray, " asked"], answered: Bool[np.ndarray, " asked"], rows: np.ndarray
) -> None:
    """A line for each example that was asked: its number, its label (empty where there is none), whether it was answered.

    They aren't in their place yet: `place_labels`.
    """
    with (folder / UNPLACED).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for row, label, was in zip(rows, labels, answered, strict=True):
            writer.writerow((int(row), int(label) if label >= 0 else "", int(was)))


def place_labels(folder: Path) -> None:
    """Put them where others may see them."""
    (folder / UNPLACED).replace(folder / "labels.csv")


def read_labels(
    path: Path,
) -> tuple[Int[np.ndarray, " asked"], Int[np.ndarray, " asked"], Bool[np.ndarray, " asked"]]:
    """(the examples that were asked, their labels or -1, which of them were answered), from what `write_labels` wrote.

    Raises:
        UsageError: for another kind of file.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, strict=True))
        if tuple(lines[0]) != _HEADER:
            raise ValueError(f"its first line is {','.join(lines[0])}, not {','.join(_HEADER)}")
        asked = np.array([_whole(line[0]) for line in lines[1:]], np.int64)
        labels = np.array([_whole(line[1] or "-1") for line in lines[1:]], np.int64)
        answered = np.array([bool(_whole(line[2])) for line in lines[1:]], bool)
    except (*_UNREADABLE, IndexError) as error:
        raise UsageError(
            f"--labels={path} can't be read ({error}): give the labels.csv of `jaxdp pate label`"
        ) from error
    return asked, labels, answered


def _whole(cell: str) -> int:
    if not _WHOLE.fullmatch(cell):
        raise ValueError(f"{cell!r} is not a whole number")
    return int(cell)


class Kept(NamedTuple):
    """Where a run keeps an array, and the mark by which that is the run's own."""

    path: Path
    mark: str


def save_array(kept: Kept, array: np.ndarray) -> None:
    """Write a .npy file, all or nothing; after its end, where NumPy doesn't look, stands its SHA-256 under the run's mark."""
    temporary = kept.path.with_suffix(".tmp.npy")
    file = io.BytesIO()
    np.save(file, array)
    temporary.write_bytes(file.getvalue() + _sealed(file.getvalue(), kept.mark))
    close_to_others(temporary)
    temporary.replace(kept.path)


def load_array(kept: Kept) -> np.ndarray:
    """What `save_array` wrote; raises `UsageError` where it is damaged, or another run's."""
    content = kept.path.read_bytes()
    body, seal = content[: -hashlib.sha256().digest_size], content[-hashlib.sha256().digest_size :]
    if not hmac.compare_digest(_sealed(body, kept.mark), seal):
        raise UsageError(
            f"{kept.path} is not as it was written: the run's folder is damaged; start the run anew in another"
        )
    return np.load(io.BytesIO(body), allow_pickle=False)


def _sealed(body: bytes, mark: str) -> bytes:
    return hmac.digest(mark.encode(), body, "sha256")
