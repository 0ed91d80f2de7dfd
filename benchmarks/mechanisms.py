"""Ten million draws of each mechanism, on this machine's device.

    python benchmarks/mechanisms.py

Prints the first call, which compiles, and the median of the others, and writes both to benchmarks/results/DEVICE/mechanisms.json
(to mechanisms-part.json what is less than lies there).
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import record
import tyro
from rich.console import Console
from rich.table import Table

from jaxdp import mechanisms


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draws of each mechanism."""

    draws: int = 10_000_000
    """how many"""
    repeats: int = 5
    """calls after the first"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Measure, print and write."""
    if options.repeats < 1 or options.draws < 10:
        sys.exit(f"--repeats is {options.repeats} and --draws {options.draws}: give at least 1 and 10")
    values, answers = jnp.zeros(options.draws), jnp.zeros(options.draws, jnp.int32)
    scores = jnp.zeros((options.draws // 10, 10))
    ways: dict[str, Callable[[Any], Any]] = {
        "Laplace": lambda key: mechanisms.Laplace(epsilon=1.0, sensitivity=1.0)(values, key=key),
        "Laplace, whole numbers": lambda key: mechanisms.Laplace(epsilon=1.0, sensitivity=1, integers=True)(
            answers, key=key
        ),
        "Gaussian": lambda key: mechanisms.Gaussian(noise_multiplier=1.0, sensitivity=1.0)(values, key=key),
        "randomized response": lambda key: mechanisms.RandomizedResponse(epsilon=1.0)(answers, key=key),
        "randomized response of 10": lambda key: mechanisms.RandomizedResponse(epsilon=1.0, categories=10)(
            answers, key=key
        ),
        "exponential, 10 candidates each": lambda key: mechanisms.Exponential(epsilon=1.0, sensitivity=1.0)(
            scores, key=key
        ),
    }
    rows = [measured(name, call, options.repeats) for name, call in ways.items()]
    table = Table(title=f"{options.draws:,} scalars on {record.device_name()}")
    for heading in ("mechanism", "first call (s)", "median (s)"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["mechanism"], f"{row['first_seconds']:.2f}", f"{row['median_seconds']:.3f}")
    Console().print(table)
    usual = Options()
    is_part = options.draws < usual.draws or options.repeats < usual.repeats
    content = {"draws": options.draws, "rows": rows}
    path = record.write_part_or_whole(options.results, "mechanisms", content, is_part=is_part)
    print(f"written to {path.parent}")


def measured(name: str, call: Callable[[Any], Any], repeats: int) -> dict[str, Any]:
    """Seconds of the first call and of others."""
    seconds = []
    for seed in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(call(jax.random.key(seed)))
        seconds.append(time.perf_counter() - started)
    return {
        "mechanism": name,
        "first_seconds": seconds[0],
        "median_seconds": statistics.median(seconds[1:]),
        "seconds": seconds[1:],
    }


if __name__ == "__main__":
    main(tyro.cli(Options))
