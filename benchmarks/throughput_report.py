"""The comparison as Markdown and as a picture, from its JSON file.

python benchmarks/throughput_report.py benchmarks/results/DEVICE/throughput.json    # writes both beside it, again
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cells import Cell
from libraries import LIBRARIES
from pictures import Dot, dots, new_figure, panels, save
from record import short

HEADINGS = (
    "library",
    "mode",
    "private step, examples/s (range)",
    "jaxdp is faster by",
    "of its non-private step's time",
    "clipped gradient, examples/s",
    "jaxdp is faster by",
    "first step (s)",
    "peak memory (MiB)",
    "differs by",
)
PRODUCTS = {"float32": "float32", "fast": "TF32 or bfloat16"}


def read(path: Path) -> tuple[dict[str, Any], list[Cell]]:
    """A file of results, and its cells."""
    record = json.loads(path.read_text())
    return record, [_cell(each) for each in record["cells"]]


def write(path: Path) -> str:
    """Write PATH's tables beside it, and a picture where something was timed; returns the tables."""
    record, cells = read(path)
    text = _tables(record, cells)
    path.with_suffix(".md").write_text(text)
    if any(cell.seconds for cell in cells):
        _draw(cells, path.with_suffix(".png"), record)
    return text


def keys(cells: list[Cell]) -> list[tuple[str, int]]:
    """Workloads with batch sizes, in the order measured."""
    return list(dict.fromkeys((cell.workload, cell.batch_size) for cell in cells))


def best(cells: list[Cell], key: tuple[str, int], library: str, *, plain: bool = False) -> Cell | None:
    """A library's fastest mode, by the whole step."""
    own = [c for c in _of(cells, key, library) if c.is_plain == plain and not c.problem]
    return min(own, key=lambda cell: cell.median("step"), default=None)


def tutorial(cells: list[Cell], key: tuple[str, int], library: str) -> Cell | None:
    """The mode of a library's tutorials, where it was measured."""
    mode = LIBRARIES[library].tutorial_mode(key[0])
    return next((cell for cell in _of(cells, key, library) if cell.mode == mode and not cell.problem), None)


def times_faster(cells: list[Cell], cell: Cell, program: str = "step") -> float:
    """How many times as fast jaxdp's best is as a cell, on the same batch; NaN where it wasn't measured."""
    ours = best(cells, (cell.workload, cell.batch_size), "jaxdp")
    return cell.median(program) / ours.median(program) if ours else math.nan


