"""The progress bar while a run goes on, and a table of names and values for its end."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Table
from rich.text import Text

TEST_SET, HELD_BACK = "the test set", "examples held back"  # what a run was evaluated on
_SECONDS_BETWEEN_UPDATES = 0.5
_FIGURES = {  # what a run tells of its predictions: in words, and to how many digits
    "accuracy": ("accuracy", ".2%"),
    "loss": ("loss", ".5f"),
    "rmse": ("root mean squared error", ".5g"),
    "mae": ("mean absolute error", ".5g"),
}
_WIDE, _NARROW = 110, 90  # columns of a terminal: for all and a bar, and for all


class ProgressDisplay:
    """A bar over all steps with epoch, steps per second, loss, accuracy and epsilon so far.

    Where the output is not a terminal (a log file), `end_of_epoch` prints a line an epoch instead.
    """

    def __init__(self, console: Console, progress: Progress, steps: int) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("training", total=steps, status="compiling")
        self._updated = time.monotonic()

    @property
    def narrow(self) -> bool:
        """Whether a status has to be short."""
        return self._console.width < _NARROW

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
            say(self._console, line)


def rows_shown(rows: range, said: str) -> Iterable[int]:
    """The rows one by one, with a bar of how far they are, as `jaxdp.data` asks for; not where predictions may be printed."""
    console = Console(stderr=True)
    return track(rows, said, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_display(console: Console, steps: int, done: int) -> Iterator[ProgressDisplay]:
    """A `ProgressDisplay` for a run of `steps` steps of which `done` have been made."""
    columns = (
        TextColumn("{task.completed}/{task.total}"),
        *([BarColumn(bar_width=20)] if console.width >= _WIDE else []),  # numbers tell more
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        display = ProgressDisplay(console, progress, steps)
        display.update(done, "compiling")
        yield display


def say(console: Console, text: str) -> None:
    """A sentence or more: broken at words where a terminal is too narrow, and not at all in a file; brackets are no markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def shown_figure(name: str, value: Any) -> tuple[str, str]:
    """What a figure is called, by its name with or without test_, and how it is shown."""
    words, digits = _FIGURES[name.removeprefix("test_")]
    return words, f"{value:{digits}}"


def figure_of(run: dict[str, Any]) -> str:
    """The figure by which a run, or its summary, is compared: an accuracy, or the error of predicted numbers."""
    return "test_accuracy" if run.get("test_rmse") is None else "test_rmse"


def two_columns(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, in which brackets are no markup."""
    table = Table(title=Text(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table
