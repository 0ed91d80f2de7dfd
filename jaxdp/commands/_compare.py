"""`jaxdp compare`: finished runs beside each other, in a table and a picture."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._errors import UsageError
from .._outputs import check_output
from ..runs._folder import PRIVATE, RunFolder, as_written, first_free
from ..runs._report import TEST_SET, figure_of, say, shown_figure

_SHOWN = (
    "model",
    "dataset",
    "evaluated_on",
    "test_accuracy",
    "test_rmse",
    "delta",
    "adjacency",
    "noise_multiplier",
    "clip_norm",
    "batch_size",
    "epochs",
    "seconds",
)
_WIDE = 130  # columns of a terminal, for the runs' parameters beside what came of them


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Accuracy, or the error of predicted numbers, against epsilon of finished runs: a table, and a plot."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs, or folders that hold several"""
    output: Path | None = None
    """where to draw accuracy against epsilon, a .png; if not given compare.png, or compare-2.png where that is there"""
    overwrite: bool = False
    """replace the file of --output where there is one"""
    json: bool = False
    """print JSON"""


def compare(options: CompareOptions) -> None:
    """Show finished runs beside each other."""
    output = options.output or (Path("compare.png") if options.overwrite else first_free(Path("compare"), ".png"))
    check_output("--output", output, overwrite=options.overwrite, suffixes=(".png",))
    from ..runs._plots import plot_comparison

    if not options.folders:
        raise UsageError("jaxdp compare needs folders of finished runs: give one or more, such as runs")
    runs = finished_runs(options.folders)
    plot_comparison(runs, output)
    is_private = not all(run["is_published"] for run in runs)
    if is_private and output.is_file():
        output.chmod(0o600)
    if options.json:
        print(json.dumps(runs, indent=2))
        return
    console = Console()
    if not console.is_terminal:  # a file is as wide as it has to be
        console = Console(width=max(console.width, _WIDE))
    for shown in comparison_tables(runs, wide=console.width >= _WIDE):
        console.print(shown)
    for told in epsilons_apart(runs):
        say(console, told)
    say(console, f"the same against ε: {output}")
    if is_private:
        say(
            console,
            "not to be shared: figures of people held back, or of models without privacy, are computed without noise",
        )


def finished_runs(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The figures to compare of each finished run, by falling accuracy, or the rising error of predicted numbers.

    Args:
        folders: of runs, or folders that hold several.

    Raises:
        UsageError: where a folder holds no finished run.
    """
    runs = []
    for given in folders:
        here = (
            [given] if (given / "config.json").exists() else sorted(path.parent for path in given.glob("*/config.json"))
        )
        summaries = {path: RunFolder(path).summary() for path in here if RunFolder(path).is_finished}
        finished = {path: summary for path, summary in summaries.items() if not _drew_no_run(path, summary)}
        if not finished:
            raise UsageError(
                f"{given} holds no finished run with a model: give the folder that `jaxdp train` made, or one that holds several"
            )
        for path, summary in finished.items():
            published = RunFolder(path).read_json("summary.json")
            if (ranked_by := figure_of(summary)) not in summary:
                raise UsageError(
                    f"{path / 'summary.json'} has no accuracy: it was measured on people held back, or without privacy, and "
                    f"stayed in the folder {PRIVATE}/, which is missing or can't be read; leave this run out"
                )
            with as_written(path / "summary.json"):
                accountant = summary.get("accountant")
                epsilon = float(summary["epsilon"][accountant]) if accountant else None
                shown: dict[str, Any] = {name: summary.get(name) for name in _SHOWN}
                for name in (ranked_by, *(("delta",) if accountant else ())):
                    shown[name] = float(shown[name])
                if shown["seconds"] is not None:  # which stays in private/
                    shown["seconds"] = float(shown["seconds"])
                total = max(epsilon, float(summary.get("total_epsilon", epsilon))) if epsilon is not None else None
            spent = {"epsilon": epsilon, "total_epsilon": total, "accountant": accountant}
            runs.append({"name": path.resolve().name, "is_published": ranked_by in published, **spent, **shown})
    return sorted(runs, key=lambda run: run["test_rmse"] if run["test_accuracy"] is None else -run["test_accuracy"])


def _drew_no_run(path: Path, summary: dict[str, Any]) -> bool:
    """Whether it is of a search without a model."""
    if "model" in summary:
        return False
    with as_written(path / "config.json"):
        return RunFolder(path).read_json("config.json").get("command") == "tune"


def comparison_tables(runs: list[dict[str, Any]], *, wide: bool) -> list[Table]:
    """A table for each data set and kind of accuracy, or error: those of one aren't ranked with those of another."""
    return [
        _table(f"finished runs on {dataset}, by {figure} on {evaluated_on}", those, wide)
        for (dataset, figure, evaluated_on), those in _kinds(runs).items()
    ]


def epsilons_apart(runs: list[dict[str, Any]]) -> list[str]:
    """A sentence for each thing in which ε in one table differ in what they say."""
    found = []
    in_words = {"delta": lambda value: f"δ = {value:g}", "adjacency": lambda value: f"adjacency {value}"}
    for those, (of, shown) in itertools.product(_kinds(runs).values(), in_words.items()):
        names: dict[Any, list[str]] = {}
        for run in those:
            if run["epsilon"] is not None and run[of] is not None:
                names.setdefault(run[of], []).append(run["name"])
        if len(names) > 1:
            each = "; ".join(f"{shown(value)} of {', '.join(of_it)}" for value, of_it in names.items())
            found.append(f"ε that differ in what they say aren't to be ranked: {each}")
    return found


def _kinds(runs: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Runs by data set, kind of figure and what it is of."""
    kinds: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        kind = run["dataset"], shown_figure(figure_of(run), 0)[0], run["evaluated_on"] or TEST_SET
        kinds.setdefault(kind, []).append(run)
    return kinds


def _table(title: str, runs: list[dict[str, Any]], wide: bool) -> Table:
    table = Table(title=Text(title))
    own = ("δ", "noise multiplier", "clip norm", "batch size", "epochs", "time") if wide else ("time",)
    for heading in ("run", shown_figure(figure_of(runs[0]), 0)[0], "ε", *own):
        table.add_column(heading, overflow="fold")
    for run in runs:
        private = run["epsilon"] is not None
        parameters = (
            f"{run['delta']:g}" if private else "",
            *("" if run[name] is None else f"{run[name]:.4g}" for name in ("noise_multiplier", "clip_norm")),
            *("" if run[name] is None else f"{run[name]}" for name in ("batch_size", "epochs")),
        )
        table.add_row(
            Text(run["name"]),
            shown_figure(figure_of(run), run[figure_of(run)])[1],
            _epsilon_in_words(run) if private else "no privacy",
            *(parameters if wide else ()),
            "" if run["seconds"] is None else f"{run['seconds']:.0f} s",
        )
    return table


def _epsilon_in_words(run: dict[str, Any]) -> str:
    """A run's own, and that of all its data were used for."""
    from ..accounting import rounded_up

    own, total = f"{rounded_up(run['epsilon'])} ({run['accountant'].upper()})", run["total_epsilon"]
    return f"{rounded_up(total)} with the ledger, {own} alone" if total > run["epsilon"] else own
