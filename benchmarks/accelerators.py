"""What clipping costs on TPUs and GPUs that aren't here, by the estimates of their own compilers.

    python benchmarks/accelerators.py                                    # every workload for every target, an hour or two
    python benchmarks/accelerators.py --targets tpu-v5e --workloads mlp cnn
    python benchmarks/accelerators.py --targets h100 --methods ghost
    python benchmarks/accelerators.py --check                            # the MLP on a TPU v5e still costs what is written

XLA compiles for a TPU or an H100 on a machine that has neither; the environments for it are made once, from
peers/compilers.txt. Each program of each workload is compiled: the plain gradient, clipped ones, whole steps, the noise alone. A
TPU's compiler says how many cycles it expects each operation to take; those of a loop are counted as often as it runs. For a GPU
there are no cycles but what can be counted: kernels, bytes, operations of matrix products by precision, and a roofline of these,
the time that memory or products take at the least. NONE OF THIS IS A MEASUREMENT. Where the device is here after all, the same
programs are timed beside it. Prints tables, and writes them with a picture to benchmarks/results/compilers/; what was found for
other workloads stays. `python benchmarks/documents.py` puts a table into the documents.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compiler_report
import record
import tyro
from compiler_process import compiled_by
from peers.environments import COMPILERS, UnavailableError, python_of
from rich.console import Console
from targets import TARGETS, Target
from workloads import WORKLOADS

_SCRIPT, _FOLDER = Path(__file__).with_name("compile_for.py"), "compilers"
_COLUMNS = 120  # of a log
_CHECKED, _MARGIN = ("tpu-v5e", "mlp"), 1.1
_OPTIMIZERS = ("adam", "lamb")  # which read a noisy gradient more than once


@dataclass(frozen=True, kw_only=True)
class Options:
    """What clipping costs on TPUs and GPUs that aren't here."""

    targets: tuple[str, ...] = tuple(TARGETS)
    """what to compile for"""
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    """which models"""
    methods: tuple[str, ...] = ("ghost", "vmap")
    """how gradients are clipped; "ghost" is what "auto" is there, while a batch takes less than a quarter of the memory"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""
    check: bool = False
    """compile the MLP for a TPU, and fail if clipping costs more than what is written, or if noise is drawn more than once;
    without a compiler, say so and pass"""


def main(options: Options) -> None:
    """Compile, print and write."""
    if options.check:
        sys.exit(_check(options.results / _FOLDER))
    for asked, known, what in ((options.targets, TARGETS, "target"), (options.workloads, WORKLOADS, "workload")):
        if unknown := [name for name in asked if name not in known]:
            sys.exit(f"there is no {what} named {', '.join(unknown)}: choose of {', '.join(known)}")
    console, failed = Console(width=max(Console().width, _COLUMNS)), False
    for target in (TARGETS[name] for name in options.targets):
        try:
            with console.status(f"{target.name}: its compiler's environment (made once)"):
                python = python_of(COMPILERS, target.device)
        except UnavailableError as error:
            console.print(f"{target.name}: {error}", markup=False)
            failed = True
            continue
        here = record.find_device(target.device)
        is_here = here is not None and here.model == target.kind
        for workload in options.workloads:
            found, ended_well = _compiled(python, target, workload, options.methods, console, here=is_here)
            failed |= not found or not ended_well
            if found:
                _kept(options.results, target, workload, found)
                console.print(compiler_report.table(target, found))
    compiler_report.draw(options.results / _FOLDER)
    console.print(f"written to {options.results / _FOLDER}")
    if failed:
        sys.exit("not everything could be compiled; what could is written")


def _check(results: Path) -> str | None:
    """What is wrong: the clipped gradient costs more than what is written by more than the margin, or noise is drawn anew."""
    target, workload = TARGETS[_CHECKED[0]], _CHECKED[1]
    try:
        python = python_of(COMPILERS, target.device)
    except UnavailableError as error:
        print(f"not checked: {error}")
        return None
    console = Console(width=_COLUMNS)
    only = ("gradient", "clipped", "noise", "private step")
    how: dict[str, Any] = {"here": False, "only": only, "optimizers": _OPTIMIZERS}
    found, _ = _compiled(python, target, workload, ("ghost",), console, **how)
    if not found:
        print("not checked: the compiler is installed and doesn't run here")
        return None
    written = [each for each in _written(results, target) if each["workload"] == workload]
    now, before = (compiler_report.ratio(programs, "clipped, ghost") for programs in (found, written))
    if now is None or before is None:
        return f"{target.name}, {workload}: there is nothing to compare ({now} now, {before} written)"
    print(f"{target.name}, {workload}: the clipped gradient over the plain one is {now:.3f}, {before:.3f} in {results}")
    if now > _MARGIN * before:
        return f"that is more than {_MARGIN} times what is written"
    draws = {each["program"]: each["logarithms"] for each in found}
    print(
        f"{target.name}, {workload}: noise is drawn in " + ", ".join(f"{n} ({name})" for name, n in draws.items() if n)
    )
    once = {f"private step, {optimizer}": draws["noise alone"] for optimizer in _OPTIMIZERS}
    return None if once.items() <= draws.items() else "a private step draws a value of its noise more than once"


def _compiled(
    python: Path,
    target: Target,
    workload: str,
    methods: tuple[str, ...],
    console: Console,
    *,
    here: bool,
    only: tuple[str, ...] = ("",),
    optimizers: tuple[str, ...] = (),
) -> tuple[list[dict[str, Any]], bool]:
    """The figures of each program of a workload that could be compiled, and whether its process ended well.

    Args:
        python: of the compiler's environment.
        target, workload, methods: what is compiled.
        console: where problems are told.
        here: whether the device is.
        only: how the names of programs begin that are wanted.
        optimizers: with which private steps are compiled, too.
    """
    asked = {"target": target.name, "workload": workload, "methods": methods, "here": here, "only": only}
    asked["optimizers"] = optimizers
    return compiled_by(python, _SCRIPT, asked, console, f"{target.name}, {workload}")


def _kept(results: Path, target: Target, workload: str, found: list[dict[str, Any]]) -> None:
    """Write what was found, and by which commit, beside what there is of other workloads and programs."""
    own = {each["program"] for each in found}
    before = _written(results / _FOLDER, target)
    programs = [each for each in before if each["workload"] != workload or each["program"] not in own]
    programs += [each | {"commit": record.commit()} for each in found]
    programs.sort(key=lambda each: list(WORKLOADS).index(each["workload"]))
    content = {"estimated_by": "a compiler; nothing was measured", "programs": programs}
    record.write(results, target.name, content, record.Device(_FOLDER, target.kind))


def _written(folder: Path, target: Target) -> list[dict[str, Any]]:
    """The figures of a target's programs so far."""
    path = folder / f"{target.name}.json"
    return json.loads(path.read_text())["programs"] if path.exists() else []


if __name__ == "__main__":
    main(tyro.cli(Options))
