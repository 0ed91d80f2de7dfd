"""Pictures of runs: metrics by epoch, epsilon against steps, and accuracy against epsilon of several runs."""

from pathlib import Path
from typing import Any

import numpy as np

from ..accounting import accountants_of, epsilon_at_interval, rounded_up
from ..dpsgd._run import DPSGD
from ._pictures import COLORS, new_figure, panels, save_figure
from ._report import figure_of

_POINTS = 12
_INTERVAL = 1e-3  # of a privacy loss: ten times faster than dp-accounting's own, and never below the truth
_COMPARED = {"test_accuracy": ("test accuracy (%)", 100), "test_rmse": ("test root mean squared error", 1)}
_NAMES = {"rdp": "RDP", "pld": "PLD"}


def plot_metrics(records: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the recorded epochs to a PNG.

    Args:
        records: lines of metrics.jsonl.
        title: what was trained, and how.
        path: where to write the picture, all or nothing.
    """
    from matplotlib.ticker import MaxNLocator

    epochs = [record["epoch"] for record in records]
    private = bool(records) and records[-1]["epsilon"] is not None
    figure = new_figure(12 if private else 8)
    axes = panels(figure, 1, 3 if private else 2)
    of_numbers = any("train_rmse" in record for record in records)
    second = ("rmse", "root mean squared error") if of_numbers else ("accuracy", "accuracy (%)")
    first = "squared error (of scaled targets)" if of_numbers else "cross-entropy (nats)"
    for axis, name, unit in ((axes[0], "loss", first), (axes[1], *second)):
        scale = 100 if name == "accuracy" else 1
        for split, style in (("train", "--"), ("test", "-")):
            values = [scale * record[f"{split}_{name}"] for record in records]
            axis.plot(epochs, values, linestyle=style, label=split)
        axis.set_ylabel(unit)
        axis.legend(frameon=False)
    if private:
        axes[2].plot(epochs, [record["epsilon"] for record in records], color=COLORS[3])
        axes[2].set_ylabel(f"ε at δ = {records[-1]['delta']:g} ({_NAMES[records[-1]['accountant']]})")
        axes[2].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    save_figure(figure, path)


def plot_epsilon(run: DPSGD, delta: float, path: Path) -> None:
    """Draw ε at `delta` against the steps of a run, by each accountant that can account it."""
    figure = new_figure(6)
    axis = panels(figure)
    steps, style = sorted({int(step) for step in np.linspace(1, run.steps, _POINTS)}), "default"
    if (paid_at := run.sampling.paid_at(run)) is not None:
        steps, style = sorted({*paid_at, run.steps}), "steps-post"
    for name in ("rdp", "pld"):
        if name in accountants_of(run.event, run.adjacency):
            spent = lambda step, by=name: epsilon_at_interval(run.event_of(step), delta, by, run.adjacency, _INTERVAL)
            values = [spent(step).epsilon for step in steps]
            label = f"{_NAMES[name]} ({rounded_up(values[-1], 3)})"
            axis.plot(steps, values, drawstyle=style, label=label)
    axis.set_xlabel("steps")
    axis.set_ylabel(f"ε at δ = {delta:g}")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    figure.suptitle(
        f"{run.sampling.title} batches of {run.expected_batch_size:g} from {run.num_examples:,}, noise multiplier "
        f"{run.noise_multiplier:.3g}"
    )
    save_figure(figure, path)


def plot_comparison(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw test accuracy against ε for finished runs, beside it the error of predicted numbers; those without privacy as lines.

    Args:
        runs: with name, test_accuracy or test_rmse, epsilon (None without privacy), total_epsilon (with the ledger), accountant
            and delta.
        path: where to write the picture, all or nothing.
    """
    names = [name for name in _COMPARED if any(figure_of(run) == name for run in runs)]
    figure = new_figure(7 * len(names))
    for name, axis in zip(names, panels(figure, 1, len(names), squeeze=False)[0], strict=True):
        _compare_on(axis, [run for run in runs if figure_of(run) == name], name)
    save_figure(figure, path)


def _compare_on(axis: Any, runs: list[dict[str, Any]], name: str) -> None:
    """One panel of `plot_comparison`, of runs that are compared by the same figure."""
    label, scale = _COMPARED[name]
    private = [run for run in runs if run["epsilon"] is not None]
    for run in private:
        axis.plot(run["total_epsilon"], scale * run[name], "o", markersize=5)
        axis.annotate(
            run["name"],
            (run["total_epsilon"], scale * run[name]),
            fontsize=7,
            xytext=(4, -9),
            textcoords="offset points",
        )
    for run in runs:
        if run["epsilon"] is None:
            axis.axhline(scale * run[name], linestyle="--", linewidth=1, color="gray")
            axis.annotate(
                f"{run['name']} (no privacy)",
                (0.01, scale * run[name]),
                fontsize=7,
                xycoords=("axes fraction", "data"),
            )
    deltas = sorted({f"{run['delta']:g}" for run in private})
    accountants = sorted({_NAMES[run["accountant"]] for run in private})
    axis.set_xlabel(f"ε at δ = {', '.join(deltas)} ({', '.join(accountants)})" if private else "ε")
    axis.set_ylabel(label)
    axis.margins(0.15)
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
