"""What every library's process reads and says: a task in, lines of JSON out. NumPy alone: each has an environment of its own.

    python with_LIBRARY.py TASK.json

A task says which workload, in which mode, and where the weights and the batch lie, in the layout of benchmarks/canonical.py: a
dense kernel is [in, out], a convolution's [height, width, in, out], images are [n, height, width, channels]. The process writes
its clipped sum in that layout, so that answers can be compared before anything is timed, and says how long its first calls
took. Then it waits: each further line on its input asks for one program to be timed, so that the libraries can take turns.
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """What a library is asked.

    Attributes:
        workload: its name.
        mode: one of the library's ways of doing it.
        clip_norm: C.
        noise_multiplier: of the private step.
        learning_rate: of the private step's SGD.
        threads: of the processor.
        device: "cpu", "gpu" or "tpu".
        precision: of products: "float32", or "fast" for TF32 or bfloat16 where the device has them.
        memory_limit: bytes that the process may hold, or None.
        give_up_seconds: how long the first clipped sum may take, compilation included, before the mode is given up; or None.
        weights: canonical arrays by name.
        inputs: the batch, float32 or, for tokens, int32.
        labels: its classes, int32.
        mnist: the file to train a whole epoch of, read when that is asked; None where it won't be.
        answer: where to write the clipped sum, .npz.
    """

    workload: str
    mode: str
    clip_norm: float
    noise_multiplier: float
    learning_rate: float
    threads: int
    device: str
    precision: str
    memory_limit: int | None
    give_up_seconds: float | None
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    labels: np.ndarray
    mnist: str | None
    answer: str

    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """MNIST: float32 [n, 28, 28, 1] and classes, int32 [n]."""
        assert self.mnist is not None
        arrays = np.load(self.mnist)
        return arrays["images"], arrays["classes"]


class Programs(NamedTuple):
    """A library's way of doing a task. Inputs and labels are as `place` gave them.

    Attributes:
        place: puts a batch, (inputs, labels) as the task has them, on the device in the library's layout.
        clipped: (inputs, labels) to the sum of clipped gradients; in mode "plain" to the sum of gradients.
        canonical: what `clipped` returned, as canonical arrays by name.
        step: (inputs, labels): the whole private step, with noise and SGD; without privacy in mode "plain".
        wait: returns when what `clipped` or `step` returned is computed.
        peak_bytes: the device's own statistics of memory; None where the process's resident set tells it.
        epoch: (steps, (images, classes)): so many private steps on MNIST from host memory, as the library does it; None for
            slices, placed in turn.
    """

    place: Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]
    clipped: Callable[[Any, Any], Any]
    canonical: Callable[[Any], dict[str, np.ndarray]]
    step: Callable[[Any, Any], Any]
    wait: Callable[[Any], None] = lambda value: None
    peak_bytes: Callable[[], int] | None = None
    epoch: Callable[[int, tuple[np.ndarray, np.ndarray]], None] | None = None


class NotOfferedError(Exception):
    """Why a library can't do a workload in a mode."""


def serve(build: Callable[[Task], Programs], versions: Callable[[], dict[str, str]]) -> None:
    """Do the task named on the command line, then answer questions until the input ends.

    Args:
        build: the library's programs for a task; raises `NotOfferedError` where it has none.
        versions: of the packages that matter.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    say = lambda **fields: print(json.dumps(fields), file=out, flush=True)
    try:
        with np.errstate(all="ignore"):
            _answer(_read(sys.argv[1]), build, versions, say)
    except NotOfferedError as error:
        say(problem="not offered", reason=str(error))
    except Exception as error:  # any fault of a library is an answer: the comparison goes on
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        problem = "out of memory" if isinstance(error, MemoryError) or tells_of_memory(said) else "failed"
        say(problem=problem, reason=said.splitlines()[0][:300])


def _read(path: str) -> Task:
    with open(path) as file:
        fields = json.load(file)
    arrays = dict(np.load(fields.pop("arrays")))
    weights = {name[2:]: arrays[name] for name in arrays if name.startswith("w:")}
    return Task(**fields, weights=weights, inputs=arrays["inputs"], labels=arrays["labels"])


def _answer(task: Task, build: Callable[[Task], Programs], versions: Any, say: Callable[..., None]) -> None:
    if task.memory_limit:
        resource.setrlimit(resource.RLIMIT_DATA, (task.memory_limit, task.memory_limit))
    programs = build(task)
    inputs, labels = programs.place(task.inputs, task.labels)
    calls: dict[str, Callable[[], None]] = {
        "clipped": lambda: programs.wait(programs.clipped(inputs, labels)),
        "step": lambda: programs.wait(programs.step(inputs, labels)),
    }
    started = time.perf_counter()
    value = programs.clipped(inputs, labels)
    programs.wait(value)
    first = {"clipped": time.perf_counter() - started}
    if task.give_up_seconds is not None and first["clipped"] > task.give_up_seconds:
        reason = f"its first clipped gradient took {first['clipped']:.0f} s, far longer than another mode's"
        say(problem="too slow", reason=reason)
        return
    np.savez(task.answer, **programs.canonical(value))
    del value
    first["step"] = _seconds(calls["step"])
    peak = programs.peak_bytes() if programs.peak_bytes else _peak_resident_bytes()
    say(first_seconds=first, peak_bytes=peak, versions=versions())
    images: tuple[np.ndarray, np.ndarray] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["program"] == "epoch":
            images = images or task.images()
            run = programs.epoch or (lambda steps, images: _epoch(task, programs, steps, images))
            calls["epoch"] = lambda run=run, steps=asked["steps"], images=images: run(steps, images)
        say(seconds=_timed(calls[asked["program"]], asked["for_seconds"], asked["at_most"]))


def _timed(call: Callable[[], None], for_seconds: float, at_most: int) -> list[float]:
    """Seconds of each of some calls: at least one, until they took `for_seconds` together."""
    seconds = [_seconds(call)]
    while sum(seconds) < for_seconds and len(seconds) < at_most:
        seconds.append(_seconds(call))
    return seconds


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _epoch(task: Task, programs: Programs, steps: int, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """Steps on shuffled MNIST in slices as large as the batch, the fastest feed: no loader collates anything."""
    images, classes = arrays
    size = len(task.labels)
    order = np.random.default_rng(0).permutation(len(classes))
    value = None
    for step in range(steps):
        rows = order[step * size : (step + 1) * size]
        value = programs.step(*programs.place(images[rows], classes[rows]))
    programs.wait(value)


def _peak_resident_bytes() -> int:
    with open("/proc/self/status") as file:  # getrusage's maximum is inherited from the process that started this one
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def tells_of_memory(said: str) -> bool:
    """Whether an error's words are those of a library that got no memory."""
    words = (
        "RESOURCE_EXHAUSTED",
        "out of memory",
        "Out of memory",
        "allocate",
        "Allocator",
        "OOM",
        "bad_alloc",
        "Must be non NULL",
        "pthread_create",
        "start new thread",
    )
    return any(word in said for word in words)
