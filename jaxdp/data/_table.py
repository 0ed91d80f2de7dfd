"""Tables: features and targets from CSV files, encoded by public rules alone.

Numbers are scaled by bounds (`_scaling`), text is coded by declared categories (`_csv`), and what is missing is refused or put
in the middle. Targets are binary, one of several declared classes, or numbers. The `Encoding` that did so is kept with a trained
model, and encodes what it is to predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from .. import _checks
from .._errors import UsageError
from ._csv import Columns, header_of, read_columns
from ._labelled import Labelled
from ._scaling import Bounds
from ._tasks import Task


@dataclass(frozen=True)
class Encoding:
    """How features of a CSV file become numbers: nothing of it is computed from the data in silence.

    Attributes:
        columns: of the file, in order.
        categories: what a column of text can hold.
        missing: "refuse", or "middle" for a missing number in the middle of its bounds.
        bounds: of the numeric columns, in order.
    """

    columns: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]
    missing: str
    bounds: Bounds

    def read(self, path: Path) -> tuple[tuple[str, ...], Float32[np.ndarray, "rows features"]]:
        """Ids and encoded features of a file; raises `UsageError` as `read_columns` does, and for what is missing."""
        raw = read_columns(
            path,
            self.columns,
            self.categories,
            otherwise="the model was trained on no other kind of value: mend it in the file",
        )
        return raw.ids, self.encoded(path, raw)

    def encoded(self, path: Path, raw: Columns) -> Float32[np.ndarray, "rows features"]:
        """The features of columns that were read from `path`."""
        _check_missing(path, raw, self.missing)
        features = raw.values.copy()
        numeric = ~np.array(raw.coded, bool)
        features[:, numeric] = np.nan_to_num(self.bounds.scaled(raw.values[:, numeric]))
        return features

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "bounds": self.bounds.to_dict()}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Encoding":
        """The inverse of `to_dict`."""
        categories = {name: tuple(values) for name, values in stored["categories"].items()}
        return cls(tuple(stored["columns"]), categories, stored["missing"], Bounds.from_dict(stored["bounds"]))


@dataclass(frozen=True)
class Table:
    """A table in memory, encoded.

    Attributes:
        name: what it is called.
        features: float32 [rows, features].
        targets: as the task has them: uint8 [rows, targets], 0 or 1; int32 [rows], places in `classes`; or float32 [rows,
            targets], in their unit.
        task: what they say.
        encoding: how the features were encoded.
        id_name: what the column of ids is called.
        target_names: one a target.
        classes: what the target can be, in the order of its numbers; None where it isn't one of classes.
    """

    name: str
    features: Float32[np.ndarray, "rows features"]
    targets: np.ndarray
    task: Task
    encoding: Encoding
    id_name: str
    target_names: tuple[str, ...]
    classes: tuple[str, ...] | None = None

    def labelled(self, train: np.ndarray, test: np.ndarray) -> Labelled:
        """The table as training sees it: some rows to train on, others, which are people held back, to evaluate on."""
        pick = lambda rows: (self.features[rows], self.targets[rows])
        return Labelled(
            name=self.name,
            train=pick(train),
            test=pick(test),
            task=self.task,
            public_test=False,
            described={
                "encoding": self.encoding.to_dict(),
                "id": self.id_name,
                "targets": self.target_names,
                "features": self.features.shape[1],
                **({} if self.classes is None else {"classes": self.classes}),
            },
        )


def chosen_columns(path: Path, listed: Path | None) -> tuple[str, ...]:
    """The columns of a file of features to use: all, or those in a file of names or numbers, one a line.

    Args:
        path: the CSV file.
        listed: names, or places counted from 0 among the columns behind the ids; None for all.

    Raises:
        UsageError: for a file that can't be read or lists nothing, and for columns that aren't there or come twice.
    """
    names = header_of(path)[1:]
    if listed is None:
        return tuple(names)
    known = set(names)
    listed = _checks.path("listed", listed)
    try:
        entries = [
            line.strip() for line in listed.read_text("utf-8-sig").replace(",", "\n").splitlines() if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--columns={listed} can't be read ({error}): give a file of names or numbers, one a line"
        ) from error
    if not entries:
        raise UsageError(f"--columns={listed} lists nothing: give names or numbers of columns, one a line")
    found = []
    for entry in entries:
        at = int(entry) if entry.isdecimal() and entry not in known else None
        if (at is not None and at >= len(names)) or (at is None and entry not in known):
            raise UsageError(
                f"--columns={listed} lists {entry!r}, and {path} has {len(names)} columns behind its ids: {names[0]}, ..."
            )
        found.append(entry if at is None else names[at])
    if len(set(found)) != len(found):
        raise UsageError(f"--columns={listed} lists a column twice")
    return tuple(found)


def declared_categories(declared: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Categories by column from "column=value,value", for those columns that are used.

    Raises:
        UsageError: for text of another form, for fewer than two values, an empty one, and a column that is given twice.
    """
    _checks.texts("declared", declared)
    _checks.texts("columns", columns)
    found = {}
    for text in declared:
        name, equals, values = text.partition("=")
        if not equals or len(set(values.split(","))) < 2:
            raise UsageError(f"--categories {text!r} is not of the form column=value,value: such as sex=f,m")
        if not all(each.strip() for each in values.split(",")):
            raise UsageError(
                f"--categories {text!r} has an empty category: write a word for what is missing into the file, such as unknown, "
                "and declare that"
            )
        if name in found:
            raise UsageError(
                f"--categories declares the column {name} twice: give all its values in one, {name}=value,value"
            )
        if name in columns:
            found[name] = tuple(each.strip() for each in values.split(","))
    return found


