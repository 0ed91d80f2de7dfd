"""A training run in words: a line an epoch, and the table at its end."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from ...accounting import rounded_up
from ...accounting._epsilon import no_smaller
from ...runs._report import TEST_SET, shown_figure, two_columns
from ...sampling import words_of_batch_size


def status_line(record: dict[str, Any], epochs: int, *, narrow: bool = False) -> str:
    """One line about an epoch, finished or under way; the least of it for a narrow terminal."""
    if narrow:
        spent = "" if record["epsilon"] is None else f"  ε {rounded_up(record['epsilon'], 3)}"
        return f"epoch {record['epoch']}/{epochs}  loss {record['train_loss']:.3f}{spent}"
    parts = [f"epoch {record['epoch']}/{epochs}"]
    if record["steps_per_second"] is not None:
        parts.append(f"{record['steps_per_second']:.1f} steps/s")
    parts.append(f"loss {record['train_loss']:.3f}")
    name, words = ("rmse", "RMSE") if "train_rmse" in record else ("accuracy", "accuracy")
    parts.append(f"{words} {shown_figure(name, record[f'train_{name}'])[1]}")
    if f"test_{name}" in record:
        parts.append(f"test {shown_figure(name, record[f'test_{name}'])[1]}")
    if record["epsilon"] is not None:
        parts.append(f"ε {rounded_up(record['epsilon'], 3)}")
    return "  ".join(parts)


def summary_table(summary: dict[str, Any]) -> Table:
    """The results of a finished run as a table."""
    return two_columns(f"jaxdp: {summary['model']} on {summary['dataset']}", _rows(summary))


def advice(summary: dict[str, Any]) -> str | None:
    """A line where a table's model tells less than base rates or means do."""
    if not summary.get("test_loss", 0.0) > summary.get("base_rate_loss", float("inf")):
        return None
    bounds = "--target-bounds between which the targets lie, " if "test_rmse" in summary else ""
    return (
        "this model tells less than base rates or means alone: try another --lr (a lower one where the loss grew), "
        f"{bounds}fewer or no hidden layers (--hidden alone), --bounds-file in place of one --bounds, more --epochs, or "
        "jaxdp tune"
    )


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from figure_rows([summary])
    if summary["epsilon"] is None:
        yield "privacy", "none (--no-dp)"
    else:
        spent, at = summary["epsilon"], f"at δ = {no_smaller(summary['delta'])}"
        if "rdp" in spent:
            yield "ε (RDP)", f"{rounded_up(spent['rdp'], 6)} {at}, order {summary['order']:g}"
        if "pld" in spent:
            yield "ε (PLD)", f"{rounded_up(spent['pld'], 6)} {at}"
        if summary["total_epsilon"] > min(spent.values()):
            yield "ε with the ledger", f"{rounded_up(summary['total_epsilon'], 6)} {at}"
        yield "noise multiplier", f"{summary['noise_multiplier']:.5f}"
        yield "clip norm", f"{summary['clip_norm']:g}"
    if "lr" in summary:
        yield "learning rate", f"{summary['lr']:.4g}"
    yield "batch size", f"{summary['batch_size']}{words_of_batch_size(summary.get('sampling'))}"
    kept = f", the model of epoch {summary['kept_epoch']} kept" if "kept_epoch" in summary else ""
    yield "steps", f"{summary['steps']} ({summary['epochs']} epochs{kept})"
    yield "device", summary["device"]
    if summary.get("milliseconds_per_step") is not None:
        yield "time to the first step", f"{summary['first_step_seconds']:.1f} s (tracing and compiling)"
        yield "time of a step", f"{summary['milliseconds_per_step']:.1f} ms"
        if summary.get("seconds_waited"):
            yield "waited for records", f"{summary['seconds_waited']:.1f} s"
        yield "time in all", f"{summary['seconds']:.0f} s"
    if "folder" in summary:
        yield "folder", summary["folder"]


def figure_rows(summaries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What one run, or the mean of several, predicted of the test set or of people held back, where that may be seen."""
    first = summaries[0]
    where = "test" if first.get("evaluated_on", TEST_SET) == TEST_SET else "held-back"
    names, alone = ("accuracy", "loss"), "base rates"
    if "test_rmse" in first:
        names, alone = ("rmse", "mae"), "the mean"
    for name in names:
        if f"test_{name}" not in first:  # which is not published of people held back
            continue
        values = [summary[f"test_{name}"] for summary in summaries]
        words, shown = shown_figure(name, np.mean(values))
        if len(values) > 1:
            shown += f", from {shown_figure(name, min(values))[1]} to {shown_figure(name, max(values))[1]}"
        if f"base_rate_{name}" in first:
            rates = np.mean([summary[f"base_rate_{name}"] for summary in summaries])
            shown += f", {shown_figure(name, rates)[1]} by {alone} alone"
        yield f"{where} {words}", shown
