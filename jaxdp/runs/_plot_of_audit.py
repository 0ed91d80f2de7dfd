"""The picture of an audit: the attack's ROC, the scores of both groups, and the lower bounds beside the claim."""

from pathlib import Path
from typing import Any

import numpy as np

from ..accounting._epsilon import no_larger
from ..audit import Report
from ._pictures import COLORS, new_figure, panels, save_figure

_IN, _OUT, _CLAIM = COLORS[0], COLORS[1], COLORS[-1]
_BINS = 40


def plot_audit(report: Report, title: str, path: Path) -> None:
    """Draw an audit to a PNG, all or nothing."""
    figure = new_figure(13)
    of_roc, of_scores, of_bounds = panels(figure, 1, 3)
    _draw_roc(of_roc, report)
    _draw_scores(of_scores, report)
    _draw_bounds(of_bounds, report)
    figure.suptitle(title)
    save_figure(figure, path)


def _draw_roc(axis: Any, report: Report) -> None:
    thresholds = np.unique(report.scores)
    inside, outside = (np.sort(report.scores[group]) for group in (report.members, ~report.members))
    share = lambda group: 1 - np.searchsorted(group, thresholds, "left") / len(group)
    least = 0.5 / len(report.scores)  # so that none has a place on an axis of logarithms
    axis.plot(
        np.maximum(share(outside), least),
        np.maximum(share(inside), least),
        color=_IN,
        marker="",
        drawstyle="steps-pre",
        label=f"attack, area {report.auroc:.3f}",
    )
    axis.plot([least, 1], [least, 1], "--", color="gray", linewidth=1, label="guessing, area 0.5")
    axis.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axis.set(xlabel="false positive rate", ylabel="true positive rate")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")


def _draw_scores(axis: Any, report: Report) -> None:
    finite = report.scores[np.isfinite(report.scores)]
    finite = finite if len(finite) else np.zeros(1)
    low, high = float(finite.min()), float(finite.max())
    room = 2 * _BINS * float(np.spacing(max(abs(low), abs(high))))  # for bins that float64 tells apart
    too_narrow = low < high < low + room
    edges = np.histogram_bin_edges(finite, _BINS, (low - room, high + room) if too_narrow else None)
    for members, color, hatch, label in ((True, _IN, "", "trained on"), (False, _OUT, "///", "kept out")):
        group = np.clip(report.scores[report.members == members], edges[0], edges[-1])
        axis.hist(group, edges, alpha=0.6, color=color, hatch=hatch, edgecolor="white", linewidth=0, label=label)
    axis.set(xlabel="score", ylabel="canaries")
    axis.legend(frameon=False)


def _draw_bounds(axis: Any, report: Report) -> None:
    rows = [("lower bound\n(one run)", report.epsilon, _IN, ">")]
    if report.epsilon_f_dp is not None:
        rows.append(("if the mechanism\nis Gaussian", report.epsilon_f_dp, _OUT, ">"))
    if report.epsilon_gaussian is not None:
        rows.append(("if the scores\nare Gaussian", report.epsilon_gaussian, _OUT, ">"))
    if report.claimed_epsilon is not None:
        rows.append(("claimed:\nat most", report.claimed_epsilon, _CLAIM, "<"))
    for i, (_, value, color, marker) in enumerate(rows):
        axis.plot(value, i, marker, color=color, markersize=9)
        axis.annotate(f"{value:.3f}", (value, i), xytext=(0, 9), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(left=0, right=1.2 * max(0.1, *(value for _, value, *_ in rows)))
    axis.set_xlabel(f"ε at δ = {no_larger(report.delta)}, confidence {no_larger(1 - report.significance, 4)}")
    axis.grid(alpha=0.3, axis="x")
