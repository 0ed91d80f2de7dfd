"""How whole steps scale with the devices of a pod that isn't here, by the estimate of its compiler: scaling.py's --target.

The private step is compiled as a run does it, and a plain one that does the same but clip and add noise, for each layout of data
and parameters (meshes.py) on 4, 16 and 256 devices: with a batch for each device that stays the same (weak scaling), and with
one that they share (strong scaling). NOTHING IS TIMED. The compiler says how many cycles a device computes, how much memory it
sets aside, and which operations between devices there are; it makes no estimate of how long these take, so that their bytes are
told instead. Prints tables and writes them, with a picture, to benchmarks/results/compilers/.
"""

import json
import sys
from pathlib import Path
from typing import Any

import record
from compiler_process import compiled_by
from meshes import LAYOUTS
from peers.environments import COMPILERS, UnavailableError, python_of
from rich.console import Console
from rich.table import Table
from targets import TARGETS, Target

from jaxdp.runs._pictures import new_figure, save_figure

Figures = dict[str, Any]

WORKLOADS = ("mlp", "transformer-28")
_EACH = {"mlp": 256, "transformer-28": 64}  # examples a device, where the batch grows with them
_SHARED = {"mlp": 4096}  # examples of all devices, where it doesn't
_NUM_EXAMPLES = 2**18
_BY_ROWS = ("mlp",)  # whose data a device wouldn't keep by itself as its steps read them: both would copy all of them
_SCRIPT, _FOLDER = Path(__file__).with_name("compile_scaling.py"), "compilers"
_COLUMNS = 140  # of a log


def main(targets: tuple[str, ...], workloads: tuple[str, ...], results: Path, *, quick: bool) -> None:
    """Compile, print and write; what was found for other workloads stays.

    Args:
        targets: what to compile for.
        workloads: which models.
        results: where to write.
        quick: the smallest topology alone.
    """
    _check(targets, workloads)
    console, failed = Console(width=max(Console().width, _COLUMNS)), False
    for target in (TARGETS[name] for name in targets):
        try:
            with console.status(f"{target.name}: its compiler's environment (made once)"):
                python = python_of(COMPILERS, target.device)
        except UnavailableError as error:
            sys.exit(f"{target.name}: {error}")
        name = f"scaling-{target.name}{'-quick' * quick}"
        for workload in workloads:
            for layout in LAYOUTS:
                found = _compiled(python, target, workload, layout, console, quick=quick)
                failed |= not all(pair(found, key) for key in _keys(found)) or not found
                _keep(results, name, target, found)
                console.print(_table(target, found))
                console.print(_between_devices(target, found))
        draw(results / _FOLDER / f"{name}.json")
        console.print(f"written to {results / _FOLDER / name}.json and .png", soft_wrap=True)
    if failed:
        sys.exit("not everything could be compiled; what could is written")


def _check(targets: tuple[str, ...], workloads: tuple[str, ...]) -> None:
    known = [name for name, target in TARGETS.items() if target.pods]
    if unknown := [name for name in targets if name not in known]:
        sys.exit(f"there is no pod of {', '.join(unknown)} to compile for: choose of {', '.join(known)}")
    if unknown := [name for name in workloads if name not in _EACH]:
        sys.exit(f"there is no step of {', '.join(unknown)} to compile: choose of {', '.join(_EACH)}")


def _compiled(
    python: Path, target: Target, workload: str, layout: str, console: Console, *, quick: bool
) -> list[Figures]:
    """The figures of all programs of one workload in one layout, on each topology."""
    found = []
    for topology in target.pods[: 1 if quick else None]:
        sides = topology.split(":")[1].split("x")
        devices = int(sides[0]) * int(sides[1])
        sizes = {"weak": devices * _EACH[workload]} | ({"strong": _SHARED[workload]} if workload in _SHARED else {})
        for scaling, batch_size in sizes.items():
            asked = {"target": target.name, "name": workload, "topology": topology, "layout": layout}
            asked |= {"batch_size": batch_size, "num_examples": _NUM_EXAMPLES, "by_rows": workload in _BY_ROWS}
            title = f"{topology}, {workload}, {layout}, B {batch_size}"
            found += [{"scaling": scaling} | each for each in compiled_by(python, _SCRIPT, asked, console, title)]
    return found


def _keep(results: Path, name: str, target: Target, found: list[Figures]) -> None:
    """Write what was found beside what there is of other workloads and layouts."""
    path = results / _FOLDER / f"{name}.json"
    before = read(path) if path.exists() else []
    new = {(each["workload"], each["layout"]) for each in found}
    programs = [each for each in before if (each["workload"], each["layout"]) not in new] + found
    order = lambda each: (list(_EACH).index(each["workload"]), list(LAYOUTS).index(each["layout"]))
    content = {"estimated_by": "a compiler; nothing was measured", "programs": sorted(programs, key=order)}
    record.write(results, name, content, record.Device(_FOLDER, target.kind))


