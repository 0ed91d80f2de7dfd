"""How things scale: with devices, batch size, parameters, and teachers.

    python benchmarks/scaling.py                             # all five, under 12 minutes on two quiet cores
    python benchmarks/scaling.py --parts batch parameters
    python benchmarks/scaling.py --quick                     # small sizes, under a minute
    python benchmarks/scaling.py --target tpu-v5e            # whole steps on pods that aren't here, by their compiler's estimate

Devices: teachers (`jaxdp.pate.train_teachers`), and steps of DP-SGD beside those of jax-privacy and Opacus, each in its own
environment. Where there is one device, the host's processor is divided into as many as are asked for: that shows that the program
divides and what dividing costs, but adds no core, so it can't gain more than the cores allow. Batch sizes and parameters are
measured on one, by the programs of clipping.py. There a clipped gradient goes in microbatches, so a plain one in microbatches
stands beside it. Teachers: more of them on the same records make as many steps in all, so a flat line is the best there is.

Medians are reported. `train_teachers` compiles its program in every call, which is told apart. Prints a table for each part, and
writes scaling.json and scaling.png, with the hardware, the versions and the command, to benchmarks/results/DEVICE/; chosen parts
and quick runs get names of their own.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import clipping
import jax
import offices
import record
import scaling_compiled
import scaling_libraries
import tyro
import workloads
from forced_devices import devices_here, environment_with, said_by
from pictures import new_figure, panels, save
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jaxdp

Name = Literal["devices", "steps", "batch", "parameters", "teachers"]
Row = dict[str, Any]

MLP_BATCH = 256
COMPILING = "/jax/core/compile/backend_compile_duration"
IN_WORDS = {
    "plain": "plain gradient",
    "plain, in parts": "plain gradient, in microbatches",
    "clipped": "clipped gradient",
    "plain step": "whole plain step",
    "private step": "whole private step",
    "as it comes": "train_teachers, as it comes",
    "vmap over all": "one vmap over all teachers",
}
GRADIENTS = {
    "plain": "gradient, batched",
    "plain, in parts": "gradient, microbatched",
    "clipped": "clipped, auto",
    "plain step": "whole step, plain",
    "private step": "whole step, private",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How things scale."""

    parts: tuple[Name, ...] = ("devices", "steps", "batch", "parameters", "teachers")
    """what to vary"""
    repeats: int | None = None
    """measurements of each training of teachers, a fourth of those of each gradient and step; by default 3, with --quick 1"""
    quick: bool = False
    """small sizes, to see that it works"""
    target: tuple[str, ...] = ()
    """accelerators to compile whole steps for, instead of measuring anything: tpu-v5e; see scaling_compiled.py"""
    workloads: tuple[str, ...] = scaling_compiled.WORKLOADS
    """which models are compiled, with --target"""
    layouts: tuple[str, ...] = tuple(scaling_compiled.LAYOUTS)
    """of data and parameters, with --target"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


@dataclass(frozen=True)
class Sizes:
    """What the parts vary, and on how much."""

    devices: tuple[int, ...] = (1, 2, 4, 8)
    batch_sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    teachers: tuple[int, ...] = (10, 25, 50, 100, 250)
    teachers_on_devices: int = 48
    records: int = 60_000
    epochs: int = 2
    repeats: int = 3


QUICK = Sizes((1, 2), (64, 128), (64, 512), (10, 40), 16, records=9600, epochs=1, repeats=1)


def main(options: Options) -> None:
    """Measure, print and write, part by part; or compile."""
    if options.target:
        scaling_compiled.main(options.target, options.workloads, options.layouts, options.results, quick=options.quick)
        return
    sizes, console = _sizes(options), Console()
    measured: dict[str, list[Row]] = {}
    for name in [name for name in PARTS if name in options.parts]:
        measured[name] = PARTS[name].measure(sizes)
        _print(console, PARTS[name], measured[name])
    chosen = [] if len(measured) == len(PARTS) else list(measured)
    file = "-".join(["scaling", *chosen, *["quick"] * options.quick])
    sized = {"sizes": asdict(sizes), "cores": os.cpu_count()}
    folder = record.write(options.results, file, sized | {"parts": measured})
    draw(json.loads((folder / f"{file}.json").read_text()), folder / f"{file}.png")
    console.print(f"written to {folder / file}.json and .png", soft_wrap=True)


def _sizes(options: Options) -> Sizes:
    """What was asked for; refuses what can't be measured, before anything is."""
    if not options.parts:
        sys.exit(f"--parts names no part: give some of {', '.join(PARTS)}, or leave it out for all")
    sizes = QUICK if options.quick else Sizes()
    if options.repeats is None:
        return sizes
    if options.repeats < 1:
        sys.exit(f"--repeats {options.repeats} leaves nothing to take a median of: give 1 or more")
    return replace(sizes, repeats=options.repeats)