def declared_classes(declared: str) -> tuple[str, ...]:
    """The classes of a target from "value,value"; raises `UsageError` for fewer than two, none of them empty or given twice."""
    _checks.text("declared", declared)
    classes = tuple(each.strip() for each in declared.split(","))
    if len(classes) < 2 or "" in classes or len(set(classes)) < len(classes):
        raise UsageError(
            f"--classes={declared} is not of the form value,value: name each class once, two or more, such as low,middle,high"
        )
    return classes


def read_targets(
    path: Path, ids: tuple[str, ...], columns: Sequence[str] | None = None
) -> tuple[UInt8[np.ndarray, "rows targets"], tuple[str, ...]]:
    """Binary targets in the order of the features' ids.

    Args:
        path: the CSV file, its first column the ids.
        ids: of the features.
        columns: those that are targets; by default all.

    Returns:
        uint8 [rows, targets], 0 or 1, and the targets' names.

    Raises:
        UsageError: as `read_columns` does; for ids that don't match, values other than 0 and 1, and more targets than rows.
    """
    raw = read_columns(path, columns, otherwise="a binary target is 0 or 1; for classes give --classes a,b,c")
    values = _in_order(path, ids, raw, raw.names)
    rows, places = np.nonzero((values != 0) & (values != 1))
    if len(rows):
        wrong = values[rows[0], places[0]]
        fix = "give 0 or 1, or --target-bounds LOW HIGH for numbers, --classes a,b,c for classes"
        if np.isnan(wrong):
            fix = "nothing is known there: leave the record out, of the features, too, or give 0 or 1"
        raise UsageError(
            f"{path}, id {ids[rows[0]]}, column {raw.names[places[0]]}: {wrong:g} is not a binary target: {fix}"
        )
    return values.astype(np.uint8), raw.names


