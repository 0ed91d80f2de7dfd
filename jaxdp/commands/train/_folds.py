"""K-fold evaluation: K models, each on the records that the others' parts leave, and what all of them cost together."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..._errors import UsageError
from ..._interrupts import resumable, stop_here
from ...accounting import Ledger, rounded_up
from ...dpsgd._run import DPSGD
from ...runs._finished import FinishedRun
from ...runs._folder import PRIVATE, RunFolder, as_written, new_path
from ...runs._report import say, two_columns
from .._options import seeded
from ._files import check_files, digests_of, forget_files
from ._ledger import read_ledger
from ._options import TrainOptions
from ._report import figure_rows
from ._train import train, train_in_folder


@dataclass(frozen=True)
class Folds:
    """The findings of a K-fold evaluation.

    Attributes:
        runs: the K finished runs.
        figures: means of what they predicted of the records that they hadn't seen, and of base rates' figures beside it, by the
            names that a summary has: test_loss and test_accuracy, or for numbers test_loss, test_rmse and test_mae.
        epsilon: what all K models cost a record together; None without privacy.
        statement: the same in words; None without privacy.
    """

    runs: tuple[FinishedRun, ...]
    figures: dict[str, float]
    epsilon: float | None
    statement: str | None

    @property
    def test_loss(self) -> float:
        """Mean of their losses on the records that they hadn't seen."""
        return self.figures["test_loss"]

    @property
    def test_accuracy(self) -> float:
        """The same of accuracies; NaN of numbers, which have none."""
        return self.figures.get("test_accuracy", float("nan"))


def train_folds(options: TrainOptions, console: Console | None = None) -> Folds:
    """Train and evaluate `options.folds` models, each in a folder of its own; those that are finished there are left as they are.

    Args:
        options: with `folds`, and without `fold`; `output`, or `resume`, is the folder that holds all.
        console: where progress and results are shown; by default standard output.

    Returns:
        The `Folds`, also written to private/folds.json; what may be published of them, to folds.json.

    Raises:
        UsageError: as `train` does.
    """
    options.check()
    assert options.folds is not None
    console = console or Console()
    path = options.resume or options.output or new_path(f"{options.dataset}-{options.architecture}")
    _check_folder(path)
    runs = []
    with resumable(f"the same command with --output {shlex.quote(str(path))}"):
        for fold in range(1, options.folds + 1):
            stop_here()
            say(console, f"fold {fold} of {options.folds}")
            folder = path / f"fold-{fold}"
            begun = (folder / "config.json").exists()
            _check_same_files(path, options)
            runs.append(train(replace(options, fold=fold, output=folder, resume=folder if begun else None), console))
    _check_same_files(path, options)
    folds = _put_together(options, tuple(runs))
    _write(path, options, folds)
    for folder in _begun(path):
        forget_files(folder)
    console.print(two_columns(f"jaxdp: {options.folds} folds of {_summary(runs[0])['dataset']}", _rows(folds)))
    if folds.statement is not None:
        say(console, folds.statement)
    return folds


def train_or_folds(options: TrainOptions) -> Path | Folds:
    """One model's folder, or with --folds and without --fold the findings of one for each part of the records."""
    return train_in_folder(options) if options.folds is None or options.fold is not None else train_folds(options)


def _begun(path: Path) -> list[RunFolder]:
    return [RunFolder(each.parent) for each in sorted(path.glob("fold-*/config.json"))]


def _check_same_files(path: Path, options: TrainOptions) -> None:
    """Refuse other files than the folds that have begun were trained on, unless all are there and have been put together."""
    assert options.folds is not None
    there = all((path / f"fold-{fold}" / "summary.json").exists() for fold in range(1, options.folds + 1))
    if not (there and (path / "folds.json").exists()):
        digests = digests_of(options)
        for folder in _begun(path):
            check_files(folder, digests)