# Devices: each number of them in a process of its own, since JAX counts them once, when it starts.


def _by_devices(sizes: Sizes) -> list[Row]:
    platform, available = devices_here()
    several = platform == "gpu" and available > 1
    counts = [count for count in sizes.devices if not several or count <= available]
    task = json.dumps(asdict(sizes))
    rows = []
    for count in _tracked("devices", counts):
        environment = environment_with(count, forced=not several)
        said = said_by([sys.executable, __file__, "worker", str(count), task], environment)
        rows += [row | {"forced": not several} for row in json.loads(said.splitlines()[-1])]
    for row in rows:
        alone = next(one for one in rows if one["way"] == row["way"])
        row["speedup"] = alone["training_seconds"] / row["training_seconds"]
    return rows


def worker(count: int, sizes: Sizes) -> None:
    """Train teachers in this process, on as many devices as it was to have; prints rows for `_by_devices` to read."""
    if jax.device_count() != count:
        sys.exit(
            f"JAX has {jax.device_count()} devices where {count} were asked for: unset XLA_FLAGS and JAX_NUM_CPU_DEVICES"
        )
    teachers = sizes.teachers_on_devices
    ways = {"as it comes": None, "vmap over all": teachers}
    rows = [
        {"devices": count, "way": way, "teachers": teachers} | _measured_teachers(sizes, teachers, at_once)
        for way, at_once in ways.items()
    ]
    print(json.dumps(rows))


def _draw_devices(axis: Any, rows: list[Row]) -> None:
    for way, own in _grouped(rows, "way").items():
        axis.plot([row["devices"] for row in own], [row["speedup"] for row in own], label=IN_WORDS[way])
    most = os.cpu_count() or 1
    if rows[0]["forced"]:
        axis.axhline(most, linestyle="--", linewidth=1, color="gray", label=f"cores of this host: {most}")
    axis.set(xlabel=f"devices{' (forced on one host)' * rows[0]['forced']}", ylabel="speed of training, one device = 1")
    _powers_of_two(axis, [row["devices"] for row in rows])
    axis.set_ylim(bottom=0)


# Batch sizes and parameters: the programs of clipping.py, on one device.


def _by_batch(sizes: Sizes) -> list[Row]:
    rows = []
    for size in _tracked("batch sizes", sizes.batch_sizes):
        rows += _measured_gradients(workloads.cnn(size), sizes.repeats)
    return rows


def _by_parameters(sizes: Sizes) -> list[Row]:
    rows = []
    for width in _tracked("widths", sizes.widths):
        rows += [{"width": width} | row for row in _measured_gradients(workloads.mlp(MLP_BATCH, width), sizes.repeats)]
    return rows


def _measured_gradients(workload: workloads.Workload, repeats: int) -> list[Row]:
    """The plain, clipped and whole programs on one batch, interleaved; each with its ratio to its plain counterpart."""
    variants = clipping.measure(clipping.Options(pairs=4 * repeats, methods=("auto",)), workload)
    by_name = {variant.name: variant for variant in variants}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(workload.params))
    rows = []
    for program, name in GRADIENTS.items():
        if name not in by_name:  # the whole batch is one microbatch
            continue
        variant, plain = by_name[name], clipping.reference(variants, name)
        row = {"program": program, "batch_size": workload.batch_size, "parameters": parameters}
        times = {"median_milliseconds": variant.median, "ratio": variant.median / plain.median}
        memory = {
            "temporary_mib": variant.temporary_mib,
            "memory_ratio": _over(variant.temporary_mib, plain.temporary_mib),
        }
        rows.append(row | times | memory | {"milliseconds": variant.milliseconds})
    return rows


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _draw_batch(axis: Any, rows: list[Row]) -> None:
    for program, own in _grouped(rows, "program").items():
        each = [1e3 * row["median_milliseconds"] / row["batch_size"] for row in own]
        style = "--" if program.startswith("plain") else "-"
        axis.plot([row["batch_size"] for row in own], each, linestyle=style, label=IN_WORDS[program])
    axis.set(xlabel="batch size of the tutorials' CNN (one device)", ylabel="time an example (µs)")
    _powers_of_two(axis, [row["batch_size"] for row in rows])
    axis.set_ylim(bottom=0)


