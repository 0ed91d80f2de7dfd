"""What compilers expect of programs on accelerators, as tables and as a picture: estimates, and called so wherever they stand."""

import json
from pathlib import Path
from typing import Any

from pictures import Dot, dots, new_figure, panels, save
from programs import PLAIN_GRADIENTS, PRIVATE_STEP, reference_of
from rich.table import Table
from targets import TARGETS, Target

Figures = dict[str, Any]
HEADINGS = ("target", "workload (batch)", "clipped", "clipped, vmap", "whole private step", "noise alone", "from")
_CLIPPED = ("clipped, ghost", "clipped, vmap")


def amount(figures: Figures) -> float:
    """What programs of a target are compared by: cycles of a TPU, seconds of a GPU's roofline."""
    return figures["cycles"] if figures.get("cycles") else figures["roofline_seconds"]


def ratio(found: list[Figures], program: str) -> float | None:
    """A program over the faster of those it is compared with, of one workload; None where either is missing."""
    own = {each["program"]: amount(each) for each in found}
    references = [own[name] for name in reference_of(program) if name in own]
    return own[program] / min(references) if program in own and references else None


def table(target: Target, found: list[Figures]) -> Table:
    """All figures of one workload."""
    by = "cycles" if target.device == "tpu" else "roofline µs"
    title = f"{found[0]['workload']}, B {found[0]['batch_size']}, on {target.name} by its compiler's estimate"
    made = Table(
        *(
            "program",
            by,
            "ratio",
            "kernels",
            "products (full float32)",
            "MiB moved",
            "MiB temporary",
            "collectives",
            "compile s",
        ),
        title=title,
    )
    for each in found:
        over = ratio(found, each["program"])
        cycles = f"{each['cycles']:,}" if each["cycles"] else f"{1e6 * each['roofline_seconds']:.1f}"
        made.add_row(
            each["program"],
            f"{cycles}{' and unknown loops' if each['unknown_loops'] else ''}",
            f"{over:.2f}" if over is not None else "",
            f"{each['kernels']:,}",
            f"{each['products']} ({each['products_in_full_float32']})",
            f"{each['bytes'] / 2**20:,.1f}" if each.get("bytes") else "",
            f"{each['temporary_bytes'] / 2**20:,.1f}",
            str(each["collectives"]),
            f"{each['compile_seconds']:.1f}",
        )
    return made


def rows(folder: Path) -> list[tuple[str, ...]]:
    """The documents' table: each workload of each target that was compiled for, as ratios."""
    return [_row(target, found) for target, workloads in _read(folder) for found in workloads]


def draw(folder: Path) -> None:
    """Ratios of the clipped gradient and of the private step, a panel for each target: compilers.png in the folder."""
    read = _read(folder)
    if not read:
        return
    figure = new_figure(10)
    figure.set_figheight(2.8 * len(read))
    every = panels(figure, len(read), 1, squeeze=False)[:, 0]
    for axes, (target, workloads) in zip(every, read, strict=True):
        names = [found[0]["workload"].replace("-", "-\n") for found in workloads]
        dots(
            axes,
            names,
            {program: [_dot(found, program) for found in workloads] for program in (*_CLIPPED, PRIVATE_STEP)},
        )
        axes.axhline(1, color="black", linewidth=0.8)
        by = "cycles" if target.device == "tpu" else "roofline"
        axes.set(
            yscale="log",
            ylabel=f"{by}, over plain",
            title=f"{target.name}: its compiler's estimate, nothing timed ({workloads[0][0]['compiler']})",
        )
        axes.margins(y=0.2)
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    save(figure, folder / "compilers.png")


def _dot(found: list[Figures], program: str) -> Dot | None:
    value = ratio(found, program)
    return None if value is None else Dot(value, value, value, _short(value))


def _read(folder: Path) -> list[tuple[Target, list[list[Figures]]]]:
    """Of each target that was compiled for, the figures of each workload."""
    found = []
    for name, target in TARGETS.items():
        path = folder / f"{name}.json"
        if path.exists():
            programs = json.loads(path.read_text())["programs"]
            workloads = dict.fromkeys(each["workload"] for each in programs)
            found.append((target, [[each for each in programs if each["workload"] == one] for one in workloads]))
    return found


def _row(target: Target, found: list[Figures]) -> tuple[str, ...]:
    noise = next((each for each in found if each["program"] == "noise alone"), None)
    plain = [amount(each) for each in found if each["program"] in PLAIN_GRADIENTS]
    return (
        target.name,
        f"{found[0]['workload']} ({found[0]['batch_size']})",
        *(_short(ratio(found, program)) for program in (*_CLIPPED, PRIVATE_STEP)),
        _short(amount(noise) / min(plain) if noise and plain else None),
        found[0]["compiler"],
    )


def _short(ratio: float | None) -> str:
    if ratio is None or ratio != ratio:
        return ""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"
