"""Side by side with JAX Privacy, optax, Opacus and TF Privacy: the same weights, the same batch, the same minute.

    python benchmarks/throughput.py                                   # everything; makes the peers' environments first
    python benchmarks/throughput.py --quick                           # the tutorials' CNN alone, fewer repeats
    python benchmarks/throughput.py --only jaxdp opacus --workloads mlp --batch-sizes 64 1024
    python benchmarks/throughput.py --device gpu --precision fast     # on a machine with a GPU: TF32 for every library alike
    python benchmarks/throughput.py --here --together                 # without a package index; on a machine of many cores
    python benchmarks/throughput.py --resume                          # after one that was broken off, with its other options

Each library runs in a process of its own environment (peers/environments.py). First its clipped gradient sum is compared with the
exact one, computed example by example in float64, and so is jaxdp's: one that is more than 1e-4 away is shown as disagreeing and
not timed. (Where float32 alone moves the ordinary gradient by more than a third of that, as a ReLU's kinks do in a deep network,
the bound is three times what it moves.) Then each of its modes is tried, and its fastest one, that of its tutorials, and its
fastest non-private step are measured in rounds, the libraries taking turns. Prints tables, and writes them as Markdown and JSON,
with a plot, to benchmarks/results/DEVICE/; `python benchmarks/documents.py` puts them into the documents.

On a GPU or TPU: install jaxdp for it (README), run the line above with --device gpu or tpu, then
`python benchmarks/accelerators.py`, which times on the device what it compiles for it, and send the new folder of
benchmarks/results as a pull request. `python benchmarks/peers/environments.py --device gpu --resolve` tells beforehand, on any
machine, whether the peers' packages go together.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # the device is for the libraries' processes

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import record
import throughput_report
import tyro
from cells import Cell
from comparison import Comparison
from libraries import LIBRARIES, WORKLOADS, Library, batch_size_of
from peers.environments import UnavailableError, python_here, python_of
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, kw_only=True)
class Options:
    """jaxdp side by side with its peers."""

    only: tuple[str, ...] = tuple(LIBRARIES)
    """which libraries to measure"""
    workloads: tuple[str, ...] = WORKLOADS
    """which models"""
    batch_sizes: tuple[int, ...] = ()
    """sizes for every workload, and no search for the largest; by default its own, and 64 and 1024 as well for the CNN"""
    device: Literal["cpu", "gpu", "tpu"] = "cpu"
    """where the libraries compute"""
    precision: Literal["float32", "fast"] = "float32"
    """of matrix products: "fast" is TF32 on a GPU and bfloat16 on a TPU"""
    quick: bool = False
    """the CNN at its usual batch size alone, without a whole epoch or the largest batch"""
    rounds: int = 2
    """turns that each library gets after its modes were tried; on the CNN three times as many"""
    threads: int = len(os.sched_getaffinity(0))
    """cores that each library may use"""
    memory: float = 0.0
    """GiB that a process may hold; 0 for three quarters of this machine's"""
    fit_memory: float = 4.0
    """GiB of a process in which the largest batch is looked for, on a CPU; a GPU's is its own"""
    limit_seconds: float = 60.0
    """after how long without an answer a mode is given up"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""
    together: bool = False
    """start all processes of a workload at once, which then compile side by side: for machines with a core for each"""
    here: bool = False
    """take the libraries from this Python's packages, in whatever versions, and not from environments of pinned ones"""
    resume: bool = False
    """go on with what a run of the same options, versions and commit left: from the first model that it didn't finish"""
    overwrite: bool = False
    """replace results that another machine left in the same folder"""


