"""The accuracies that private training reaches, beside those that the field quotes.

    python benchmarks/records.py                    # all rows, five seeds each: what is measured already is kept
    python benchmarks/records.py --only mnist-3     # one row
    python benchmarks/records.py --seeds 0 --again  # one seed of all rows, measured anew

Each figure is a whole `jaxdp train` or `jaxdp pate` in a process of its own: Poisson batches as accounted, the accuracy after
the last step, and no choice by the test set. An interrupted run is gone on with when the command is given again. What it cost to
choose the recipes' numbers (benchmarks/choose.py) no epsilon covers. Writes benchmarks/results/DEVICE/records.json and its
picture, records.png; `python benchmarks/documents.py` puts the table into the documents.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import adult
import record
import tyro
from records_report import HEADINGS, draw, rows
from records_rows import ROWS, described, measured, searched
from rich.console import Console
from rich.table import Table
from trained import figures_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """The accuracies that private training reaches."""

    only: tuple[str, ...] = tuple(ROWS)
    """rows"""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """of the runs"""
    again: bool = False
    """measure these rows and seeds anew"""
    room: Path = Path("runs/records")
    """where the runs lie"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Measure what is missing, and write all after each run."""
    if unknown := set(options.only) - set(ROWS):
        sys.exit(f"--only {' '.join(sorted(unknown))} is no row: give some of {' '.join(ROWS)}")
    folder, console = options.results / record.device_name(), Console()
    found = measured(folder / "records.json")
    if any(ROWS[name].data == "Adult" for name in options.only):
        adult.prepare()
    for name in options.only:
        for seed in options.seeds:
            known = [one for one in found.get(name, []) if one["seed"] != seed or not options.again]
            if seed in (one["seed"] for one in known):
                continue
            console.rule(f"{name}, seed {seed}")
            new = figures_of(ROWS[name].words, seed, options.room, again=options.again)
            found[name] = sorted([*known, new], key=lambda one: one["seed"])
            record.write(options.results, "records", {"rows": described(found)})
    table = Table(*HEADINGS)
    for row in rows(found, searched(folder / "records.json")):
        table.add_row(*row)
    console.print(table)
    draw(found, folder / "records.png", json.loads((folder / "records.json").read_text()))
    console.print(f"written to {folder}")


if __name__ == "__main__":
    main(tyro.cli(Options))
