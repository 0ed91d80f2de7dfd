"""One library in one mode on one workload: its process, its first answer, and what it is asked afterwards."""

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from peers.protocol import tells_of_memory

_PEERS = Path(__file__).parent / "peers"


@dataclass
class Cell:
    """What was measured of a library in a mode. Seconds are of one call, bytes the peak of the process or of the device.

    Attributes:
        problem: why nothing was timed: "not offered", "not installed", "disagrees", "out of memory", "too slow" or "failed".
        reason: the same in words.
        difference: of its clipped sum, or its plain one, from the exact one (exact.py), relative, in the 2-norm.
        tolerance: what that may be.
    """

    workload: str
    batch_size: int
    library: str
    mode: str
    problem: str = ""
    reason: str = ""
    difference: float = float("nan")
    tolerance: float = float("nan")
    first_seconds: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: int = 0
    epoch_seconds: float = float("nan")
    epoch_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    def median(self, program: str) -> float:
        """Seconds of a call of "clipped" or "step"."""
        return median(self.seconds[program]) if self.seconds.get(program) else float("nan")

    @property
    def is_plain(self) -> bool:
        """Whether it has no privacy."""
        return self.mode.startswith("plain")


class Process:
    """A library's process at work on a cell; what goes wrong is written there, and the comparison goes on."""

    def __init__(self, cell: Cell, python: Path, script: str, task: dict[str, Any], limit_seconds: float) -> None:
        self.cell, self.limit_seconds = cell, limit_seconds
        self._answer = Path(task["answer"])
        path = self._answer.with_suffix(".json")
        path.write_text(json.dumps(task))
        self._errors = path.with_suffix(".err")
        threads = str(task["threads"])
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share a GPU
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python, _PEERS / script, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def first_answer(self, limit_seconds: float = math.inf) -> bool:
        """Wait for the clipped sum and the first calls, if that isn't done; whether all went well."""
        if self.cell.first_seconds or self.cell.problem:
            return not self.cell.problem
        told = self._reply(limit_seconds)
        if told is None:
            return False
        self.cell.first_seconds, self.cell.peak_bytes = told["first_seconds"], told["peak_bytes"]
        self.cell.versions = told["versions"]
        return True

    def answer(self) -> dict[str, np.ndarray]:
        """Its clipped sum, after the first answer."""
        return dict(np.load(self._answer))

    def time(self, program: str, *, for_seconds: float, at_most: int) -> None:
        """Time some calls of a program."""
        told = self._ask(program=program, for_seconds=for_seconds, at_most=at_most)
        if told is not None:
            self.cell.seconds.setdefault(program, []).extend(told["seconds"])

    def time_epoch(self, steps: int) -> None:
        """Time so many steps on MNIST, after a few that aren't counted."""
        for count in (2, steps):
            told = self._ask(program="epoch", steps=count, for_seconds=0, at_most=1)
            if told is None:
                return
            self.cell.epoch_seconds, self.cell.epoch_steps = told["seconds"][0], count

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()

    def _ask(self, **question: Any) -> dict[str, Any] | None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # where it died, its reply says so
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._reply()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def _reply(self, limit_seconds: float = math.inf) -> dict[str, Any] | None:
        limit_seconds = min(limit_seconds, self.limit_seconds)
        try:
            line = self._lines.get(timeout=limit_seconds)
        except queue.Empty:
            self._process.kill()
            self._fail("too slow", f"no answer within {limit_seconds:.0f} s")
            return None
        told = json.loads(line) if line else self._death()
        if "problem" in told:
            self._fail(told["problem"], told["reason"])
            return None
        return told

    def _death(self) -> dict[str, str]:
        status = self._process.wait()
        lines = self._errors.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.strip() and not line.startswith("WARNING")]
        if status == -signal.SIGKILL or tells_of_memory(" ".join(said[-50:])):
            return {"problem": "out of memory", "reason": "the process died for lack of memory"}
        return {"problem": "failed", "reason": (said or [f"exit status {status}"])[-1][:300]}

    def _fail(self, problem: str, reason: str) -> None:
        self.cell.problem, self.cell.reason = problem, reason
