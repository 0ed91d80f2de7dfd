"""TF Privacy's walk-through, three epochs of MNIST with its CNN: from the start of the process to the final accuracy.

    python benchmarks/tutorial.py

`jaxdp train` runs whole. TF Privacy runs a number of its steps, by its tutorial's optimizer and Keras's `fit`, and its time is
extrapolated to all of them: what the process took, and the median step for each of the steps left out. Batch 250, learning rate
0.25, clip norm 1.5, noise multiplier 1.3, ReLU. Writes benchmarks/results/DEVICE/tutorial.json.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import record
import tyro
from peers.environments import UnavailableError, python_of
from rich.console import Console
from rich.table import Table

import jaxdp

SETTING = "--batch-size 250 --lr 0.25 --clip-norm 1.5 --noise-multiplier 1.3 --epochs 3 --activation relu"
STEPS = 3 * 60_000 // 250


@dataclass(frozen=True, kw_only=True)
class Options:
    """The three-epoch walk-through, against TF Privacy's."""

    repeats: int = 3
    """runs of jaxdp"""
    tf_steps: int = 20
    """steps of TF Privacy that are measured; its time for all 720 is extrapolated"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Measure, print, write."""
    if options.repeats < 1 or not 2 <= options.tf_steps <= STEPS // 3:
        sys.exit(f"give --repeats of at least 1 and --tf-steps from 2 to {STEPS // 3}")
    ours, theirs = by_jaxdp(options.repeats), by_tf_privacy(options.tf_steps)
    table = Table(
        "library", "seconds", "test accuracy", "measured", title="three epochs, from process start to accuracy"
    )
    table.add_row(
        "jaxdp", f"{ours['seconds']:.1f}", f"{ours['accuracy']:.2%}", f"median of {options.repeats} whole runs"
    )
    if "problem" in theirs:
        table.add_row("TF Privacy", "", "", theirs["problem"])
    else:
        measured = f"{options.tf_steps} of {STEPS} steps in {theirs['measured_seconds']:.0f} s, extrapolated"
        table.add_row("TF Privacy", f"{theirs['seconds']:.0f}", "", measured)
    Console().print(table)
    folder = record.write(options.results, "tutorial", {"jaxdp": ours, "tf_privacy": theirs})
    print(f"written to {folder}")


def by_jaxdp(repeats: int) -> dict[str, Any]:
    """Whole runs of `jaxdp train`, of different seeds."""
    seconds, accuracies = [], []
    with tempfile.TemporaryDirectory() as room:
        for seed in range(repeats):
            run = Path(room) / str(seed)
            command = [sys.executable, "-m", "jaxdp.cli", "train", *SETTING.split(), "--seed", str(seed)]
            started = time.perf_counter()
            subprocess.run([*command, "--output", run], check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
            accuracies.append(
                json.loads((run / "private" / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"]
            )
        epsilon = json.loads((Path(room) / "0" / "statement.json").read_text())["epsilon"]
    return {
        "seconds": statistics.median(seconds),
        "accuracy": statistics.median(accuracies),
        "epsilon": epsilon,
        "all_seconds": seconds,
        "all_accuracies": accuracies,
    }


def by_tf_privacy(steps: int) -> dict[str, Any]:
    """Some of its steps in a process of its own, and the time of all."""
    try:
        python = python_of("tf-privacy")
    except UnavailableError as error:
        return {"problem": str(error)}
    data = jaxdp.data.load()
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "records.npz"
        scaled = [images.astype(np.float32) / 255 for images in (data.train_images, data.test_images)]
        np.savez(path, images=scaled[0], labels=data.train_labels, test_images=scaled[1], test_labels=data.test_labels)
        script = Path(__file__).parent / "peers" / "tutorial_tf_privacy.py"
        started = time.perf_counter()
        done = subprocess.run([python, script, path, str(steps)], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[-1]}
    told = json.loads(done.stdout.splitlines()[-1])
    step = statistics.median(told["steps"][1:])
    whole = seconds + (STEPS - steps) * step + 2 * told["evaluation"]
    return told | {"seconds": whole, "measured_seconds": seconds, "measured_steps": steps, "seconds_a_step": step}


if __name__ == "__main__":
    main(tyro.cli(Options))
