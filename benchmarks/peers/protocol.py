"""What every peer's process reads and says: a task in, one line of JSON out. NumPy alone: each has an environment of its own.

A task says which workload, in which mode, and where the weights and the batch lie, in canonical layout: a dense kernel is
[in, out], a convolution's [height, width, in, out], images are [n, height, width, channels]. The clipped sum goes back in the
same layout, so that answers can be compared before anything is timed.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """What a peer is asked.

    Attributes:
        workload: its name.
        mode: one of the peer's ways of doing it.
        clip_norm: C.
        noise_multiplier: of the private step.
        repeats: measurements of each program, after the first call.
        threads: of the processor.
        weights: canonical arrays by name.
        inputs: the batch.
        labels: its classes.
        answer: where to write the clipped sum, .npz.
    """

    workload: str
    mode: str
    clip_norm: float
    noise_multiplier: float
    repeats: int
    threads: int
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    labels: np.ndarray
    answer: str


def read_task(path: str) -> Task:
    """The task in a JSON file, its arrays beside it."""
    with open(path) as file:
        fields = json.load(file)
    arrays = np.load(fields.pop("arrays"))
    weights = {name[2:]: arrays[name] for name in arrays.files if name.startswith("w:")}
    return Task(**fields, weights=weights, inputs=arrays["inputs"], labels=arrays["labels"])


def answer(task: Task, clipped_sum: dict[str, np.ndarray], programs: dict[str, Callable[[], Any]]) -> None:
    """Write the clipped sum, time the programs, and say all of it."""
    np.savez(task.answer, **clipped_sum)
    timed = {name: timing(run, task.repeats) for name, run in programs.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    json.dump({"programs": timed, "peak_mebibytes": peak}, sys.stdout)
    print()


def timing(run: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Seconds of the first call and of the others; `run` returns when the work is done."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {"first_seconds": seconds[0], "seconds": seconds[1:]}