def main(options: Options) -> None:
    """Measure, print, write."""
    _check(options)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    console = Console(stderr=True)
    device = _device(options)
    pythons = _pythons(options, console)
    cells, seconds = _left(options, device) if options.resume else ([], 0.0)
    started = time.monotonic() - seconds
    save = partial(_saved, options, device, started)
    columns = TimeElapsedColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    with tempfile.TemporaryDirectory() as room, Progress(*columns, console=console) as bar:
        plan = _plan(options)
        done = throughput_report.keys(cells)
        task = bar.add_task("", total=len(plan), completed=len(done))

        def tell(what: str) -> None:
            bar.update(task, description=escape(what))
            if not console.is_terminal:  # a log has no bar
                console.print(f"{(time.monotonic() - started) / 60:.1f} min: {escape(what)}", highlight=False)

        comparison = Comparison(options, pythons, Path(room), tell)
        for workload, size in (key for key in plan if key not in done):
            usual = not options.batch_sizes and size == batch_size_of(workload)
            whole = workload == "cnn" and usual and not options.quick
            every = not options.quick
            modes = {name: LIBRARIES[name].modes(workload, every=every) for name in options.only}
            if not usual and any(cell.workload == workload for cell in cells):
                modes = {name: _fastest(cells, workload, LIBRARIES[name]) for name in options.only}
            cells += comparison.measure(workload, size, modes, epoch=whole)
            throughput_report.write(save(cells, [], finished=False))
            bar.advance(task)
        looks_for_largest = "cnn" in options.workloads and not options.quick and not options.batch_sizes
        largest = _largest(comparison, cells, "cnn") if looks_for_largest else []
    path = save(cells, largest, finished=True)
    print(throughput_report.write(path))
    print(f"written to {path.parent}")
    wrong = [cell.library for cell in cells if cell.library == "jaxdp" and cell.problem == "disagrees"]
    if wrong or all(cell.problem for cell in cells):
        sys.exit(
            "jaxdp disagrees with the exact answer" if wrong else "nothing could be measured: see the reasons above"
        )


def _saved(
    options: Options, device: record.Device, started: float, cells: list[Cell], largest: list[Cell], *, finished: bool
) -> Path:
    """Write what there is so far; returns where."""
    content = {
        "precision": options.precision,
        "threads": options.threads,
        "fit_memory": options.fit_memory,
        "finished": finished,
        "minutes": (time.monotonic() - started) / 60,
        "cells": [asdict(cell) for cell in cells],
        "largest": [asdict(cell) for cell in largest],
    }
    begun = _begun(options, options.results / device.folder)
    name = _name(options) if finished else begun
    folder = record.write(options.results, name, content, device)
    if finished and begun != name:
        for path in folder.glob(f"{begun}.*"):
            path.unlink()
    return folder / f"{name}.json"


def _left(options: Options, device: record.Device) -> tuple[list[Cell], float]:
    """The cells that a run which was broken off has measured, and for how many seconds it ran."""
    folder = options.results / device.folder
    path, whole = (folder / f"{name}.json" for name in (_begun(options, folder), _name(options)))
    path = path if path.exists() else whole
    if not path.exists():
        sys.exit(f"--resume: there is no {path}: leave the option out")
    left, cells = throughput_report.read(path)
    if left["finished"]:
        sys.exit(f"--resume: {path} is of a run that is finished: leave the option out to measure anew")
    for name, now in record.now(device).items():
        then = left[name]
        if name == "command":
            then, now = ([word for word in words if word != "--resume"] for words in (then, now))
        if then != now:
            sys.exit(
                f"--resume: {path} has another {name} ({then}, this is {now}): leave the option out to measure anew"
            )
    return cells, 60 * left["minutes"]


