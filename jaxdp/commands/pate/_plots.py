"""Pictures of PATE: how much the teachers agreed, how epsilon grew, how the student learned."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from ... import accounting
from ...accounting._epsilon import no_smaller
from ...pate._analysis import Report, epsilon_after, event_of
from ...runs._pictures import COLORS, new_figure, panels, save_figure

_POINTS = 40


def plot_agreement(votes: Int[np.ndarray, "queries classes"], report: Report, path: Path) -> None:
    """A histogram of the plurality's count over queries. Private."""
    figure = new_figure(6)
    axis = panels(figure)
    teachers = int(votes[0].sum())
    axis.hist(votes.max(axis=1), bins=np.linspace(0, teachers, 26).tolist(), edgecolor="white")
    if (needed := report.mechanism.plurality_needed) is not None:
        axis.axvline(needed, linestyle="--", color=COLORS[3], label="threshold")
        axis.legend(frameon=False, loc="upper left")
    axis.set_xlabel(f"votes for the most voted class, of {teachers}")
    axis.set_ylabel("queries")
    figure.suptitle("How much the teachers agreed (private)")
    save_figure(figure, path)


def plot_epsilon(report: Report, answered: Bool[np.ndarray, " queries"], path: Path) -> None:
    """ε against queries: by the mechanism alone, and by the votes. Private, for the sake of the second."""
    figure = new_figure(6)
    axis = panels(figure)
    queries = np.unique(np.linspace(1, report.asked, _POINTS).astype(int))
    answers, dependent = np.cumsum(answered), epsilon_after(report, queries)
    event = lambda k: event_of(report.mechanism, asked=int(k), answered=int(answers[k - 1]))
    independent = [accounting.event_epsilon(event(k), delta=report.delta).epsilon for k in queries]
    shown = lambda epsilons: accounting.rounded_up(float(epsilons[-1]), 3)
    axis.plot(queries, independent, label=f"data-independent ({shown(independent)})")
    axis.plot(queries, dependent, label=f"data-dependent, private ({shown(dependent)})")
    axis.set_xlabel("queries asked")
    axis.set_ylabel(f"ε at δ = {no_smaller(report.delta)} (RDP)")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.suptitle(f"What {report.answered:,} answers to {report.asked:,} queries cost")
    save_figure(figure, path)


def plot_student(records: list[dict[str, Any]], path: Path) -> None:
    """The student's accuracy on the held-back images, and how far it agrees with its labels, by step."""
    figure = new_figure(6)
    axis = panels(figure)
    steps = [record["step"] for record in records]
    for name, label in (("test_accuracy", "held-back images"), ("agreement", "its labels, distorted")):
        axis.plot(steps, [100 * record[name] for record in records], label=label)
    axis.set_xlabel("steps of the student")
    axis.set_ylabel("accuracy (%)")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower right")
    figure.suptitle(f"The student: {records[-1]['test_accuracy']:.1%} on the held-back images")
    save_figure(figure, path)
