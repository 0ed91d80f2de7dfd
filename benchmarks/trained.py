"""Runs of `jaxdp train` in processes of their own, which go on where they were interrupted."""

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

import tyro

from jaxdp.commands.train import TrainOptions

Figures = dict[str, Any]


def recipe_of(words: Iterable[str]) -> dict[str, Any]:
    """The recipe that a command's words leave the rest to."""
    return asdict(tyro.cli(TrainOptions, args=list(words)).recipe_in_use)


def figures_of(words: tuple[str, ...], seed: int, room: Path, *, again: bool = False) -> Figures:
    """Train, or go on, or read what is there already: what came out after the last step.

    Args:
        words: options of `jaxdp train`.
        seed: of the run.
        room: where runs lie, each in a folder that its options and its recipe name.
        again: whether to begin anew where one lies.
    """
    whole = json.dumps([words, recipe_of(words), seed])
    folder = room / hashlib.sha256(whole.encode()).hexdigest()[:16]
    command = [sys.executable, "-m", "jaxdp.cli", "train"]
    if (folder / "config.json").exists() and not again:
        command += ["--resume", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        command += [*words, "--seed", str(seed), "--output", str(folder)]
    subprocess.run(command, check=True)
    summary = json.loads((folder / "private" / "summary.json").read_text())
    plan = json.loads((folder / "config.json").read_text())["plan"]
    run = {name: summary[name] for name in ("test_accuracy", "epsilon", "noise_multiplier", "seconds")}
    return {"seed": seed, **run, "batch_size": plan["batch_size"], "steps": plan["steps"], "commit": _commit()}


def mean(figures: list[Figures]) -> float:
    """Of the accuracies."""
    return statistics.fmean(one["test_accuracy"] for one in figures)


def between(figures: list[Figures]) -> tuple[float, float]:
    """The least accuracy and the greatest."""
    accuracies = [one["test_accuracy"] for one in figures]
    return min(accuracies), max(accuracies)


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
