"""What clipped gradients cost: time, peak memory and compilation, by workload and method, against ordinary gradients.

    python benchmarks/clipping.py                            # every workload, every method
    python benchmarks/clipping.py --workloads mlp lstm --pairs 5
    python benchmarks/clipping.py --sweep                    # time against batch size, and memory by microbatch

The denominator is the faster of two non-private gradients of the same model and batch: of the batch's mean loss, and of the
per-example loss under `vmap`. Beside them stands the non-private gradient in microbatches as large as those of "auto", since
on a CPU a part of the speed is theirs. All are compiled as `make_step` has its steps compiled. All methods of a workload run
interleaved in one process; medians are reported. Prints a table, and writes it with a plot, the hardware, the versions and the
command to benchmarks/results/DEVICE/. A part of this, where the whole was measured before, goes to clipping-part.json.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import record
import tyro
from matplotlib.ticker import NullFormatter
from pictures import Dot, dots, new_figure, panels, save
from programs import PRIVATE_STEP, programs_of, reference_of
from rich.console import Console
from rich.progress import track
from rich.table import Table
from workloads import WORKLOADS, Workload

import jaxdp
from jaxdp._platform import compiler_options
from jaxdp.jaxprs import for_cpus
from jaxdp.runs._device import in_words, memory_of

HEADINGS = (
    "workload (batch)",
    "plain step, ms",
    "private step, ms",
    "whole private step",
    "clipped gradient",
    "temporary memory, MiB: plain gradient, clipped",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What clipped gradients cost."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    """which models to measure"""
    pairs: int = 20
    """interleaved measurements of each method"""
    methods: tuple[str, ...] = ("auto", "ghost", "vmap")
    """how gradients are clipped"""
    sweep: bool = False
    """measure time against batch size and memory against microbatch size instead"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


@dataclass
class Variant:
    """One program on one workload, with what was measured of it."""

    workload: str
    name: str
    batch_size: int
    compile_seconds: float
    temporary_mib: float
    milliseconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Milliseconds a call."""
        return statistics.median(self.milliseconds)


def main(options: Options) -> None:
    """Measure, print, write."""
    if unknown := set(options.workloads) - set(WORKLOADS):
        sys.exit(f"unknown workloads {sorted(unknown)}; known: {', '.join(WORKLOADS)}")
    if options.pairs < 2:
        sys.exit(f"--pairs is {options.pairs}: give at least 2, whose spread is drawn")
    if options.sweep:
        _write(options, "clipping-sweep", _sweep(options))
        return
    variants = []
    for name in track(options.workloads, description="workloads", console=Console(stderr=True)):
        variants += measure(options, WORKLOADS[name]())
        _print([v for v in variants if v.workload == name])
        _write(options, "clipping", variants)


def measure(options: Options, workload: Workload) -> list[Variant]:
    """All programs of a workload, interleaved."""
    params, batch = workload.params, workload.batch
    programs = programs_of(workload, options.methods)
    auto = jaxdp.clipped_grad(workload.loss, clip_norm=1.0)
    rows = auto.usual_microbatch_size(auto.trace(params, batch, (), None), params, workload.batch_size)
    if rows < workload.batch_size and workload.batch_size % rows == 0:
        programs["gradient, microbatched"] = _microbatched(programs["gradient, vmapped"], rows)
    compiled, variants = [], []
    for name, program in programs.items():
        if found := _compile(workload, name, program, params, batch):
            compiled.append(found[0])
            variants.append(found[1])
    for pair in range(options.pairs):
        for call, variant in zip(compiled, variants, strict=True):
            if pair >= 3 and variant.median > 1000 and variant.name in ("clipped, ghost", "clipped, vmap"):
                continue  # their ratios need no more digits
            start = time.perf_counter()
            jax.block_until_ready(call(params, batch))
            variant.milliseconds.append(1e3 * (time.perf_counter() - start))
    return variants


def _microbatched(gradient: Callable[..., Any], rows: int) -> Callable[..., Any]:
    """The mean of the gradients of slices, its convolutions put in order as those of the clipped one are."""

    def mean(params: Any, batch: Any) -> Any:
        slices = jax.tree.map(lambda leaf: leaf.reshape(-1, rows, *leaf.shape[1:]), batch)
        step = lambda total, part: (
            jax.tree.map(jnp.add, total, for_cpus(gradient, params, part)),
            None,
        )
        total, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), slices)
        return jax.tree.map(lambda leaf: leaf * (rows / jax.tree.leaves(batch)[0].shape[0]), total)

    return mean


def _compile(workload: Workload, name: str, program: Any, params: Any, batch: Any) -> tuple[Any, Variant] | None:
    """The program, run once; None, with a line, for one that the device hasn't the memory for, by the compiler's figure.

    Compiling isn't timed (NaN) where a cache may have answered.
    """
    cache: Any = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    start = time.perf_counter()
    compiled = jax.jit(program).lower(params, batch).compile(compiler_options=compiler_options())
    seconds = float("nan") if cache else time.perf_counter() - start
    analysis, room = compiled.memory_analysis(), memory_of(jax.devices()[0])
    memory = analysis.temp_size_in_bytes / 2**20 if analysis else float("nan")
    if room is not None and memory * 2**20 > room:
        has = f"{in_words(jax.devices()[0])} has {room / 2**30:,.1f}"
        print(f"{workload.name}, {name}: needs {memory / 2**10:,.1f} GiB, and {has}: left out", file=sys.stderr)
        return None
    jax.block_until_ready(compiled(params, batch))
    return compiled, Variant(workload.name, name, workload.batch_size, seconds, memory)


def _sweep(options: Options) -> list[Variant]:
    variants = []
    for name in options.workloads:
        for size in (16, 32, 64, 128, 256, 512, 1024, 2048):
            workload = WORKLOADS[name](size)
            for microbatch in (None, 64):
                program = jaxdp.clipped_grad(workload.loss, clip_norm=1.0, microbatch_size=microbatch)
                title = "clipped" if microbatch is None else f"clipped, microbatch {microbatch}"
                found = _compile(workload, title, program, workload.params, workload.batch)
                if found is None:
                    continue
                call, variant = found
                for repeat in range(21):
                    if repeat >= 5 and sum(variant.milliseconds) > 4000:
                        break
                    start = time.perf_counter()
                    jax.block_until_ready(call(workload.params, workload.batch))
                    variant.milliseconds.append(1e3 * (time.perf_counter() - start))
                variants.append(variant)
        table = Table("batch", "program", "ms", "µs an example", "temporary MiB", title=name)
        for v in variants:
            if v.workload == name:
                each = 1e3 * v.median / v.batch_size
                table.add_row(str(v.batch_size), v.name, f"{v.median:.2f}", f"{each:.1f}", f"{v.temporary_mib:.1f}")
        Console().print(table)
    return variants


def reference(variants: list[Variant], name: str) -> Variant:
    """What a program is compared with: the faster plain step, or the faster plain gradient."""
    return min((v for v in variants if v.name in reference_of(name)), key=lambda v: v.median)


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The documents' table: each workload's steps, and what "auto" costs over what is not private."""
    variants = _variants(found)
    return [_row([v for v in variants if v.workload == name]) for name in dict.fromkeys(v.workload for v in variants)]


