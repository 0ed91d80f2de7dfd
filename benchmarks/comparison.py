"""The libraries' processes on shared weights and batches: whose answers agree, which mode is the fastest, what fits."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from canonical import canonical
from cells import Cell, Process
from exact import Exact, difference, exact
from libraries import LIBRARIES, TUTORIALS, batch_size_of
from peers.environments import UnavailableError
from workloads import WORKLOADS as MODELS, Workload

import jaxdp

if TYPE_CHECKING:
    from throughput import Options

CLIP_NORM = 1.0
TOLERANCES = {"float32": 1e-4, "fast": 5e-2}


class Comparison:
    """Libraries' processes on shared weights and batches."""

    def __init__(
        self, options: "Options", pythons: dict[str, Path | UnavailableError], room: Path, progress: Any
    ) -> None:
        self.options, self.pythons, self.room, self.progress = options, pythons, room, progress
        self.started = 0
        self.mnist = room / "mnist.npz"
        data = jaxdp.data.load()
        images = data.train_images.astype(np.float32) / 255
        np.savez(self.mnist, images=images, classes=data.train_labels.astype(np.int32))

    def measure(
        self, workload: str, size: int, modes: dict[str, tuple[str, ...]], *, epoch: bool = False
    ) -> list[Cell]:
        """Compare answers, try modes, then measure the chosen ones in rounds.

        Args:
            workload: its name.
            size: examples in the batch.
            modes: by library.
            epoch: whether to train an epoch of MNIST, too.

        Returns:
            A cell for each mode, in the order tried.
        """
        cells: list[Cell] = []
        self.progress(f"{workload}, B {size}: the exact answer")
        model = self._prepare(workload, size)
        expected = exact(model, CLIP_NORM)
        rounding = difference(expected.plain_float32, expected.plain)
        tolerance = max(TOLERANCES[self.options.precision], 3 * rounding)
        chosen: dict[tuple[str, str], Process] = {}
        every = [
            Cell(workload, size, name, mode, tolerance=tolerance) for name in self.options.only for mode in modes[name]
        ]
        together = self._started_together(every) if self.options.together else {}
        for cell in sorted(every, key=lambda cell: (cell.library, cell.mode) not in together):
            self.progress(f"{workload}, B {size}: {cell.library}, {cell.mode}")
            cells.append(cell)
            patience = _patience([c for c in cells if c.library == cell.library])
            process = self._tried(cell, expected, together.get((cell.library, cell.mode)), patience)
            if process is not None:
                _choose(chosen, process, LIBRARIES[cell.library].tutorial_mode(workload))
        finalists = list(dict.fromkeys(chosen.values()))
        usual = self.options.rounds * (3 if workload == "cnn" else 1)
        rounds = usual if size == batch_size_of(workload) else 1
        for turn in range(rounds):
            self.progress(f"{workload}, B {size}: round {turn + 1} of {rounds}")
            for process in finalists:
                _take_turn(process)
        for process in finalists:
            if epoch and not process.cell.problem and not process.cell.is_plain:
                self.progress(f"{workload}, B {size}: an epoch with {process.cell.library}, {process.cell.mode}")
                process.time_epoch(_steps_of_an_epoch(process.cell))
            process.close()
        return cells

    def largest(self, workload: str, library: str, mode: str) -> Cell:
        """The largest batch, of a power of two, whose first calls a process of limited memory survives."""
        fits, fails = int(math.log2(batch_size_of(workload))), 16
        found = refused = Cell(workload, 0, library, mode)
        exponent = fails - 1  # for those that need no more memory for more examples
        while fails - fits > 1:
            cell = self._first_calls(workload, 2**exponent, library, mode)
            if cell.problem:
                fails, refused = exponent, cell
            else:
                fits, found = exponent, cell
            exponent = (fits + fails) // 2
        found.problem, found.reason = refused.problem, refused.reason
        return found

    def _first_calls(self, workload: str, size: int, library: str, mode: str) -> Cell:
        """Whether a batch fits: its cell, after the first calls in a process of limited memory."""
        self.progress(f"{workload}: does B {size} fit with {library}, {mode}?")
        self._prepare(workload, size)
        limit = int(self.options.fit_memory * 2**30) if self.options.device == "cpu" else None
        process = self._start(Cell(workload, size, library, mode), limit)
        process.first_answer()
        process.close()
        return process.cell

    def _started_together(self, cells: list[Cell]) -> dict[tuple[str, str], Process]:
        """A process for each cell whose library there is, when all have answered: none is timed while another compiles.

        One for which the others left no memory or no time isn't among them: it is tried by itself when they have been.
        """
        self.progress(f"{cells[0].workload}, B {cells[0].batch_size}: {len(cells)} processes compile")
        known = [cell for cell in cells if isinstance(self.pythons[cell.library], Path)]
        processes = {(cell.library, cell.mode): self._start(cell) for cell in known}
        for process in processes.values():
            process.first_answer()
        for key, process in list(processes.items()):
            if process.cell.problem in ("out of memory", "too slow"):
                process.close()
                process.cell.problem = process.cell.reason = ""
                del processes[key]
        return processes

    def _tried(
        self, cell: Cell, expected: Exact, started: Process | None, give_up_seconds: float | None
    ) -> Process | None:
        python = self.pythons[cell.library]
        if isinstance(python, UnavailableError):
            cell.problem, cell.reason = "not installed", str(python)
            return None
        process = started or self._start(cell, give_up_seconds=give_up_seconds)
        start_and_step = 25.0  # seconds, on top of the first clipped sum
        limit = math.inf if give_up_seconds is None else give_up_seconds + start_and_step
        if process.first_answer(limit):
            cell.difference = difference(process.answer(), expected.plain if cell.is_plain else expected.clipped)
            if cell.difference <= cell.tolerance:
                _take_turn(process)
            else:
                what = "gradient" if cell.is_plain else "clipped gradient"
                cell.problem, cell.reason = "disagrees", f"its {what} is {cell.difference:.1g} away from the exact one"
        if cell.problem:
            process.close()
            return None
        return process

    def _prepare(self, workload: str, size: int) -> Workload:
        model = MODELS[workload](size)
        inputs, labels = map(np.asarray, model.batch)
        weights: Any = {f"w:{name}": leaf for name, leaf in canonical(model.params).items()}
        np.savez(self.room / "task.npz", inputs=inputs, labels=labels, **weights)
        return model

    def _start(self, cell: Cell, limit: int | None = None, give_up_seconds: float | None = None) -> Process:
        options = self.options
        self.started += 1
        memory = options.memory * 2**30 or 0.75 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        task = {
            "workload": cell.workload,
            "mode": cell.mode,
            "clip_norm": CLIP_NORM,
            "noise_multiplier": 1.0,
            "learning_rate": 1e-4,
            "threads": options.threads,
            "device": options.device,
            "precision": options.precision,
            "memory_limit": limit or (int(memory) if options.device == "cpu" else None),
            "give_up_seconds": give_up_seconds,
            "arrays": str(self.room / "task.npz"),
            "mnist": str(self.mnist) if cell.workload == "cnn" else None,
            "answer": str(self.room / f"answer-{self.started}.npz"),
        }
        python = self.pythons[cell.library]
        assert isinstance(python, Path)
        return Process(cell, python, LIBRARIES[cell.library].script, task, options.limit_seconds)


