"""Runs of `jaxdp train` and `jaxdp pate` in processes of their own, which go on where they were interrupted."""

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import record
import tyro

from jaxdp.commands._options import ALONE
from jaxdp.commands.pate import PateOptions
from jaxdp.commands.train import TrainOptions

Figures = dict[str, Any]
_KEPT = ("test_accuracy", "epsilon", "noise_multiplier", "batch_size", "steps", "answered", "seconds")


def recipe_of(words: Iterable[str]) -> dict[str, Any]:
    """What a command's words leave the rest to: the recipe of `train`, the options of `pate`."""
    command, *options = words
    if command == "pate":
        given = asdict(tyro.cli(PateOptions, args=options))
        return {
            name: value for name, value in given.items() if name not in ALONE
        }  # by how many processes changes nothing
    return asdict(tyro.cli(TrainOptions, args=options).recipe_in_use)


def figures_of(words: tuple[str, ...], seed: int, room: Path, *, again: bool = False) -> Figures:
    """Run, or go on, or read what is there already: what came out after the last step, and the commit that began it.

    Args:
        words: of the command, "train" or "pate" and its options.
        seed: of the run.
        room: where runs lie, each in a folder that its options and its recipe name.
        again: whether to begin anew where one lies.
    """
    whole = json.dumps([words, recipe_of(words), seed])
    folder = room / hashlib.sha256(whole.encode()).hexdigest()[:16]
    goes_on = (folder / "config.json").exists() and not again
    if goes_on:
        given = (words[0], "--resume", str(folder))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        given = (*words, "--seed", str(seed), "--output", str(folder))
    ended = subprocess.run([sys.executable, "-m", "jaxdp.cli", *given], check=False)
    begun_by = folder / "commit"  # a run that lies there isn't of today's code
    if folder.exists() and not goes_on:
        begun_by.write_text(record.commit())
    ended.check_returncode()
    summary = json.loads((folder / "private" / "summary.json").read_text())
    commit = begun_by.read_text() if begun_by.exists() else ""
    return {"seed": seed, **{name: summary[name] for name in _KEPT if name in summary}, "commit": commit}


def mean(figures: list[Figures]) -> float:
    """Of the accuracies."""
    return statistics.fmean(one["test_accuracy"] for one in figures)


def epsilon(figures: list[Figures], accountant: str) -> float:
    """The greatest of the runs, by "pld" or "rdp"."""
    return max(one["epsilon"][accountant] for one in figures)


def between(figures: list[Figures]) -> tuple[float, float]:
    """The least accuracy and the greatest."""
    accuracies = [one["test_accuracy"] for one in figures]
    return min(accuracies), max(accuracies)