def _draw_parameters(axis: Any, rows: list[Row]) -> None:
    memory = axis.twinx()
    for program, own in _grouped(rows, "program").items():
        if program in ("plain", "clipped"):
            parameters = [row["parameters"] for row in own]
            (line,) = axis.loglog(parameters, [row["median_milliseconds"] for row in own], label=IN_WORDS[program])
            mebibytes = [row["temporary_mib"] for row in own]
            how = {"linestyle": ":", "marker": line.get_marker(), "fillstyle": "none", "color": line.get_color()}
            memory.loglog(parameters, mebibytes, **how)
            axis.plot([], [], **how, label=f"{IN_WORDS[program]}: memory, on the right")
    memory.set_ylabel("temporary memory (MiB)")
    counts = sorted({row["parameters"] for row in rows})
    axis.set_xticks(counts, [f"{count / 1e6:.2g} M" for count in counts])
    axis.minorticks_off()
    axis.set(xlabel=f"parameters of an MLP (one device, B = {MLP_BATCH})", ylabel="time of a gradient (ms)")


# Teachers: more of them on the same records.


def _by_teachers(sizes: Sizes) -> list[Row]:
    rows = []
    for teachers in _tracked("teachers", sizes.teachers):
        row = {"teachers": teachers, "records_each": sizes.records // teachers}
        rows.append(row | _measured_teachers(sizes, teachers, None))
    for row in rows:
        row["ratio"] = row["training_seconds"] / rows[0]["training_seconds"]
    return rows


def _measured_teachers(sizes: Sizes, teachers: int, at_once: int | None) -> Row:
    """Seconds of training an ensemble, the compiler's apart; the model is that of offices.py."""
    data = jaxdp.data.load()
    records = data.train_images[: sizes.records], data.train_labels[: sizes.records]
    times = [_seconds(lambda: offices.trained(records, teachers, sizes.epochs, at_once)) for _ in range(sizes.repeats)]
    return {
        "median_seconds": statistics.median(total for total, _ in times),
        "compiling_seconds": statistics.median(compiling for _, compiling in times),
        "training_seconds": statistics.median(total - compiling for total, compiling in times),
        "seconds": [total for total, _ in times],
    }


def _seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Of a call, and of the compiler within it."""
    compiling = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILING:
            compiling.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    run()
    total = time.perf_counter() - start
    jax.monitoring.unregister_event_duration_listener(listen)
    return total, sum(compiling)


def _draw_teachers(axis: Any, rows: list[Row]) -> None:
    for name, label in (("median_seconds", "a call of train_teachers"), ("training_seconds", "without compilation")):
        axis.plot([row["teachers"] for row in rows], [row[name] for row in rows], label=label)
    axis.set(xlabel="teachers on the same records", ylabel="time (s)", xscale="log")
    axis.set_xticks([row["teachers"] for row in rows], [str(row["teachers"]) for row in rows])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)


# What a person sees.


@dataclass(frozen=True)
class Part:
    """One thing that is varied: how it is measured, what its table shows, how its panel is drawn."""

    heading: str  # of its panel
    title: str  # of its table
    measure: Callable[[Sizes], list[Row]]
    columns: dict[str, tuple[str, str]]  # heading: a row's entry, and its format
    draw: Callable[[Any, list[Row]], None]
    note: str


PROGRAM = {"program": ("program", ""), "ms": ("median_milliseconds", ".2f"), "ratio": ("ratio", ".2f")}
MEMORY = {"temp. MiB": ("temporary_mib", ".1f"), "its ratio": ("memory_ratio", ".2f")}
TEACHERS = {
    "seconds": ("median_seconds", ".2f"),
    "compiling": ("compiling_seconds", ".2f"),
    "training": ("training_seconds", ".2f"),
}
PARTS: dict[str, Part] = {
    "devices": Part(
        "by devices",
        "train_teachers by devices",
        _by_devices,
        {"devices": ("devices", "d"), "way": ("way", "")} | TEACHERS | {"speed": ("speedup", ".2f")},
        _draw_devices,
        "As it comes, one CPU device trains one teacher a call and a call a core, so that it fills the cores already; "
        "several train one teacher each.",
    ),
    "steps": Part(
        "a step by devices",
        f"a private step of the MLP, B = {scaling_libraries.BATCH}, by forced devices of one host, or processes",
        lambda sizes: scaling_libraries.by_devices(sizes.devices, 8 * sizes.repeats),
        scaling_libraries.COLUMNS,
        scaling_libraries.draw,
        "Opacus (ghost clipping) has a process for each; jax-privacy a batch divided under jit, whole or in microbatches, as is "
        "faster. The host has no more cores for more devices. Ratios are a library's time over jaxdp's on as many.",
    ),
    "batch": Part(
        "by batch",
        "the tutorials' CNN by batch size, on one device",
        _by_batch,
        {"batch": ("batch_size", "d")} | PROGRAM | MEMORY,
        _draw_batch,
        'Plain and clipped are gradients; "in parts" is the plain one in microbatches. Ratios are to the faster plain gradient '
        "of the whole batch, and to the plain step.",
    ),
    "parameters": Part(
        "by parameters",
        f"an MLP of two hidden layers by width, B = {MLP_BATCH}, on one device",
        _by_parameters,
        {"width": ("width", "d"), "parameters": ("parameters", ",d")} | PROGRAM | MEMORY,
        _draw_parameters,
        "Temporary memory is what the compiler sets aside, without arguments and results.",
    ),
    "teachers": Part(
        "by teachers",
        "train_teachers by teachers, on the same records",
        _by_teachers,
        {"teachers": ("teachers", "d"), "records each": ("records_each", "d")} | TEACHERS | {"ratio": ("ratio", ".2f")},
        _draw_teachers,
        "All teachers together make as many steps in every row, but for what does not fill a last batch.",
    ),
}


def _print(console: Console, part: Part, rows: list[Row]) -> None:
    table = Table(title=part.title)
    for heading, (entry, _) in part.columns.items():
        table.add_column(heading, justify="left" if isinstance(rows[0][entry], str) else "right")
    first = next(iter(part.columns.values()))[0]
    for group in _grouped(rows, first).values():
        for row in group:
            table.add_row(*(format(row[entry], style) for entry, style in part.columns.values()))
        if len(group) > 1:
            table.add_section()
    console.print(table)
    console.print(part.note, highlight=False)


def draw(found: dict[str, Any], path: Path) -> None:
    """A panel for each part, two in a line."""
    measured: dict[str, list[Row]] = found["parts"]
    columns = min(2, len(measured))
    lines = -(-len(measured) // columns)
    figure = new_figure(5.5 * columns)
    figure.set_figheight(4 * lines)
    axes = panels(figure, lines, columns, squeeze=False).flat
    for (name, rows), axis in zip(measured.items(), axes, strict=False):
        PARTS[name].draw(axis, rows)
        axis.set_title(PARTS[name].heading)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.remove()
    save(figure, path, found)


def _powers_of_two(axis: Any, values: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(set(values)), [str(value) for value in sorted(set(values))])


def _grouped(rows: list[Row], entry: str) -> dict[Any, list[Row]]:
    """Rows by an entry, in the order of its first appearance."""
    return {value: [row for row in rows if row[entry] == value] for value in dict.fromkeys(row[entry] for row in rows)}


def _tracked(what: str, values: Any) -> Any:
    return track(values, description=what, console=Console(stderr=True))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "worker":
        worker(int(sys.argv[2]), Sizes(**json.loads(sys.argv[3])))
    else:
        main(tyro.cli(Options))
