"""The command line: `jaxdp train`, `pate`, `predict`, `compare`, `lookalike`; the accountant's `epsilon`, `noise`, `steps`,
`batch-size`.

What a user got wrong, or a disk refused, is told in one line and ends with exit code 2, a signal with 128 and its number;
anything else is a bug and shows its traceback.
"""

import csv
import dataclasses
import json
import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import numpy as np
import tyro
from rich.console import Console

from ._effects import Effect, check_effects
from ._errors import UsageError
from ._interrupts import farewell, listening
from ._options import Options, from_dict
from ._outputs import check_output, written
from ._questions import BatchSizeOptions, EpsilonOptions, NoiseOptions, StepsOptions, answer
from ._terminal import every_terminal
from .data import write_lookalike
from .pate.command import AnalyzeOptions, LabelOptions, PateOptions, analyze_file, label, run_pate
from .train import FinishedRun, TrainOptions, load_run, train, train_folds
from .train._compare import comparison_table, finished_runs
from .train._folder import RunFolder, as_written
from .train._plots import plot_comparison

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
    """where to write: .csv with a line an image (index, label, probability) or, for tables, an id and all targets' probabilities;
    or .npy with all probabilities [n, classes]; the .csv lines to standard output if not given"""
    overwrite: bool = False
    """replace the file of --output where there is one"""
    effects: ClassVar[tuple[Effect, ...]] = (_OVERWRITING,)


@dataclass(frozen=True, kw_only=True)
class LookalikeOptions:
    """Write CSV files in the shape of the drug-response competition's, to try `jaxdp train --dataset csv` with."""

    folder: tyro.conf.Positional[Path]
    """where to write them"""
    rows: int = 23_814
    """of the training files"""
    features: int = 872
    """numeric columns, beside three that are coded"""
    targets: int = 206
    """columns of targets"""
    test_rows: int = 1000
    """of the test files"""
    seed: int = 0
    """of the law that they are drawn from, and of the draws"""
    overwrite: bool = False
    """replace files of the same names"""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Accuracy against epsilon of finished runs: a table, and a plot."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs, or folders that hold several"""
    output: Path = Path("compare.png")
    """where to draw accuracy against epsilon, a .png"""
    overwrite: bool = False
    """replace the file of --output where there is one"""
    json: bool = False
    """print JSON"""


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the command `jaxdp`."""
    with listening(), every_terminal():
        _main(sys.argv[1:] if arguments is None else arguments)


def _main(given: list[str]) -> None:
    try:
        options = _parse(given)
        if isinstance(options, TrainOptions):
            (train if options.folds is None or options.fold is not None else train_folds)(options)
        elif isinstance(options, PateOptions):
            run_pate(options)
        elif isinstance(options, LabelOptions):
            label(options)
        elif isinstance(options, AnalyzeOptions):
            analyze_file(options)
        elif isinstance(options, PredictOptions):
            predict(options)
        elif isinstance(options, CompareOptions):
            compare(options)
        elif isinstance(options, LookalikeOptions):
            write_lookalike(**vars(options))
        else:
            answer(options)
    except UsageError as error:
        print(f"jaxdp: error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader has gone, and with it what is left in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder taken away: the machine's fault, and no bug of ours
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"jaxdp: error: {where}{error.strerror or error}: see to that, and run the command again", file=sys.stderr
        )
        sys.exit(2)
    except KeyboardInterrupt:
        said, code = farewell()
        print(said, file=sys.stderr)
        sys.exit(code)


def _parse(given: list[str]) -> Any:
    _check_no_empty(given)
    given = _with_resumed_folder(_with_joined_names(given))
    train_options = _resumed_options(given, "train", TrainOptions) or TrainOptions()
    pate_options = _resumed_options(given, "pate", PateOptions) or PateOptions()
    commands = (
        Annotated[
            TrainOptions,
            tyro.conf.subcommand("train", description="Train a model on private data.", default=train_options),
        ]
        | Annotated[PateOptions, tyro.conf.subcommand("pate", default=pate_options)]
        | Annotated[LabelOptions, tyro.conf.subcommand("pate-label")]
        | Annotated[AnalyzeOptions, tyro.conf.subcommand("pate-analyze")]
        | Annotated[PredictOptions, tyro.conf.subcommand("predict")]
        | Annotated[CompareOptions, tyro.conf.subcommand("compare")]
        | Annotated[LookalikeOptions, tyro.conf.subcommand("lookalike")]
        | Annotated[EpsilonOptions, tyro.conf.subcommand("epsilon")]
        | Annotated[NoiseOptions, tyro.conf.subcommand("noise")]
        | Annotated[StepsOptions, tyro.conf.subcommand("steps")]
        | Annotated[BatchSizeOptions, tyro.conf.subcommand("batch-size")]
    )
    options: Any = tyro.cli(
        commands,  # pyright: ignore[reportArgumentType]  # a union of annotated types, which tyro reads
        prog="jaxdp",
        description="Differentially private deep learning in JAX.",
        args=given,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    typed = _typed(given, type(options))
    check_effects(options, typed)
    if "output" in typed and getattr(options, "resume", None) and options.output.resolve() != options.resume.resolve():
        raise UsageError(
            f"--output={options.output} has no effect beside --resume {options.resume}: a run goes on in its own folder; leave "
            "one of them out"
        )
    return options


def _check_no_empty(given: list[str]) -> None:
    """Refuse an empty value: of a path it would be the folder one is in."""
    for before, argument in zip(["", *given], given, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument.rstrip("=") or (before if before.startswith("--") else "an argument")
            raise UsageError(f"{name} is empty: give a value, or leave it out")


def _typed(given: list[str], kind: type) -> set[str]:
    """The names of the options that were typed."""
    aliases = {
        alias.lstrip("-"): name
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for known in getattr(hint, "__metadata__", ())
        for alias in getattr(known, "aliases", None) or ()
    }
    names = {field.name for field in dataclasses.fields(kind)}
    typed = {argument[2:].partition("=")[0] for argument in given if argument.startswith("--")}
    plain = {aliases.get(name, name).replace("-", "_") for name in typed}
    return {name if name in names else name.removeprefix("no_") for name in plain} & names


def _with_resumed_folder(given: list[str]) -> list[str]:
    """`--resume` alone, beside `--output FOLDER`, means `--resume FOLDER`."""
    if "--resume" not in given:
        return given
    at = given.index("--resume") + 1
    if at < len(given) and not given[at].startswith("--"):
        return given
    output = _value_of("--output", given)
    if output is None:
        raise UsageError("--resume needs the folder of the run to go on with: --resume runs/NAME")
    return [*given[:at], output, *given[at:]]


def _with_joined_names(given: list[str]) -> list[str]:
    """`pate label` and `pate analyze` are commands of their own beside `pate`."""
    if given[:1] == ["pate"] and given[1:2] in (["label"], ["analyze"]):
        return [f"pate-{given[1]}", *given[2:]]
    return given


def _resumed_options(given: list[str], command: str, kind: type[Options]) -> Options | None:
    """The options of the run to resume, so that those not given again are as they were."""
    folder = _value_of("--resume", given)
    if given[:1] != [command] or folder is None:
        return None
    run_folder = RunFolder.existing(Path(folder))
    config = run_folder.read_json("config.json")
    with as_written(Path(folder) / "config.json"):
        made_by = config.get("command", "train")
        if made_by != command:
            raise UsageError(f"--resume {folder} is a run of `jaxdp {made_by}`: go on with it by that command")
        return from_dict(kind, {**run_folder.options(), "resume": folder})


def _value_of(flag: str, given: list[str]) -> str | None:
    found = None
    for i, argument in enumerate(given):  # of several the last counts, as everywhere
        if argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
        if argument == flag and i + 1 < len(given):
            found = given[i + 1]
    return found


def predict(options: PredictOptions) -> None:
    """Write predictions for images, or for a table's records."""
    if options.output is not None:
        check_output("--output", options.output, overwrite=options.overwrite)
    run = load_run(options.run)
    header, rows, probabilities = _of_images(run, options) if run.encoding is None else _of_table(run, options)
    if options.output is None:
        _check_encodable(header, rows)
        _write_csv(sys.stdout, header, rows)
        return
    with written(options.output) as temporary:
        if options.output.suffix == ".npy":
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
    names = [str(name) for name in (*header, *(row[0] for row in rows))]
    try:
        "".join(names).encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"standard output can't show {error.object[error.start : error.end]!r} in {error.encoding}: give --output FILE, "
            "which is in UTF-8"
        ) from error


