"""The problem that a table poses: which records to train on, how they are encoded, and what encoding them cost."""

import difflib
import hashlib
from pathlib import Path

import numpy as np

from ... import data as datasets
from ..._errors import UsageError
from ...accounting import Ledger
from ...data._csv import header_of
from ...runs._folder import RunFolder, as_written
from ...runs._key_source import KeySource
from .._options import that_matter
from .._sampling import adjacency_of
from ._options import MOA_CATEGORIES, TrainOptions
from ._problem import Problem, problem_of

_NAMED = 8  # columns that are told by name, at most
_HELD_BACK = 5  # by default a fifth of the records is


def table_problem(options: TrainOptions, spent_before: Ledger, entropy: bytes | None = None) -> Problem:
    """Read and encode the files that the options name, and divide them into records to train and to evaluate on.

    Args:
        options: with the files.
        spent_before: what the same data have been used for before, from which estimated bounds differ in their noise.
        entropy: as `KeySource` takes it.

    Raises:
        UsageError: for files that can't be read, don't match or hold what they shouldn't.
    """
    assert options.features is not None
    _check_files(options)
    columns = _columns(options.features, options)
    _check_categories(options)
    categories = datasets.declared_categories(options.categories, columns)
    raw = datasets.read_columns(options.features, columns, categories)
    datasets.refuse_constant(raw, options.features)
    targets, names, task, classes = _targets(options, raw.ids)
    train, test = _divided(raw.ids, options)
    read = (raw.values, targets, train)  # bounds that are estimated differ from run to run
    described = {"options": that_matter(options), "columns": columns, "spent_before": spent_before.to_dict()}
    bounds, ledger = _bounds(
        options, raw, train, KeySource(options.seed, described, datasets.Fingerprints(read), entropy)
    )
    encoding = datasets.Encoding(columns, categories, options.missing, bounds)
    table = datasets.Table(
        name=options.features.stem,
        features=encoding.encoded(options.features, raw),
        targets=targets,
        task=task,
        encoding=encoding,
        id_name=header_of(options.features)[0],
        target_names=names,
        classes=classes,
    )
    return problem_of(table.labelled(train, test), options, read=read, spent=ledger)


def _check_files(options: TrainOptions) -> None:
    """Refuse what can't be read several times, as these files are."""
    for name, path in (("--features", options.features), ("--targets", options.targets)):
        if path is not None and path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{name}={path} is a pipe or a device, and is read several times: save it as a file")


def learned_from(table: Problem) -> str:
    """A line on the column that is taken for the ids, and the others."""
    columns = table.described["encoding"]["columns"]
    more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
    return f"ids: {table.described['id']} (the first column); learned from: {', '.join(columns[:_NAMED])}{more}"


def _targets(
    options: TrainOptions, ids: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...], datasets.Task, tuple[str, ...] | None]:
    """The targets in the order of the features' ids, their names, what they say, and if that is a class, which there are."""
    source, which = (options.features, options.target_columns) if options.targets is None else (options.targets, None)
    assert source is not None
    if options.classes is not None:
        classes = datasets.declared_classes(options.classes)
        targets, names = datasets.read_classes(source, ids, classes, which)
        return targets, names, datasets.Classes(len(classes)), classes
    if options.target_bounds is None:
        targets, names = datasets.read_targets(source, ids, which)
        return targets, names, datasets.Targets(len(names)), None
    targets, names = datasets.read_numbers(source, ids, which)
    lower, upper = options.target_bounds
    for name, column in zip(names, targets.T, strict=True):
        if not ((column >= lower) & (column <= upper)).any():
            raise UsageError(
                f"--target-bounds={lower:g} {upper:g}: none of the {len(column)} numbers of {name} lies between them: give the "
                "least and the largest that a target can be, in its unit"
            )
    return targets, names, datasets.Numbers(len(names), lower, upper), None


def _columns(features: Path, options: TrainOptions) -> tuple[str, ...]:
    """The columns to learn from, among which no target is."""
    columns = datasets.chosen_columns(features, options.columns)
    targets, header = options.target_columns, header_of(features)[1:]
    if absent := [name for name in targets if name not in header]:
        near = "".join(f": did you mean {name}?" for name in difflib.get_close_matches(absent[0], header, n=1))
        raise UsageError(f"--target-columns={absent[0]}: {features} has no such column behind its ids{near}")
    if options.columns is not None and (both := [name for name in columns if name in targets]):
        raise UsageError(
            f"--columns={options.columns} lists {both[0]}, which is one of --target-columns: leave it out there"
        )
    if not (left := tuple(name for name in columns if name not in targets)):
        raise UsageError(f"--target-columns names all columns of {features} behind its ids: leave some to learn from")
    return left


def _check_categories(options: TrainOptions) -> None:
    """Refuse categories of a column that isn't there or has some already; the default ones are of one competition's files."""
    given = [text.partition("=")[0] for text in options.categories if text not in MOA_CATEGORIES]
    header = header_of(options.features)[1:] if options.features else []
    header = [name for name in header if name not in options.target_columns]
    for name in given:
        if name not in header or given.count(name) > 1:
            why = "twice" if name in header else f"and {options.features} has no such column of features"
            raise UsageError(
                f"--categories are given of {name!r}, {why}: name each column of text once, such as sex=f,m"
            )


def _divided(ids: tuple[str, ...], options: TrainOptions) -> tuple[np.ndarray, np.ndarray]:
    """The places of the records to train on, and of the others.

    Where a record goes follows from its own id alone: one record more or less moves no other, so that the parts of neighbouring
    data sets are neighbours, too.
    """
    folds, fold = options.folds or _HELD_BACK, options.fold or 1
    numbers = (int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) for name in ids)
    held_back = np.array([number % folds == fold - 1 for number in numbers])
    train, test = np.flatnonzero(~held_back), np.flatnonzero(held_back)
    if not len(train) or not len(test):
        raise UsageError(
            f"{len(ids)} records are too few: {len(train)} would be left to train on, and {len(test)} to evaluate on; give "
            "fewer --folds, or more records"
        )
    return train, test


def _bounds(
    options: TrainOptions, raw: datasets.Columns, train: np.ndarray, keys: KeySource
) -> tuple[datasets.Bounds, Ledger]:
    """The numeric columns' bounds, and what they cost."""
    numeric = ~np.array(raw.coded, bool)
    names = tuple(name for name, is_number in zip(raw.names, numeric, strict=True) if is_number)
    if options.bounds is not None:
        return datasets.same_bounds(*options.bounds, len(names)), Ledger()
    if options.bounds_file is not None:
        return datasets.read_bounds(options.bounds_file, names), Ledger()
    assert options.bounds_noise is not None
    if not names:
        raise UsageError(
            f"--bounds-noise={options.bounds_noise:g}: no column is of numbers to estimate bounds of: give --bounds 0 1, "
            "which costs nothing"
        )
    if options.resume is not None:  # what was released stays as it was: another draw would cost again
        return _released(options.resume)
    bounds, event = datasets.estimated_bounds(raw.values[train][:, numeric], options.bounds_noise, keys.key("bounds"))
    ledger = Ledger(adjacency=adjacency_of(options.adjacency, options.sampling))
    return bounds, ledger.add(event, f"the bounds of {len(names)} columns", nonce=keys.nonce("bounds"))


def _released(folder: Path) -> tuple[datasets.Bounds, Ledger]:
    config = RunFolder.existing(folder).read_json("config.json")
    with as_written(folder / "config.json"):
        return datasets.Encoding.from_dict(config["model"]["encoding"]).bounds, Ledger()
