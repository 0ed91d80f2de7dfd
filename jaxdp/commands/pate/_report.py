"""The table at the end of a run."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ... import accounting
from ...accounting._epsilon import no_smaller
from ...runs._report import two_columns


def summary_table(summary: dict[str, Any], private: dict[str, Any]) -> Table:
    """The results of a finished run as a table.

    Args:
        summary: the content of summary.json.
        private: the content of private/report.json.
    """
    return two_columns(f"jaxdp: PATE on {summary['dataset']}", _rows(summary, private))


def epsilon_table(figures: dict[str, Any]) -> Table:
    """The cost of labelling, as a table."""
    return two_columns(f"{figures['answered']} answers to {figures['asked']} queries", _epsilon_rows(figures))


def _rows(summary: dict[str, Any], private: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "student's accuracy", f"{summary['test_accuracy']:.2%} on held-back images"
    yield (
        "answers",
        f"{summary['answered']} to {summary['asked']} queries, {summary['label_accuracy']:.2%} of them right",
    )
    yield from _epsilon_rows(private)
    yield "teachers", f"{summary['teachers']}, aggregator {summary['aggregator']}"
    yield "device", summary["device"]
    yield "time in all", f"{summary['seconds']:.0f} s"
    yield "folder", summary["folder"]


def _epsilon_rows(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The three epsilons, each under its own name."""
    shown, at = accounting.rounded_up, f"at δ = {no_smaller(figures['delta'])}"
    both = ", ".join(f"{shown(spent)} ({name.upper()})" for name, spent in figures["epsilon"].items())
    yield "ε, data-independent", f"{both} {at}"
    yield "ε, data-dependent", f"{shown(figures['data_dependent_epsilon'])} {at}; private"
    sanitised = figures["sanitised_epsilon"]
    yield (
        "ε, sanitised",
        f"{shown(sanitised)} {at}; for the labels and itself: once it is published, the others and the ledger don't hold"
        if sanitised is not None
        else "none for this mechanism and noise",
    )