def _check(options: Options) -> None:
    for asked, known, what in ((options.only, LIBRARIES, "library"), (options.workloads, WORKLOADS, "workload")):
        if unknown := [name for name in asked if name not in known]:
            sys.exit(f"there is no {what} named {', '.join(unknown)}: choose of {', '.join(known)}")
    if options.quick and (options.workloads != WORKLOADS or options.batch_sizes):
        sys.exit(
            "--quick measures the CNN alone, at its usual size: leave out --workloads and --batch-sizes, or --quick"
        )
    if not options.only or not options.workloads:
        sys.exit("nothing to measure: give --only and --workloads at least one name each")
    for name, value in (
        ("rounds", options.rounds),
        ("threads", options.threads),
        ("limit-seconds", options.limit_seconds),
    ):
        if value <= 0:
            sys.exit(f"--{name} is {value}: give a number above 0")
    if any(size < 16 or size % 16 for size in options.batch_sizes):
        sys.exit(f"--batch-sizes are {options.batch_sizes}: give multiples of 16, which the microbatches divide")
    if options.device == "cpu" and options.precision != "float32":
        sys.exit(f"--precision {options.precision} is of GPUs and TPUs: a CPU multiplies in float32; leave it out")
    if options.threads > (cores := len(os.sched_getaffinity(0))):
        sys.exit(f"--threads is {options.threads}: there are {cores} cores")


def _device(options: Options) -> record.Device:
    device = record.find_device(options.device)
    if device is None:
        sys.exit(
            f"--device {options.device}: JAX finds none here; install jaxdp for it (README), or leave the option out"
        )
    path = options.results / device.folder / f"{_name(options)}.json"
    other = record.of_another_machine(path, device)
    if other and not options.overwrite:
        sys.exit(f"{path} is of another machine ({other}, this is {device.model}): give --results or --overwrite")
    return device


def _name(options: Options) -> str:
    """Results of the whole comparison are never replaced by those of a part."""
    name = "throughput" if options.precision == "float32" else f"throughput-{options.precision}"
    if options.quick:
        return f"{name}-quick"
    usual = {each.name: each.default for each in fields(Options)}
    whole = all(getattr(options, each) == usual[each] for each in ("only", "workloads", "batch_sizes", "limit_seconds"))
    return name if whole else f"{name}-part"


def _begun(options: Options, folder: Path) -> str:
    """The name of what a run has until all is there: another one where there are finished results, which stay until then."""
    path = folder / f"{_name(options)}.json"
    is_finished = path.exists() and json.loads(path.read_text())["finished"]
    return f"{_name(options)}-unfinished" if is_finished else _name(options)


def _plan(options: Options) -> list[tuple[str, int]]:
    if options.batch_sizes:
        return [(workload, size) for workload in options.workloads for size in options.batch_sizes]
    if options.quick:
        return [("cnn", batch_size_of("cnn"))]
    usual = [(workload, batch_size_of(workload)) for workload in options.workloads]
    return usual + [("cnn", size) for size in (64, 1024) if "cnn" in options.workloads]


def _pythons(options: Options, console: Console) -> dict[str, Path | UnavailableError]:
    pythons: dict[str, Path | UnavailableError] = {"jaxdp": Path(sys.executable)}
    for name in options.only:
        if name == "jaxdp":
            continue
        with console.status(f"{name}'s environment (made once)"):
            try:
                pythons[name] = python_here(name) if options.here else python_of(name, options.device)
            except UnavailableError as error:
                pythons[name] = error
                console.print(escape(str(error)))
    return pythons


def _fastest(cells: list[Cell], workload: str, library: Library) -> tuple[str, ...]:
    """The modes that were its fastest before on a workload: plain, where it has one of its own, and private."""
    modes = []
    for plain in (True, False):
        own = [c for c in cells if (c.workload, c.library, c.is_plain) == (workload, library.name, plain) and c.seconds]
        if own:
            modes.append(min(own, key=lambda cell: cell.median("step")).mode)
    return tuple(modes)


def _largest(comparison: Comparison, cells: list[Cell], workload: str) -> list[Cell]:
    found = []
    for name in comparison.options.only:
        private = [mode for mode in _fastest(cells, workload, LIBRARIES[name]) if not mode.startswith("plain")]
        found += [comparison.largest(workload, name, mode) for mode in private]
    return found


if __name__ == "__main__":
    main(tyro.cli(Options))