def _row(variants: list[Variant]) -> tuple[str, ...]:
    by_name = {v.name: v for v in variants}
    private, clipped = (by_name[name] for name in (PRIVATE_STEP, "clipped, auto"))
    plain, gradient = (reference(variants, each.name) for each in (private, clipped))
    return (
        f"{plain.workload} ({plain.batch_size})",
        f"{plain.median:.2f}",
        f"{private.median:.2f}",
        f"{private.median / plain.median:.2f}",
        f"{clipped.median / gradient.median:.2f}",
        f"{gradient.temporary_mib:.1f}, {clipped.temporary_mib:.1f}",
    )


def _variants(found: dict[str, Any]) -> list[Variant]:
    """As a file of results has them."""
    return [Variant(**{each.name: row[each.name] for each in fields(Variant)}) for row in found["variants"]]


def _print(variants: list[Variant]) -> None:
    first = variants[0]
    table = Table(
        "program", "ms", "ratio", "temporary MiB", "compile s", title=f"{first.workload}, B {first.batch_size}"
    )
    for v in variants:
        ratio = v.median / reference(variants, v.name).median
        table.add_row(v.name, f"{v.median:.2f}", f"{ratio:.2f}", f"{v.temporary_mib:.1f}", f"{v.compile_seconds:.1f}")
    Console().print(table)


def _is_part(options: Options, variants: list[Variant]) -> bool:
    usual = Options()
    fewer_programs = not set(usual.methods) <= set(options.methods) or options.pairs < usual.pairs
    return fewer_programs or not set(usual.workloads) <= {v.workload for v in variants}


def _write(options: Options, name: str, variants: list[Variant]) -> None:
    rows = [asdict(v) | {"median_milliseconds": v.median} for v in variants]
    is_part = not options.sweep and _is_part(options, variants)
    path = record.write_part_or_whole(options.results, name, {"variants": rows}, is_part=is_part)
    draw(json.loads(path.read_text()), path.with_suffix(".png"), sweep=options.sweep)
    print(f"written to {path.parent}")


def draw(found: dict[str, Any], path: Path, *, sweep: bool) -> None:
    """Times by batch size, or over the non-private ones."""
    variants = _variants(found)
    figure = new_figure(11)
    figure.set_figheight(4.5)
    axes = panels(figure)
    if sweep:
        for key in dict.fromkeys((v.workload, v.name) for v in variants):
            own = [v for v in variants if (v.workload, v.name) == key]
            axes.loglog([v.batch_size for v in own], [v.median for v in own], label=", ".join(key))
        axes.set(xlabel="batch size (examples)", ylabel="time of a clipped gradient (ms)")
        axes.grid(alpha=0.3)
    else:
        names = list(dict.fromkeys(v.workload for v in variants))
        shown = [n for n in dict.fromkeys(v.name for v in variants) if n.startswith("clipped") or n.endswith("private")]
        dots(axes, names, {title: [_dot(variants, name, title) for name in names] for title in shown})
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(yscale="log", ylabel="time, relative to the non-private one (middle half)")
        axes.margins(y=0.12)
        least, most = axes.get_ylim()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}" if most < 10 * least else NullFormatter())
    axes.legend(fontsize=8)
    save(figure, path, found)


def _dot(variants: list[Variant], workload: str, program: str) -> Dot | None:
    own = [v for v in variants if v.workload == workload]
    one = next((v for v in own if v.name == program), None)  # none that was left out
    if one is None:
        return None
    over = reference(own, program).median
    least, _, most = statistics.quantiles(one.milliseconds, n=4)
    ratio = one.median / over
    return Dot(
        ratio, min(ratio, least / over), max(ratio, most / over), f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
