"""CSV files with an id column, numbers and declared categories, read with errors that name the row and the column."""

import contextlib
import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .. import _checks
from .._errors import UsageError

_ROWS_AT_ONCE = 1000
_SEPARATORS = ",\t;"


class Columns(NamedTuple):
    """A CSV file's content.

    Attributes:
        ids: the first column, one for each row, all different.
        names: of the columns of `values`; a category's is "column=value".
        values: float32 [rows, columns]; an empty cell is NaN, a category's is 1 where a row has it and 0 elsewhere.
        coded: whether a column is a category's.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    values: Float[np.ndarray, "rows columns"]
    coded: tuple[bool, ...]


def header_of(path: Path) -> list[str]:
    """The names of a file's columns, the ids' first; raises `UsageError` where it can't be read or names one twice."""
    with _rows(path) as rows:
        return next(iter(rows))


def read_columns(
    path: Path,
    chosen: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    *,
    otherwise: str | None = None,
) -> Columns:
    """Read a CSV file whose first column holds ids.

    Args:
        path: the file; its first line names the columns, and shows whether commas, semicolons or tabs divide them.
        chosen: columns to read, in this order; by default all but the ids.
        categories: the values that a column of text can have, by column; public knowledge, never read off the data.
        otherwise: what an error about a cell that is no number, or not declared, says to do; by default to declare categories.

    Returns:
        Its `Columns`.

    Raises:
        UsageError: for a file that is missing or empty, a column that isn't there, an id that comes twice, rows of another
            length, and cells that are neither a finite number nor one of the column's categories, with row and column.
    """
    _check_chosen(chosen, categories)
    categories = categories or {}
    with _rows(path) as rows:
        header = next(iter(rows))
        names = header[1:] if chosen is None else list(chosen)
        place_of = {name: place for place, name in enumerate(header) if place}
        if missing := [name for name in names if name not in place_of]:
            more = ", ..." if len(header) > 6 else ""
            first = f" (the first column, {header[0]}, is taken for the ids)" if header[0] in missing else ""
            raise UsageError(
                f"{path} has no column {', '.join(missing[:5])}{first}; it has {', '.join(header[1:6])}{more}"
            )
        places = [place_of[name] for name in names]
        ids, parts, chunk = [], [], []
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                wrong = (
                    f"{len(row)} cells where the first line has {len(header)}" if row else "it is empty: take it out"
                )
                raise UsageError(f"{path}, line {number}: {wrong}")
            ids.append(row[0])
            chunk.append([row[place] for place in places])
            if len(chunk) == _ROWS_AT_ONCE:
                parts.append(_parsed(path, names, chunk, number, categories, otherwise))
                chunk = []
        parts.append(_parsed(path, names, chunk, len(ids) + 1, categories, otherwise))
    if not ids:
        raise UsageError(f"{path} has a first line and no rows")
    if (around := next((i for i, each in enumerate(ids) if each != each.strip()), None)) is not None:
        raise UsageError(
            f"{path}, line {around + 2}: the id {ids[around]!r} has blanks around it, and would be another record's: take them "
            "out of the file"
        )
    if len(set(ids)) != len(ids):
        again = Counter(ids).most_common(1)[0][0]
        raise UsageError(
            f"{path} has the id {again!r} twice in its first column, {header[0]}, by which records are known: put ids first. "
            "Several rows of one person are for jaxdp.data.group_by_user, in Python: with row numbers as ids, epsilon would be a "
            "row's"
        )
    pairs = [
        (f"{name}={value}" if value else name, bool(value)) for name in names for value in categories.get(name, ("",))
    ]
    return Columns(
        tuple(ids), tuple(name for name, _ in pairs), np.concatenate(parts), tuple(is_coded for _, is_coded in pairs)
    )


def _check_chosen(chosen: Any, categories: Any) -> None:
    if chosen is not None:
        _checks.texts("chosen", chosen)
    if categories is not None:
        _checks.instance("categories", categories, Mapping, "give values by column, such as {'sex': ('f', 'm')}")
        for name, values in categories.items():
            _checks.text("a column of categories", name)
            _checks.texts(f"categories[{name!r}]", values)
            if len(set(values)) < len(values):
                raise UsageError(f"categories[{name!r}] name a value twice, of {', '.join(values)}: name each once")


