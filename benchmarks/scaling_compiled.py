"""How whole steps scale with the devices of a pod that isn't here, by the estimate of its compiler: scaling.py's --target.

The private step is compiled as a run does it, and a plain one that does the same but clip and add noise, for each layout of data
and parameters (meshes.py) on 4, 16 and 256 devices: with a batch for each device that stays the same (weak scaling), and for the
MLP with one that they share (strong scaling). NOTHING IS TIMED. The compiler says how many cycles a device computes, how much
memory it sets aside, and which operations between devices there are; it makes no estimate of how long these take, so that their
bytes are told instead. Prints tables and writes them, with a picture, to benchmarks/results/compilers/.
"""

import sys
from pathlib import Path

import record
import scaling_report as report
from compiler_process import compiled_by
from meshes import LAYOUTS
from peers.environments import COMPILERS, UnavailableError, python_of
from rich.console import Console
from scaling_report import Figures
from targets import TARGETS, Target

WORKLOADS = ("mlp", "transformer-28")
_EACH = {"mlp": 256, "transformer-28": 64}  # examples a device, where the batch grows with them
_SHARED = {"mlp": 4096}  # examples of all devices, where it doesn't
_NUM_EXAMPLES = 2**18
_BY_ROWS = ("mlp",)  # whose data a device wouldn't keep by itself as its steps read them: both would copy all of them
_SCRIPT, _FOLDER = Path(__file__).with_name("compile_scaling.py"), "compilers"
_COLUMNS = 140  # of a log


def main(
    targets: tuple[str, ...], workloads: tuple[str, ...], layouts: tuple[str, ...], results: Path, *, quick: bool
) -> None:
    """Compile, print and write; what was found for other workloads and layouts stays.

    Args:
        targets: what to compile for.
        workloads: which models.
        layouts: of data and parameters.
        results: where to write.
        quick: the smallest topology alone.
    """
    _check(targets, workloads, layouts)
    console, failed = Console(width=max(Console().width, _COLUMNS)), False
    for target in (TARGETS[name] for name in targets):
        try:
            with console.status(f"{target.name}: its compiler's environment (made once)"):
                python = python_of(COMPILERS, target.device)
        except UnavailableError as error:
            sys.exit(f"{target.name}: {error}")
        name = f"{report.NAME}{target.name}{'-quick' * quick}"
        for workload in workloads:
            for layout in layouts:
                found = _compiled(python, target, workload, layout, console, quick=quick)
                whole = [key for key in report.keys_of(found) if report.trio(found, key)]
                failed |= len(whole) < len(_asked(target, workload, quick=quick))
                if found:
                    _keep(results, name, target, found)
                    console.print(report.table(target, found))
                    console.print(report.between_devices(target, found))
        report.draw(results / _FOLDER / f"{name}.json")
        console.print(f"written to {results / _FOLDER / name}.json and .png", soft_wrap=True)
    if failed:
        sys.exit("not everything could be compiled; what could is written")


def _check(targets: tuple[str, ...], workloads: tuple[str, ...], layouts: tuple[str, ...]) -> None:
    known = [name for name, target in TARGETS.items() if target.pods]
    if unknown := [name for name in targets if name not in known]:
        sys.exit(f"there is no pod of {', '.join(unknown)} to compile for: choose of {', '.join(known)}")
    if unknown := [name for name in workloads if name not in _EACH]:
        sys.exit(f"there is no step of {', '.join(unknown)} to compile: choose of {', '.join(_EACH)}")
    if unknown := [name for name in layouts if name not in LAYOUTS]:
        sys.exit(f"there is no layout {', '.join(unknown)}: choose of {', '.join(LAYOUTS)}")


def _compiled(
    python: Path, target: Target, workload: str, layout: str, console: Console, *, quick: bool
) -> list[Figures]:
    """The figures of all programs of one workload in one layout, on each topology."""
    found = []
    for topology, scaling, batch_size in _asked(target, workload, quick=quick):
        asked = {"target": target.name, "name": workload, "topology": topology, "layout": layout}
        asked |= {"batch_size": batch_size, "num_examples": _NUM_EXAMPLES, "by_rows": workload in _BY_ROWS}
        title = f"{topology}, {workload}, {layout}, B {batch_size}"
        known = {"scaling": scaling, "commit": record.commit()}
        figures, _ = compiled_by(python, _SCRIPT, asked, console, title)
        found += [known | each for each in figures]
    return found


def _asked(target: Target, workload: str, *, quick: bool) -> list[tuple[str, str, int]]:
    """Topology, kind of scaling and batch size of each pair of steps."""
    asked = []
    for topology in target.pods[: 1 if quick else None]:
        sides = topology.split(":")[1].split("x")
        weak = int(sides[0]) * int(sides[1]) * _EACH[workload]
        asked.append((topology, "weak", weak))
        if _SHARED.get(workload) not in (None, weak):
            asked.append((topology, "strong", _SHARED[workload]))
    return asked


def _keep(results: Path, name: str, target: Target, found: list[Figures]) -> None:
    """Write what was found beside what there is of other workloads and layouts."""
    path = results / _FOLDER / f"{name}.json"
    before = report.read(path) if path.exists() else []
    new = {(each["workload"], each["layout"]) for each in found}
    programs = [each for each in before if (each["workload"], each["layout"]) not in new] + found
    order = lambda each: (list(_EACH).index(each["workload"]), list(LAYOUTS).index(each["layout"]))
    content = {"estimated_by": "a compiler; nothing was measured", "programs": sorted(programs, key=order)}
    record.write(results, name, content, record.Device(_FOLDER, target.kind))