def markdown(headings: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(saved: dict[str, Any]) -> Cell:
    return Cell(**{field.name: saved[field.name] for field in fields(Cell)})


def _of(cells: list[Cell], key: tuple[str, int], library: str) -> list[Cell]:
    return [cell for cell in cells if (cell.workload, cell.batch_size, cell.library) == (*key, library)]


def _tables(record: dict[str, Any], cells: list[Cell]) -> str:
    libraries = list(dict.fromkeys(cell.library for cell in cells))
    libraries_of: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        for name, version in cell.versions.items():
            whose = libraries_of.setdefault(name, {}).setdefault(version, [])
            whose += [cell.library] if cell.library not in whose else []
    versions = {
        name: ", ".join(each if len(own) == 1 else f"{each} ({', '.join(whose)})" for each, whose in own.items())
        for name, own in libraries_of.items()
    }
    parts = [
        "# Throughput, side by side",
        f"`{' '.join(record['command'])}` on {record['processor']} ({record['device']}), {record['threads']} threads, "
        f"products in {PRODUCTS[record['precision']]}, commit {short(record['commit'])}, "
        f"{record['minutes']:.0f} minutes{'' if record['finished'] else ', then broken off'}. Versions: "
        + ", ".join(f"{n} {v}" for n, v in sorted(versions.items()))
        + ".",
        "Each library's fastest mode, its tutorials' mode where that is another, and its fastest step without privacy; medians "
        "of all calls, in brackets from the slowest to the fastest. The peak is that of the device, or on a CPU of the whole "
        "process, its libraries and compiler included. Optax and jax-privacy have JAX's own non-private step, which is jaxdp's "
        "row. At further batch sizes of a workload only the modes that were fastest at its first were tried.",
    ]
    for key in keys(cells):
        parts += [f"## {key[0]}, B = {key[1]}", _table(cells, key, libraries), _left_out(cells, key)]
    parts += [_epochs(cells), _largest(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(cells: list[Cell], key: tuple[str, int], libraries: list[str]) -> str:
    rows = []
    for library in libraries:
        shown = [best(cells, key, library), tutorial(cells, key, library), best(cells, key, library, plain=True)]
        has_own = any(cell.is_plain and cell.library == library for cell in cells)
        plain = shown[2] if has_own else best(cells, key, "jaxdp", plain=True)
        for cell in dict.fromkeys(map(id, filter(None, shown))):
            rows.append(_row(cells, next(c for c in shown if id(c) == cell), plain))
    return markdown(HEADINGS, rows)


def _row(cells: list[Cell], cell: Any, plain: Cell | None) -> list[str]:
    size, steps = cell.batch_size, cell.seconds["step"]
    compared = not cell.is_plain and cell.library != "jaxdp"
    clipped = "clipped" in cell.seconds  # of a step of seconds, it isn't timed on its own
    return [
        cell.library,
        cell.mode,
        f"{size / cell.median('step'):,.0f} ({size / max(steps):,.0f} to {size / min(steps):,.0f})",
        f"{times_faster(cells, cell):.2f}" if compared else "",
        f"{cell.median('step') / plain.median('step'):.2f}" if plain and not cell.is_plain else "",
        f"{size / cell.median('clipped'):,.0f}{', not clipped' if cell.is_plain else ''}" if clipped else "not timed",
        f"{times_faster(cells, cell, 'clipped'):.2f}" if compared and clipped else "",
        f"{cell.first_seconds['step']:.1f}",
        f"{cell.peak_bytes / 2**20:,.0f}",
        f"{cell.difference:.0e}",
    ]


def _left_out(cells: list[Cell], key: tuple[str, int]) -> str:
    """The modes that are slower than those shown, and those that weren't timed."""
    lines = []
    for cell in cells:
        if (cell.workload, cell.batch_size) != key:
            continue
        if cell.problem:
            lines.append(f"- {cell.library}, {cell.mode}: {cell.problem}: {cell.reason}")
        elif cell not in (
            best(cells, key, cell.library),
            tutorial(cells, key, cell.library),
            best(cells, key, cell.library, plain=True),
        ):
            lines.append(f"- {cell.library}, {cell.mode}: {key[1] / cell.median('step'):,.0f} examples/s")
    return "Tried as well:\n\n" + "\n".join(lines) if lines else ""


def _epochs(cells: list[Cell]) -> str:
    rows = []
    for cell in cells:
        if not cell.epoch_steps:
            continue
        whole = 60_000 // cell.batch_size
        seconds = cell.epoch_seconds * whole / cell.epoch_steps
        measured = "" if cell.epoch_steps == whole else f"{cell.epoch_steps} steps, extrapolated to {whole}"
        rows.append([cell.library, cell.mode, f"{seconds:.1f}", f"{cell.first_seconds['step']:.1f}", measured])
    if not rows:
        return ""
    headings = ("library", "mode", "an epoch (s)", "before it, once: compilation (s)", "measured")
    said = (
        "From arrays in host memory to parameters. jaxdp draws Poisson batches, of which every epoch has as many as the others "
        "have slices; the others are fed slices of shuffled arrays, the fastest way there is."
    )
    return f"## An epoch of MNIST with the CNN\n\n{said}\n\n{markdown(headings, rows)}"


def _largest(record: dict[str, Any]) -> str:
    if not record["largest"]:
        return ""
    rows = []
    for cell in map(_cell, record["largest"]):
        size = f"{cell.batch_size:,}" if cell.batch_size else "none above the usual"
        then = f"{cell.problem}: {cell.reason}" if cell.problem else "not tried"
        rows.append([cell.workload, cell.library, cell.mode, size, f"{cell.peak_bytes / 2**20:,.0f}", then])
    where = "the device's memory" if record["device"][:3] != "cpu" else f"a process of {record['fit_memory']:g} GiB"
    headings = ("workload", "library", "mode", "batch", "peak memory (MiB)", "the next larger one")
    return f"## The largest batch, of powers of two to 32,768, in {where}\n\n{markdown(headings, rows)}"


def _draw(cells: list[Cell], path: Path, record: dict[str, Any]) -> None:
    libraries = list(dict.fromkeys(cell.library for cell in cells))
    sizes = sorted({size for workload, size in keys(cells) if workload == "cnn"})
    figure = new_figure(13)
    figure.set_figheight(4.5)
    of_workloads, of_sizes = panels(figure, 1, 2, width_ratios=(3, 1), sharey=True)
    usual = [key for key in keys(cells) if key[1] == _usual(cells, key[0])]
    names = [f"{workload}\nB = {size}" for workload, size in usual]
    dots(of_workloads, names, {library: [_dot(cells, key, library) for key in usual] for library in libraries})
    of_workloads.set(yscale="log", ylabel="private steps: examples a second")
    of_workloads.set_title(
        "Each library in its fastest mode, with the middle half of its runs; ÷: how many times as fast jaxdp is"
    )
    of_workloads.margins(y=0.12)
    of_workloads.legend(
        fontsize=8, ncols=len(libraries), loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False
    )
    for library in libraries:
        found = [best(cells, ("cnn", size), library) for size in sizes]
        of_sizes.plot(
            sizes, [cell.batch_size / cell.median("step") if cell else math.nan for cell in found], label=library
        )
    of_sizes.set_xscale("log", base=2)
    of_sizes.set(xlabel="batch size", title="cnn, by batch size")
    of_sizes.grid(alpha=0.3)
    save(figure, path, record)


def _dot(cells: list[Cell], key: tuple[str, int], library: str) -> Dot | None:
    cell = best(cells, key, library)
    if cell is None:
        return None
    rates = [cell.batch_size / seconds for seconds in cell.seconds["step"]]
    said = "" if library == "jaxdp" else f"÷{times_faster(cells, cell):.1f}"
    least, middle, most = statistics.quantiles(rates, n=4) if len(rates) > 1 else 3 * rates
    return Dot(middle, least, most, said)


def _usual(cells: list[Cell], workload: str) -> int:
    """The batch size that a workload was first measured at."""
    return next(cell.batch_size for cell in cells if cell.workload == workload)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