@contextlib.contextmanager
def _rows(path: Path) -> Iterator[Iterator[list[str]]]:
    """A file's rows as lists of text, the first line's names first."""
    path = _checks.path("path", path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()  # and not read again: a pipe can't be
            lines = itertools.chain([first], file)
            rows = csv.reader(lines, delimiter=_separator(first), skipinitialspace=True, strict=True)
            header = next(rows, [])
            if len(header) < 2:
                raise UsageError(f"{path} has fewer than two columns in its first line: ids and a value are needed")
            if len(set(header)) != len(header):
                raise UsageError(f"{path} names a column twice in its first line")
            yield itertools.chain([header], rows)
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror}): give a CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"{path} is not CSV in UTF-8 ({error}): save it as such; a quotation mark that begins a cell needs one at its end"
        ) from error


def _separator(first: str) -> str:
    """What divides the columns, by their names alone: a comma where one stands outside of quotes, or else a tab, a semicolon."""
    outside = re.sub('"[^"]*"', "", first)
    return next((separator for separator in _SEPARATORS if separator in outside), ",")


def _parsed(
    path: Path,
    names: list[str],
    rows: list[list[str]],
    last_line: int,
    categories: Mapping[str, Sequence[str]],
    otherwise: str | None,
) -> np.ndarray:
    """Some rows as numbers: float32 [rows, columns]."""
    first_line = last_line - len(rows) + 1
    columns = []
    for name, cells in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        if name in categories:
            columns += _coded(path, name, cells, first_line, categories[name], otherwise)
        else:
            columns.append(_numbers(path, name, cells, first_line, otherwise))
    with np.errstate(over="ignore"):  # what is beyond float32 is infinite
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.zeros((len(rows), 0), np.float32)


def _coded(
    path: Path, name: str, cells: Sequence[str], first_line: int, known: Sequence[str], otherwise: str | None
) -> list[np.ndarray]:
    for i, cell in enumerate(cells):
        if cell not in known:
            if cell != cell.strip():
                fix = "take the blanks around it out of the file"
            elif otherwise:
                fix = otherwise
            elif not cell or "," in cell:
                fix = (
                    "write a word without a comma into the file, such as unknown for what is missing, and declare that"
                )
            else:
                fix = f"declare it by --categories {name}={','.join([*known, cell])}"
            raise UsageError(
                f"{path}, line {first_line + i}, column {name}: {cell!r} is not among those declared ({', '.join(known)}): {fix}"
            )
    array = np.array(cells)
    return [(array == value).astype(np.float64) for value in known]


def _numbers(path: Path, name: str, cells: Sequence[str], first_line: int, otherwise: str | None) -> np.ndarray:
    try:
        numbers = np.array([number(cell) if cell else math.nan for cell in cells], np.float64)
        if not np.isinf(numbers).any():
            return numbers
    except ValueError:
        pass
    line, cell = next((first_line + i, cell) for i, cell in enumerate(cells) if not _is_finite_or_missing(cell))
    fix = f"leave it empty if it is missing, declare the column's categories by --categories {name}=... (behind the same option "
    fix += "as other columns'), or leave the column out by --columns, a file of those to use"
    raise UsageError(
        f"{path}, line {line}, column {name}: {cell!r} is not a finite number{_of_decimal_comma(cell)}: {otherwise or fix}"
    )


def number(cell: str) -> float:
    """What text says as a number, as `float`; raises `ValueError` for what is none, such as the code 10_1, which Python takes."""
    if "_" in cell:
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)


def _of_decimal_comma(cell: str) -> str:
    plain = cell.replace(",", ".", 1)
    return f" (write {plain}, with a point)" if plain != cell and _is_finite_or_missing(plain) else ""


def _is_finite_or_missing(cell: str) -> bool:
    try:
        return not cell or not np.isinf(number(cell))
    except ValueError:
        return False