def _patience(cells: list[Cell]) -> float | None:
    """How long the first clipped sum of the last of a library's modes may take: four times as long as that of its quickest one.

    None for the tutorials' models, where every mode is measured however slow it is.
    """
    quickest = min((c.first_seconds["clipped"] for c in cells if not c.is_plain and c.first_seconds), default=math.inf)
    tutorials = cells[-1].workload in TUTORIALS
    return None if tutorials or cells[-1].is_plain or quickest == math.inf else max(8.0, 4 * quickest)


def _choose(chosen: dict[tuple[str, str], Process], process: Process, tutorial: str) -> None:
    """Keep the process if it is its library's fastest so far, private or plain, or its tutorials' mode; close what isn't."""
    cell = process.cell
    best = (cell.library, "plain" if cell.is_plain else "private")
    before = chosen.get(best)
    if cell.mode == tutorial:
        chosen[cell.library, "tutorial"] = process
    if before is None or cell.median("step") < before.cell.median("step"):
        chosen[best] = process
    for each in filter(None, (before, process)):
        if each not in chosen.values():
            each.close()


def _take_turn(process: Process) -> None:
    cell = process.cell
    for program in ("step", "clipped"):
        if not cell.problem and sum(cell.seconds.get(program, ())) < 3:  # the ratios of slow ones need no more digits
            process.time(program, for_seconds=0.4, at_most=10)


def _steps_of_an_epoch(cell: Cell) -> int:
    """All of them, or as many as take five seconds."""
    whole = 60_000 // cell.batch_size
    return min(whole, max(2, math.ceil(5 / cell.median("step"))))