def _of_images(run: FinishedRun, options: PredictOptions) -> tuple[Any, Any, Any]:
    """The CSV's first line, the others, and the probabilities."""
    if options.data == "test":
        from . import data

        data_dir = run.options["data_dir"]
        images = data.load(run.options["dataset"], Path(data_dir) if data_dir else None).test_images
    else:
        try:
            images = np.load(options.data)
        except OSError as error:
            raise UsageError(f"--data={options.data} can't be read ({error}): give a .npy file") from error
        except (ValueError, EOFError, MemoryError, SyntaxError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"--data={options.data} is not a .npy file of numbers: save the images with numpy.save"
            ) from error
        if not isinstance(images, np.ndarray):
            raise UsageError(f"--data={options.data} holds several arrays: save the images alone, with numpy.save")
    probabilities = run.predict(images)
    rows = [(i, int(row.argmax()), f"{row.max():.6f}") for i, row in enumerate(probabilities)]
    return ("index", "label", "probability"), rows, probabilities


def _of_table(run: FinishedRun, options: PredictOptions) -> tuple[Any, Any, Any]:
    """The same for a table, in the form of a submission."""
    if options.data == "test":
        raise UsageError("--data test is of images: give the CSV file of the features to predict from")
    assert run.encoding is not None
    assert run.target_names is not None
    ids, features = run.encoding.read(Path(options.data))
    probabilities = run.predict(features)
    rows = [(name, *(f"{p:.6f}" for p in row)) for name, row in zip(ids, probabilities, strict=True)]
    return (run.id_name, *run.target_names), rows, probabilities


def compare(options: CompareOptions) -> None:
    """Show finished runs beside each other."""
    check_output("--output", options.output, overwrite=options.overwrite, suffixes=(".png",))
    runs = finished_runs(options.folders)
    plot_comparison(runs, options.output)
    if options.json:
        print(json.dumps(runs, indent=2))
        return
    console = Console()
    console.print(comparison_table(runs))
    console.print(f"accuracy against ε: {options.output}", highlight=False)


if __name__ == "__main__":
    main()
