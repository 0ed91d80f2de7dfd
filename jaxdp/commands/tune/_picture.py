"""A picture of a search: what each run drew, and how its model did."""

from collections.abc import Sequence
from pathlib import Path

from ...runs._pictures import COLORS, MARKERS, new_figure, panels, save_figure
from ._trials import Trial

_DRAWN = (("lr", "learning rate"), ("clip_norm", "clip norm"), ("batch_size", "batch size"))


def plot_trials(trials: Sequence[Trial], best: int, records: int, title: str, path: Path) -> None:
    """Draw the scores of all runs against each of what they drew, as a part of the most that there could be.

    Args:
        trials: with their scores.
        best: the place of the one that was kept.
        records: over which the score adds up.
        title: what was searched.
        path: where to write the picture, all or nothing.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(12)
    axes = panels(figure, 1, len(_DRAWN), sharey=True)
    for axis, (name, label) in zip(axes, _DRAWN, strict=True):
        for i, trial in enumerate(trials):
            kept = i == best
            marker, color, size = (MARKERS[1], COLORS[3], 9) if kept else (MARKERS[0], COLORS[0], 6)
            axis.plot(getattr(trial, name), (trial.score or 0.0) / records, marker, color=color, markersize=size)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 4)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("how right, with noise (1: all, and sure)")
    figure.suptitle(f"{title}: runs, and the one that was kept (square)")
    save_figure(figure, path)
