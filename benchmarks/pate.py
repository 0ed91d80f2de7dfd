"""What PATE's votes and their analysis cost, against the loops of tutorials.

    python benchmarks/pate.py

Votes: the tutorial's toy, 10 teachers on 10,000 examples of 10 classes with Laplace noise of scale 10, by `jaxdp.pate` and by the
tutorial's loop over examples; and the votes of 250 teachers on a million examples. Analysis: 26,000 queries at all orders.
Medians of repeats after the first call, which compiles. Prints a table and writes benchmarks/results/DEVICE/pate.json.
"""

import resource
import statistics
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What PATE's votes and their analysis cost."""

    repeats: int = 7
    """measurements of each program; of the loop over examples, a third of that"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Measure, print and write."""
    rng = np.random.default_rng(0)
    toy = rng.integers(0, 10, (10, 10_000))
    many = rng.integers(0, 10, (250, 1_000_000), dtype=np.int8)
    queries = rng.multinomial(250, [0.82, *[0.02] * 9], size=26_000)
    key = jax.random.key(0)

    def label_toy() -> Any:
        return jax.block_until_ready(pate.laplace_noisy_max(pate.vote_counts(toy, 10), gamma=0.1, key=key))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [_measure("250 teachers x 1,000,000 examples, votes", lambda: pate.vote_counts(many, 10), options.repeats)]
    gigabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    rows += [
        _measure("10 teachers x 10,000 examples, labels", label_toy, options.repeats),
        _measure("the same by the tutorial's loop", lambda: _tutorial_labels(toy, rng), max(1, options.repeats // 3)),
        _measure(
            "26,000 queries, GNMax, by the votes",
            lambda: pate.analyze(queries, pate.GaussianNoisyMax(sigma=40.0)),
            options.repeats,
        ),
        _measure(
            "26,000 queries, Laplace, by the votes",
            lambda: pate.analyze(queries, pate.LaplaceNoisyMax(gamma=0.05)),
            options.repeats,
        ),
    ]
    ratio = rows[2]["median_seconds"] / rows[1]["median_seconds"]
    table = Table(title=f"PATE on {record.device_name()}")
    for heading in ("program", "first call (s)", "median (s)"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["program"], f"{row['first_seconds']:.3f}", f"{row['median_seconds']:.4f}")
    console = Console()
    console.print(table)
    console.print(
        f"the tutorial's loop takes {ratio:.0f} times as long; votes of a million examples took {gigabytes:.2f} GiB more"
    )
    folder = record.write(options.results, "pate", {"rows": rows, "loop_ratio": ratio, "votes_gibibytes": gigabytes})
    console.print(f"written to {folder}")


def _tutorial_labels(predictions: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Label by label, as the tutorial does."""
    labels = []
    for votes in predictions.T:
        counts = np.bincount(votes, minlength=10).astype(float)
        for i in range(len(counts)):
            counts[i] += rng.laplace(0, 10.0, 1)[0]
        labels.append(int(np.argmax(counts)))
    return labels


def _measure(program: str, run: Callable[[], Any], repeats: int) -> dict[str, Any]:
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


if __name__ == "__main__":
    main(tyro.cli(Options))