# What is read of the figures.


def read(path: Path) -> list[Figures]:
    """All that were written."""
    return json.loads(path.read_text())["programs"]


def _keys(found: list[Figures]) -> list[tuple[Any, ...]]:
    """Workload, layout, scaling and devices of each pair of steps, in their order."""
    return list(dict.fromkeys(_key(each) for each in found))


def _key(figures: Figures) -> tuple[Any, ...]:
    return tuple(figures[name] for name in ("workload", "layout", "scaling", "devices"))


def pair(found: list[Figures], key: tuple[Any, ...]) -> dict[str, Figures]:
    """Draw, plain and private step by their names; empty where one of them is missing."""
    own = {each["program"]: each for each in found if _key(each) == key}
    return own if len(own) == 3 else {}


def ratio(own: dict[str, Figures]) -> float:
    """The private step's cycles over the plain one's."""
    return own["private"]["cycles"] / own["plain"]["cycles"]


def ratio_after_draw(own: dict[str, Figures]) -> float:
    """The same without the draw, of which both steps have one."""
    private, plain = (own[program]["cycles"] - own["draw"]["cycles"] for program in ("private", "plain"))
    return private / plain


def bytes_between(figures: Figures) -> int:
    """What all collectives of a step add up, gather or pass on, for each device; of a loop as for a draw of the usual size."""
    return sum(each["bytes"] * each["times"] for each in figures["collectives"])


# What a person sees.


def _table(target: Target, found: list[Figures]) -> Table:
    """All figures of one workload in one layout."""
    first = found[0]
    title = f"{first['workload']}, {LAYOUTS[first['layout']].title}: {target.name} by its compiler's estimate"
    headings = ("batch", "devices", "B (rows)", "draw, cycles", "plain", "private", "ratio", "without draw")
    memory = ("MiB temporary: plain", "private", "MiB between: plain", "private", "compile s: plain", "private")
    made = Table(*headings, *memory, title=title)
    for key in _keys(found):
        own = pair(found, key)
        if not own:
            continue
        draw, plain, private = (own[program] for program in ("draw", "plain", "private"))
        both = (plain, private)
        made.add_row(
            key[2],
            str(key[3]),
            f"{private['batch_size']:,} ({private['rows']:,})",
            *(f"{each['cycles']:,}" for each in (draw, plain, private)),
            f"{ratio(own):.2f}",
            f"{ratio_after_draw(own):.2f}",
            *(f"{each['temporary_bytes'] / 2**20:.1f}" for each in both),
            *(f"{bytes_between(each) / 2**20:.2f}" for each in both),
            *(f"{each['compile_seconds']:.0f}" for each in both),
        )
    return made


def _between_devices(target: Target, found: list[Figures]) -> Table:
    """Each collective of the steps on the most devices, by kind and place, of which there are bytes."""
    key = max(_keys(found), key=lambda key: (key[2] == "weak", key[3]))
    title = f"between {key[3]} devices of {target.name}, in the compiled text"
    made = Table("step", "collective", "times", "bytes of each run", "asked for by", title=title)
    for program, figures in pair(found, key).items():
        for each in figures["collectives"]:
            shown = each["shape"] if len(each["shape"]) < 60 else f"{each['shape'][:56]} ..."
            times = f"{each['times']}{' a microbatch' if each['in_unknown_loop'] else ''}"
            made.add_row(program, f"{each['kind']} {shown}", times, f"{each['bytes']:,}", each["source"])
    return made


def draw(path: Path) -> None:
    """The ratio of cycles and the memory by devices: a panel for each workload; a picture beside the figures."""
    found = [each for each in read(path) if each["scaling"] == "weak"]
    workloads = list(dict.fromkeys(each["workload"] for each in found))
    figure = new_figure(5.5 * len(workloads))
    figure.set_figheight(7)
    panels = figure.subplots(2, len(workloads), squeeze=False)
    for (top, bottom), workload in zip(panels.T, workloads, strict=True):
        for layout in LAYOUTS:
            keys = [key for key in _keys(found) if key[:2] == (workload, layout) and pair(found, key)]
            if not keys:
                continue
            devices, pairs = [key[3] for key in keys], [pair(found, key) for key in keys]
            (line,) = top.plot(devices, [ratio(own) for own in pairs], marker="o", label=layout)
            for program, style in (("private", "-"), ("plain", ":")):
                cycles = [own[program]["cycles"] / 1e6 for own in pairs]
                label = f"{layout}, {program}"
                bottom.plot(devices, cycles, style, marker=".", color=line.get_color(), label=label)
        each = _EACH[workload]
        top.set(title=f"{workload}, {each} examples a device", ylabel="cycles, private over plain")
        bottom.set(xlabel="devices", ylabel="million cycles of a device")
        for axes in (top, bottom):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({each["devices"] for each in found}))
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle("TPU v5e by its compiler's estimate; without the time between devices", fontsize=9)
    save_figure(figure, path.with_suffix(".png"))