def _check_folder(path: Path) -> None:
    """Refuse a folder with anything that isn't of such an evaluation."""
    found = [] if _begun(path) or not path.is_dir() else list(path.iterdir())
    if foreign := [each.name for each in found if not each.name.startswith("fold-")]:
        raise UsageError(f"--output={path} holds {foreign[0]}, which is no run's: give a new folder, or an empty one")


def _put_together(options: TrainOptions, runs: tuple[FinishedRun, ...]) -> Folds:
    names = [name for name in _summary(runs[0]) if name.startswith(("test_", "base_rate_"))]
    figures = {name: float(np.mean([_summary(run)[name] for run in runs])) for name in names}
    epsilon, statement = None, None
    if options.dp:
        epsilon = _cost(options, runs)
        statement = (
            f"Each of the {len(runs)} models was trained without one part of the records, so that every record was used by "
            f"{len(runs) - 1} of them. Whoever sees all models learns of a record at most what ε = {rounded_up(epsilon)} at δ = "
            f"{options.delta:g} allows, since each has noise of its own; of one model alone, what its own statement says. "
            f"What was measured on records is without noise: it is not covered, and lies in the folder {PRIVATE}/."
        )
        if options.by_held_back:
            statement += (
                f" Each model was chosen by its loss on the part that it was trained without ({options.by_held_back}): that is "
                "not covered either."
            )
        if options.ledger is not None:
            statement += " What --ledger says of earlier work on these records is in that ε."
        if options.seed is not None:
            statement += " " + seeded("Each of these runs")
    return Folds(runs, figures, epsilon, statement)


def _cost(options: TrainOptions, runs: tuple[FinishedRun, ...]) -> float:
    """ε of what was spent before and of the models that a record takes part in, whichever of them it is left out of."""
    before = read_ledger(options.ledger)
    own = [_own(run, before, options) for run in runs]
    totals = []
    for left_out in range(len(own)):
        used = before
        for ledger in (*own[:left_out], *own[left_out + 1 :]):
            used = used.extend(ledger)
        totals.append(used.total(delta=options.delta).epsilon)
    return max(totals)


def _own(run: FinishedRun, before: Ledger, options: TrainOptions) -> Ledger:
    """What a model spent itself, where all that it began after is in the ledger as it is now: that may have grown since."""
    folder = RunFolder(run.path)
    folder.results()  # refuses a config.json that isn't as it was written, from which all follows
    with as_written(folder.path / "config.json"):
        config = folder.read_json("config.json")
        begun, of_run = int(config["in_ledger"]), DPSGD.from_dict(config["plan"]["run"]).ledger(nonce=config["nonce"])
        ledger = Ledger.from_dict(config["spent_before"]).extend(of_run)
    if ledger.entries[:begun] != before.entries[:begun]:
        raise UsageError(
            f"{folder.path} began after other expenses than --ledger={options.ledger} has now: what all models cost together "
            "can't be told. Bring back the ledger that it began with; what came later goes behind that"
        )
    return replace(ledger, entries=ledger.entries[begun:])


def _summary(run: FinishedRun) -> dict[str, Any]:
    assert run.summary is not None
    return run.summary


def _rows(folds: Folds) -> list[tuple[str, str]]:
    rows = [*figure_rows([_summary(run) for run in folds.runs])]
    if folds.epsilon is not None:
        rows.append(("ε of all models", rounded_up(folds.epsilon, 6)))
    return rows


def _write(path: Path, options: TrainOptions, folds: Folds) -> None:
    """Write what may be published to folds.json, all to private/folds.json: figures are of people held back."""
    folder = RunFolder(path)
    content = {"epsilon": folds.epsilon, "statement": folds.statement, "delta": options.delta if options.dp else None}
    folder.write_json(
        f"{PRIVATE}/folds.json", folds.figures | content | {"folds": [_summary(run) for run in folds.runs]}
    )
    published = [RunFolder(run.path).read_json("summary.json") for run in folds.runs]
    folder.write_json("folds.json", content | {"folds": published})
