"""`jaxdp predict`: what a finished run's model says of images, or of a table's records."""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tyro

from .. import data, runs
from .._errors import NOT_ARRAYS, UsageError
from .._outputs import check_output, written
from ..runs._report import rows_shown
from ._effects import Effect

_OVERWRITING = Effect(("overwrite",), lambda job: job.output is not None, lambda _: "without --output FILE")


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict with a model that `jaxdp train` trained."""

    run: tyro.conf.Positional[Path]
    """the run's folder"""
    data: str = "test"
    """images: a .npy file, uint8 [n, height, width] or [n, height, width, channels]; or test, the run's own test set. For a model
    of tables, a CSV file of features with the columns that it was trained on"""
    output: Path | None = None
    """where to write: .csv with a line an image (index, label, probability) or, for tables, an id and all targets' probabilities,
    or the class and all classes' probabilities, or numbers in their unit; or .npy with all of these but the class, [n, outputs];
    the .csv lines to standard output if not given"""
    overwrite: bool = False
    """replace the file of --output where there is one"""
    effects: ClassVar[tuple[Effect, ...]] = (_OVERWRITING,)


def predict(options: PredictOptions) -> None:
    """Write predictions for images, or for a table's records."""
    if options.output is not None:
        check_output("--output", options.output, overwrite=options.overwrite)
    run = runs.load_run(options.run)
    if run.summary is None:
        print(
            "note: this run is unfinished; predictions are of a model that no statement is about yet, and as private as "
            "its checkpoints",
            file=sys.stderr,
        )
    header, rows, probabilities = _of_images(run, options) if run.encoding is None else _of_table(run, options)
    if options.output is None:
        _check_encodable(header, rows)
        _write_csv(sys.stdout, header, rows)
        return
    with written(options.output) as temporary:
        if options.output.suffix.lower() == ".npy":
            with temporary.open("wb") as file:
                np.save(file, probabilities)
        else:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                _write_csv(file, header, rows)


def _write_csv(file: Any, header: Any, rows: Any) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


def _check_encodable(header: Any, rows: Any) -> None:
    """Refuse to print names that the terminal would change."""
    names = [str(cell) for row in (header, *rows) for cell in row]
    try:
        "".join(names).encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"standard output can't show {error.object[error.start : error.end]!r} in {error.encoding}: give --output FILE, "
            "which is in UTF-8"
        ) from error


def _of_images(run: "runs.FinishedRun", options: PredictOptions) -> tuple[Any, Any, Any]:
    """The CSV's first line, the others, and the probabilities."""
    if options.data == "test":
        data_dir = run.options["data_dir"]
        folder = Path(data_dir) if data_dir else None
        stored = data.prepared(run.options["dataset"], folder)
        if stored is None:
            images, _ = data.load_labelled(run.options["dataset"], folder, progress=rows_shown).test
        else:
            images = stored.test_images(rows_shown)
    else:
        try:
            images = np.load(options.data)
        except OSError as error:
            raise UsageError(f"--data={options.data} can't be read ({error}): give a .npy file") from error
        except NOT_ARRAYS as error:
            raise UsageError(
                f"--data={options.data} is not a .npy file of numbers: save the images with numpy.save"
            ) from error
        if not isinstance(images, np.ndarray):
            raise UsageError(f"--data={options.data} holds several arrays: save the images alone, with numpy.save")
    probabilities = run.predict(images)
    if run.task != "classes":
        names = (f"target_{i}" for i in range(probabilities.shape[1]))
        return ("index", *names), [(i, *_cells(run, row)) for i, row in enumerate(probabilities)], probabilities
    rows = [(i, int(row.argmax()), f"{row.max():.6f}") for i, row in enumerate(probabilities)]
    return ("index", "label", "probability"), rows, probabilities


def _of_table(run: "runs.FinishedRun", options: PredictOptions) -> tuple[Any, Any, Any]:
    """The same for a table, in the form of a submission."""
    if options.data == "test":
        raise UsageError("--data test is of images: give the CSV file of the features to predict from")
    assert run.encoding is not None
    assert run.target_names is not None
    ids, features = run.encoding.read(Path(options.data))
    probabilities = run.predict(features)
    header, rows = (run.id_name, *run.target_names), []
    for name, row in zip(ids, probabilities, strict=True):
        label = () if run.classes is None else (run.classes[row.argmax()],)
        rows.append((name, *label, *_cells(run, row)))
    return (*header, *(run.classes or ())), rows, probabilities


def _cells(run: "runs.FinishedRun", row: np.ndarray) -> list[str]:
    """What a model says of a record: numbers to the digits that float32 has, probabilities to six."""
    return [f"{value:.7g}" if run.task == "numbers" else f"{value:.6f}" for value in row]
