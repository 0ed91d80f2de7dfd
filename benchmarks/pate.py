"""What PATE's votes and their analysis cost, against the loops of tutorials.

    python benchmarks/pate.py

Votes: the tutorial's toy, 10 teachers on 10,000 examples of 10 classes with Laplace noise of scale 10, by `jaxdp.pate` and by the
tutorial's loop over examples; and the votes of 250 teachers on a million examples. Analysis: 26,000 queries at all orders; and
the epsilon of 8 moments, from the predictions of 250 teachers by `jaxdp.pate.perform_analysis` and from their votes by `analyze`,
each against a loop over queries and moments as PySyft's, once both are found to give the same epsilon (relative 1e-6). Teachers
are in benchmarks/offices.py, against the tutorial's loop over them.
Medians of repeats after the first call, which compiles. Prints a table and writes benchmarks/results/DEVICE/pate.json.
"""

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import record
import tyro
from rich.console import Console
from rich.table import Table

from jaxdp import pate

QUERIES, GAMMA, DELTA, MOMENTS = 26_000, 0.05, 1e-5, 8
LOOP = "the same by a loop as"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What PATE's votes and their analysis cost."""

    repeats: int = 7
    """measurements of each program; of the loops, a third of that"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Measure, print and write."""
    if options.repeats < 1:
        sys.exit(f"--repeats {options.repeats} leaves nothing to take a median of: give 1 or more")
    rng = np.random.default_rng(0)
    many, gigabytes = _many_votes(rng, options.repeats)
    labels, loop_over_examples = _labels(rng, options.repeats)
    queries = rng.multinomial(250, [0.82, *[0.02] * 9], size=QUERIES)
    by_votes = _analyses(queries, options.repeats)
    by_moments = _moments(_predictions(rng), options.repeats)
    rows = [many, labels, loop_over_examples, *by_votes, *(row for pair in by_moments for row in pair)]
    ratio = _over(loop_over_examples, labels)
    of_predictions, of_votes = (_over(loop, ours) for ours, loop in by_moments)
    console = Console()
    console.print(_table(rows))
    console.print(
        f"Labels: the tutorial's loop takes {ratio:.0f} times as long. Analysis of {QUERIES:,} queries, to the same epsilon: a "
        f"loop as PySyft's takes {of_predictions:.1f} times as long from the predictions, {of_votes:.1f} times from the votes. "
        f"Votes of a million examples took {gigabytes:.2f} GiB more."
    )
    ratios = {"loop_ratio": ratio, "analysis_loop_ratio": of_predictions, "analysis_of_votes_loop_ratio": of_votes}
    content = {"rows": rows, "votes_gibibytes": gigabytes} | ratios
    folder = record.write(options.results, "pate", content)
    console.print(f"written to {folder}")


