"""Commands that take some seconds and leave a folder: how each begins, goes on, and what must come of it whatever happens."""

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxdp

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [
        *("jaxdp.cli", "jaxdp.commands.train._folds", "jaxdp.commands.pate._pipeline", "jaxdp.audit._report"),
        *("jaxdp.runs._plots", "jaxdp.runs._plot_of_audit", "flax.linen", "orbax.checkpoint", "matplotlib.figure"),
        "dp_accounting.pld",
    ]
)
_ASKING = threading.Lock()  # starting a process asks the others for their codes, and of two who ask one is told 255
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "tfds"
_IMAGES = ("--data-dir", str(FIXTURES), "--delta", "1e-3", "--seed", "7")
_TRAIN = ("train", "--model", "mlp", "--epochs", "16", "--batch-size", "64", "--noise-multiplier", "2", *_IMAGES)
_PATE = ("pate", "--teachers", "8", "--queries", "60", "--teacher-epochs", "2", "--teacher-batch-size", "16")
_VOTES = ("--student-steps", "200", "--threshold", "1", "--sigma-threshold", "8", "--sigma-max", "6", *_IMAGES)
_TABLES = ("--rows", "640", "--features", "6", "--targets", "3", "--test-rows", "20")
_TABLE = ("--hidden", "8", "--epochs", "16", "--batch-size", "64", "--opt", "adam", "--noise-multiplier", "2")
_OF_TRAINING = ("summary.json", "model", "private/checkpoints/[1-9]*[0-9]", "private/checkpoints/0", "config.json")
_OF_PATE = ("summary.json", "model", "labels.csv", "private/votes.npy", "private/predictions.npy", "config.json")


@dataclass(frozen=True)
class Job:
    """A command: `new` begins it in a folder, `again` goes on where `begun` is there, and `end` is what must be the same.

    `stages` are files by which one sees how far it has come, the last first.
    """

    name: str
    new: Callable[[Path], list[str]]
    again: Callable[[Path], list[str]]
    begun: str
    end: Callable[[Path], str]
    stages: tuple[str, ...]

    def go_on(self, folder: Path) -> list[str]:
        """What a user types after it was broken off."""
        return self.again(folder) if (folder / self.begun).exists() else self.new(folder)


def jobs(room: Path) -> list[Job]:
    """Training on a table, on images with canaries, PATE, and an audit; what they need is made in `room`."""
    tables = room / "tables"
    said(["lookalike", str(tables), *_TABLES])
    features, targets = (str(tables / f"train_{name}.csv") for name in ("features", "targets_scored"))
    files = ("--features", features, "--targets", targets, "--bounds", "-10", "10", "--seed", "7", "--delta", "1e-3")
    audited = room / "audited"
    with_canaries = (*_TRAIN, "--audit-canaries", "40")
    said([*with_canaries, "--output", str(audited)])
    audit = lambda folder: ["audit", str(audited), "--overwrite", "--output", str(folder)]
    return [
        _resumable("train, a table", ("train", "--dataset", "csv", *files, *_TABLE), _end_of_training, _OF_TRAINING),
        _resumable("train, canaries", with_canaries, _end_of_training, _OF_TRAINING),
        _resumable("pate", (*_PATE, *_VOTES), _end_of_pate, _OF_PATE),
        Job(
            "audit",
            audit,
            audit,
            "audit.json",
            lambda folder: _digest((folder / "audit.json").read_bytes()),
            ("*.png",),
        ),
    ]


class Started:
    """A command as a process of its own, and a group: forked from one that has imported what commands import, and nothing more.

    So half of a process's time, which Python takes to import, is saved; for that time a command has touched no file.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._errors = Path(tempfile.mkstemp(prefix="jaxdp-said-")[1])
        self._process = _FORKED.Process(target=_command, args=(arguments, str(self._errors)))
        with _ASKING:
            self._process.start()

    @property
    def pid(self) -> int:
        """Of the process, and its group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int:
        """Of a process that has ended; minus the signal's number where one ended it."""
        assert self._process.exitcode is not None
        return self._process.exitcode

    def runs(self) -> bool:
        """Whether it has not ended."""
        with _ASKING:
            return self._process.exitcode is None

    def until(self, there: Callable[[], bool]) -> float:
        """The moment at which that is so, or at which it has ended."""
        while self.runs() and not there():
            time.sleep(0.002)
        return time.perf_counter()

    def kill(self) -> None:
        """SIGKILL to all of the group."""
        with suppress(ProcessLookupError):  # it has just ended, or has made no group yet
            os.killpg(self.pid, signal.SIGKILL)
            return
        self._process.kill()

    def wait(self) -> str:
        """Its end, and what it said of errors."""
        connection.wait([self._process.sentinel])
        with _ASKING:
            self._process.join()
        errors = self._errors.read_text()
        self._errors.unlink()
        return errors


def _command(arguments: list[str], errors: str) -> None:
    """What the process does: the command, its output to nowhere and its errors to a file."""
    os.setsid()
    for number, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    from jaxdp import cli

    cli.main(arguments)


def said(arguments: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it said of errors."""
    process = Started(arguments)
    errors = process.wait()
    return process.returncode, errors


def _resumable(name: str, options: tuple[str, ...], end: Callable[[Path], str], stages: tuple[str, ...]) -> Job:
    new = lambda folder: [*options, "--output", str(folder)]
    return Job(name, new, lambda folder: [options[0], "--resume", str(folder)], "config.json", end, stages)


def _end_of_training(folder: Path) -> str:
    """Parameters to the bit, metrics but for times, epsilon and ledger, and the coins of canaries."""
    run = jaxdp.load_run(folder)
    lines = [{k: v for k, v in line.items() if k not in ("seconds", "steps_per_second")} for line in run.metrics]
    canaries = folder / "private" / "canaries.npz"
    return _digest(*_bits(run.params), lines, _stated(folder), canaries.read_bytes() if canaries.exists() else b"")


def _end_of_pate(folder: Path) -> str:
    """The student to the bit, the labels, epsilon and what it was paid for, also by the votes."""
    run = jaxdp.load_run(folder)
    files = ((folder / name).read_bytes() for name in ("labels.csv", "private/report.json"))
    return _digest(*_bits(run.params), *files, _stated(folder))


def _stated(folder: Path) -> Any:
    return json.loads((folder / "statement.json").read_text())


def _bits(params: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]


def _digest(*parts: Any) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode())
    return content.hexdigest()