def read_classes(
    path: Path, ids: tuple[str, ...], classes: Sequence[str], columns: Sequence[str] | None = None
) -> tuple[Int32[np.ndarray, " rows"], tuple[str, ...]]:
    """A target of several classes in the order of the features' ids.

    Args:
        path: the CSV file, its first column the ids.
        ids: of the features.
        classes: what the target can be; public knowledge, never read off the data.
        columns: the one that is the target; by default the only one.

    Returns:
        int32 [rows], places in `classes`, and the target's name, alone in a tuple.

    Raises:
        UsageError: as `read_columns` does; for ids that don't match, and another number of columns than one.
    """
    _checks.texts("classes", classes)
    if columns is not None:
        _checks.texts("columns", columns)
    names = tuple(header_of(path)[1:] if columns is None else columns)
    if len(names) != 1:
        raise UsageError(
            f"--classes are of one target, and {len(names)} are named ({', '.join(names[:5])}): name one by --target-columns, or "
            "leave one beside the ids in --targets"
        )
    raw = read_columns(
        path, names, {names[0]: tuple(classes)}, otherwise="give all classes that there are to --classes"
    )
    return _in_order(path, ids, raw, names).argmax(axis=1).astype(np.int32), names


def read_numbers(
    path: Path, ids: tuple[str, ...], columns: Sequence[str] | None = None
) -> tuple[Float32[np.ndarray, "rows targets"], tuple[str, ...]]:
    """Targets that are numbers in the order of the features' ids.

    Args:
        path: the CSV file, its first column the ids.
        ids: of the features.
        columns: those that are targets; by default all.

    Returns:
        float32 [rows, targets], as they stand in the file, and the targets' names.

    Raises:
        UsageError: as `read_columns` does; for ids that don't match, missing numbers, and more targets than rows.
    """
    raw = read_columns(
        path, columns, otherwise="--target-bounds are of numbers; for classes give --classes a,b,c instead"
    )
    values = _in_order(path, ids, raw, raw.names)
    rows, places = np.nonzero(~np.isfinite(values))
    if len(rows):
        raise UsageError(
            f"{path} has {len(rows)} targets that are missing or too large for float32, the first at id {ids[rows[0]]}, column "
            f"{raw.names[places[0]]}: leave such records out, of the features, too"
        )
    return values, raw.names


def _in_order(path: Path, ids: tuple[str, ...], raw: Columns, names: tuple[str, ...]) -> np.ndarray:
    """The values of targets with these names in the order of the features' ids."""
    _checks.texts("ids", ids)
    if not names:
        raise UsageError("columns names no target: name one or more, or leave it out for all")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"columns names {twice[0]} twice: name each target once")
    known = {name: place for place, name in enumerate(raw.ids)}
    missing = [name for name in ids if name not in known]
    if missing or len(ids) != len(known):
        extra = sorted(set(known) - set(ids))
        raise UsageError(
            f"{path} has the targets of other records than the features: {len(missing)} ids of the features are missing there "
            f"({', '.join(missing[:3]) or 'none'}), and {len(extra)} are there alone ({', '.join(extra[:3]) or 'none'})"
        )
    if len(names) > len(ids):
        raise UsageError(f"{path} has {len(names)} targets and {len(ids)} rows: give more rows than targets")
    return raw.values[[known[name] for name in ids]]


def refuse_constant(raw: Columns, path: Path) -> None:
    """Refuse columns that hold one value alone: they carry nothing, and are mostly a mistake."""
    same = [
        name
        for name, column, coded in zip(raw.names, raw.values.T, raw.coded, strict=True)
        if not coded and _is_constant(column)
    ]
    if same:
        raise UsageError(
            f"{path}: {len(same)} columns hold one value alone ({', '.join(same[:5])}): leave them out by a list of the others "
            "in --columns"
        )


def _is_constant(column: np.ndarray) -> bool:
    present = column[~np.isnan(column)]
    return len(present) == 0 or bool((present == present[0]).all())


def _check_missing(path: Path, raw: Columns, missing: str) -> None:
    rows, columns = np.nonzero(np.isnan(raw.values))
    if len(rows) and missing == "refuse":
        raise UsageError(
            f"{path} has {len(rows)} missing numbers, the first at id {raw.ids[rows[0]]}, column {raw.names[columns[0]]}: choose "
            "--missing middle in training to put them in the middle of their bounds, or fill them in"
        )