def _many_votes(rng: np.random.Generator, repeats: int) -> tuple[Row, float]:
    """Of 250 teachers on a million examples; and by how many GiB the process grew."""
    many = rng.integers(0, 10, (250, 1_000_000), dtype=np.int8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row = _measure("250 teachers x 1,000,000 examples, votes", lambda: pate.vote_counts(many, 10), repeats)
    return row, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def _labels(rng: np.random.Generator, repeats: int) -> tuple[Row, Row]:
    """The tutorial's toy: ours, and its loop."""
    toy, key = rng.integers(0, 10, (10, 10_000)), jax.random.key(0)
    ours = lambda: pate.laplace_noisy_max(pate.vote_counts(toy, 10), gamma=0.1, key=key)
    return (
        _measure("10 teachers x 10,000 examples, labels", ours, repeats),
        _measure(f"{LOOP} the tutorial's", lambda: _tutorial_labels(toy, rng), max(1, repeats // 3)),
    )


def _tutorial_labels(predictions: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Label by label, as the tutorial does."""
    labels = []
    for votes in predictions.T:
        counts = np.bincount(votes, minlength=10).astype(float)
        for i in range(len(counts)):
            counts[i] += rng.laplace(0, 10.0, 1)[0]
        labels.append(int(np.argmax(counts)))
    return labels


def _analyses(queries: np.ndarray, repeats: int) -> list[Row]:
    """All that a report holds, from the votes."""
    mechanisms = {"GNMax": pate.GaussianNoisyMax(sigma=40.0), "Laplace": pate.LaplaceNoisyMax(gamma=GAMMA)}
    return [
        _measure(f"{QUERIES:,} queries, {name}, by the votes", lambda m=mechanism: pate.analyze(queries, m), repeats)
        for name, mechanism in mechanisms.items()
    ]


def _predictions(rng: np.random.Generator) -> np.ndarray:
    """Of 250 teachers, who agree on some queries and not on others, so that both branches of the analysis are taken."""
    agreement = rng.uniform(0, 1, QUERIES)
    guesses = rng.integers(0, 10, (250, QUERIES), dtype=np.int32)
    together = rng.integers(0, 10, QUERIES, dtype=np.int32)
    return np.where(rng.uniform(size=guesses.shape) < agreement, together, guesses)


def _moments(predictions: np.ndarray, repeats: int) -> list[tuple[Row, Row]]:
    """PySyft's analysis, from predictions and from votes: ours, and a loop; refused unless all give the same epsilon."""
    votes, orders = _votes_in_turn(predictions), np.arange(2.0, MOMENTS + 2)
    laplace = pate.LaplaceNoisyMax(gamma=GAMMA)
    ways: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "predictions": (
            lambda: pate.perform_analysis(predictions, None, GAMMA, DELTA, MOMENTS, num_classes=10)[0],
            lambda: _loop_over_moments(_votes_in_turn(predictions)),
        ),
        "votes": (
            lambda: (
                pate.analyze(votes, laplace, delta=DELTA, orders=orders, conversion="classic").data_dependent.epsilon
            ),
            lambda: _loop_over_moments(votes),
        ),
    }
    pairs = []
    for start, (ours, loop) in ways.items():
        if not math.isclose(found := ours(), expected := loop(), rel_tol=1e-6):
            sys.exit(
                f"from {start}, jaxdp.pate gives epsilon {found} and the loop {expected}: nothing to compare in time"
            )
        name = f"{QUERIES:,} queries, Laplace, {MOMENTS} moments, from {start}"
        pairs.append((_measure(name, ours, repeats), _measure(f"{LOOP} PySyft's", loop, max(1, repeats // 3))))
    return pairs


def _votes_in_turn(predictions: np.ndarray) -> np.ndarray:
    """Counts [queries, classes], query by query."""
    return np.array([np.bincount(votes, minlength=10) for votes in predictions.T])


def _loop_over_moments(queries: np.ndarray) -> float:
    """The data-dependent epsilon, query by query and moment by moment."""
    totals = [0.0] * MOMENTS
    for votes in queries:
        q = _chance_of_another(votes)
        for moment in range(1, MOMENTS + 1):
            totals[moment - 1] += _log_moment(q, moment)
    return min((total + math.log(1 / DELTA)) / moment for moment, total in enumerate(totals, start=1))


def _chance_of_another(counts: np.ndarray) -> float:
    """A bound on the probability that the noisy winner is not the plurality (arXiv 1610.05755, lemma 4)."""
    winner, q = np.argmax(counts), 0.0
    for label in range(len(counts)):
        if label != winner:
            gap = counts[winner] - counts[label]
            q += (2 + GAMMA * gap) / (4 * np.exp(GAMMA * gap))
    return min(q, 1 - 1 / len(counts))


def _log_moment(q: float, moment: int) -> float:
    """Of the privacy loss of one query, the least of three bounds (theorems 2 and 3)."""
    pure = 2 * GAMMA
    independent = min(pure * moment, pure**2 * moment * (moment + 1) / 2)
    if q >= 1 / (np.exp(pure) + 1):
        return independent
    stays = (1 - q) * ((1 - q) / (1 - np.exp(pure) * q)) ** moment
    return max(0.0, min(independent, np.log(stays + q * np.exp(pure * moment))))


def _measure(program: str, run: Callable[[], Any], repeats: int) -> Row:
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return {
        "program": program,
        "first_seconds": seconds[0],
        "median_seconds": statistics.median(seconds[1:]),
        "seconds": seconds[1:],
    }


def _over(loop: Row, ours: Row) -> float:
    return loop["median_seconds"] / ours["median_seconds"]


def _table(rows: list[Row]) -> Table:
    table = Table("program", "first call (s)", "median (s)", title=f"PATE on {record.device_name()}")
    for row in rows:
        table.add_row(row["program"], f"{row['first_seconds']:.3f}", f"{row['median_seconds']:.4f}")
    return table


if __name__ == "__main__":
    main(tyro.cli(Options))
