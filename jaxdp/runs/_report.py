"""The progress bar while a run goes on, and the table at its end."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Table

from ..sampling import words_of_batch_size

_SECONDS_BETWEEN_UPDATES = 0.5


class ProgressDisplay:
    """A bar over all steps with epoch, steps per second, loss, accuracy and epsilon so far.

    Where the output is not a terminal (a log file), `end_of_epoch` prints a line an epoch instead.
    """

    def __init__(self, console: Console, progress: Progress, steps: int) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("training", total=steps, status="compiling")
        self._updated = time.monotonic()

    def due(self) -> bool:
        """Whether the bar is shown and has been still for long enough to be worth moving."""
        return self._console.is_terminal and time.monotonic() - self._updated > _SECONDS_BETWEEN_UPDATES

    def update(self, step: int, status: str) -> None:
        """Move the bar to `step` and show `status` behind it."""
        self._updated = time.monotonic()
        self._progress.update(self._task, completed=step, status=status)

    def end_of_epoch(self, line: str) -> None:
        """Tell of a finished epoch, where no bar shows it."""
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)


def rows_shown(rows: range, said: str) -> Iterable[int]:
    """The rows one by one, with a bar of how far they are, as `jaxdp.data` asks for."""
    return track(rows, said, transient=True)


@contextmanager
def progress_display(console: Console, steps: int, done: int) -> Iterator[ProgressDisplay]:
    """A `ProgressDisplay` for a run of `steps` steps of which `done` have been made."""
    columns = (
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        display = ProgressDisplay(console, progress, steps)
        display.update(done, "compiling")
        yield display


def status_line(record: dict[str, Any], epochs: int) -> str:
    """One line about an epoch, finished or under way."""
    parts = [f"epoch {record['epoch']}/{epochs}"]
    if record["steps_per_second"] is not None:
        parts.append(f"{record['steps_per_second']:.1f} steps/s")
    parts.append(f"loss {record['train_loss']:.3f}")
    parts.append(f"accuracy {record['train_accuracy']:.2%}")
    if "test_accuracy" in record:
        parts.append(f"test {record['test_accuracy']:.2%}")
    if record["epsilon"] is not None:
        parts.append(f"ε {record['epsilon']:.3f}")
    return "  ".join(parts)


def summary_table(summary: dict[str, Any]) -> Table:
    """The results of a finished run as a table."""
    return two_columns(f"jaxdp: {summary['model']} on {summary['dataset']}", _rows(summary))


def two_columns(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return table


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "test_accuracy" in summary:  # which is not published of people held back
        yield "test accuracy", f"{summary['test_accuracy']:.2%}"
        yield "test loss", f"{summary['test_loss']:.4f}"
    if summary["epsilon"] is None:
        yield "privacy", "none (--no-dp)"
    else:
        spent = summary["epsilon"]
        if "rdp" in spent:
            yield "ε (RDP)", f"{spent['rdp']:.5f} at δ = {summary['delta']:g}, order {summary['order']:g}"
        if "pld" in spent:
            yield "ε (PLD)", f"{spent['pld']:.5f} at δ = {summary['delta']:g}"
        if summary["total_epsilon"] > min(spent.values()):
            yield "ε with the ledger", f"{summary['total_epsilon']:.5f} at δ = {summary['delta']:g}"
        yield "noise multiplier", f"{summary['noise_multiplier']:.5f}"
        yield "clip norm", f"{summary['clip_norm']:g}"
    yield "batch size", f"{summary['batch_size']}{words_of_batch_size(summary.get('sampling'))}"
    yield "steps", f"{summary['steps']} ({summary['epochs']} epochs)"
    yield "device", summary["device"]
    if summary.get("milliseconds_per_step") is not None:
        yield "time to the first step", f"{summary['first_step_seconds']:.1f} s (tracing and compiling)"
        yield "time of a step", f"{summary['milliseconds_per_step']:.1f} ms"
        yield "time in all", f"{summary['seconds']:.0f} s"
    if "folder" in summary:
        yield "folder", summary["folder"]
