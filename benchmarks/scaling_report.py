"""What a pod's compiler expects of whole steps, as tables and as a picture: estimates, and called so wherever they stand."""

import json
from pathlib import Path
from typing import Any

from meshes import LAYOUTS
from pictures import new_figure, panels, save
from rich.table import Table
from targets import Target

Figures = dict[str, Any]
NAME = "scaling-"  # of files, before the target's
HEADINGS = (
    "model (examples a device)",
    "layout",
    "devices",
    "cycles, private over plain",
    "the same without the draw",
    "MiB between devices: private (plain)",
    "MiB temporary: private (plain)",
    "MiB of parameters and state",
)
_WIDTH = 56  # of a shape in a table


def read(path: Path) -> list[Figures]:
    """All that were written."""
    return json.loads(path.read_text())["programs"]


def keys_of(found: list[Figures]) -> list[tuple[Any, ...]]:
    """Workload, layout, scaling and devices of each pair of steps, in their order."""
    return list(dict.fromkeys(_key(each) for each in found))


def _key(figures: Figures) -> tuple[Any, ...]:
    return tuple(figures[name] for name in ("workload", "layout", "scaling", "devices"))


def trio(found: list[Figures], key: tuple[Any, ...]) -> dict[str, Figures]:
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
    """What a device passes on in a step, but for one part in as many as there are devices; of a loop as for a usual draw.

    To add arrays up on every device is to scatter their sums and to gather them, and is counted twice.
    """
    twice = lambda each: 2 if each["kind"] == "all-reduce" else 1
    return sum(twice(each) * each["bytes"] * each["times"] for each in figures["collectives"])


def table(target: Target, found: list[Figures]) -> Table:
    """All figures of one workload in one layout."""
    first = found[0]
    title = f"{first['workload']}, {LAYOUTS[first['layout']].title}: {target.name} by its compiler's estimate"
    headings = ("batch", "devices", "B (rows)", "draw, cycles", "plain", "private", "ratio", "without draw")
    memory = ("MiB temporary: plain", "private", "MiB between: plain", "private", "compile s: plain", "private")
    made = Table(*headings, *memory, title=title)
    for key in keys_of(found):
        own = trio(found, key)
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


def between_devices(target: Target, found: list[Figures]) -> Table:
    """Each collective of the steps on the most devices, by kind and place, of which there are bytes."""
    key = max(keys_of(found), key=lambda key: (key[2] == "weak", key[3]))
    title = f"between {key[3]} devices of {target.name}, in the compiled text"
    made = Table("step", "collective", "times", "bytes of each run", "asked for by", title=title)
    for program, figures in trio(found, key).items():
        for each in figures["collectives"]:
            shown = each["shape"] if len(each["shape"]) <= _WIDTH else f"{each['shape'][:_WIDTH]} ..."
            times = f"{each['times']}{' a microbatch' if each['in_unknown_loop'] else ''}"
            made.add_row(program, f"{each['kind']} {shown}", times, f"{each['bytes']:,}", each["source"])
    return made


def draw(path: Path) -> None:
    """The ratio of cycles and the memory by devices: a panel for each workload; a picture beside the figures."""
    found = [each for each in read(path) if each["scaling"] == "weak"]
    workloads = list(dict.fromkeys(each["workload"] for each in found))
    counts = sorted({each["devices"] for each in found})
    figure = new_figure(5.5 * len(workloads))
    figure.set_figheight(7)
    each_two = panels(figure, 2, len(workloads), squeeze=False)
    for (top, bottom), workload in zip(each_two.T, workloads, strict=True):
        for layout in LAYOUTS:
            keys = [key for key in keys_of(found) if key[:2] == (workload, layout) and trio(found, key)]
            if not keys:
                continue
            devices, pairs = [key[3] for key in keys], [trio(found, key) for key in keys]
            (line,) = top.plot(devices, [ratio(own) for own in pairs], label=LAYOUTS[layout].title)
            for program, style in (("private", "-"), ("plain", ":")):
                cycles = [own[program]["cycles"] / 1e6 for own in pairs]
                label = program if layout == next(iter(LAYOUTS)) else None  # colours and markers are those above
                bottom.plot(devices, cycles, style, marker=line.get_marker(), color=line.get_color(), label=label)
        each = next(each for each in found if each["workload"] == workload)
        top.set(
            title=f"{workload}, {each['batch_size'] // each['devices']} examples a device",
            ylabel="cycles, private over plain",
        )
        bottom.set(xlabel="devices", ylabel="million cycles of a device")
        for axes in (top, bottom):
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"{path.stem.removeprefix(NAME)} by its compiler's estimate; without the time between devices", fontsize=9
    )
    save(figure, path.with_suffix(".png"))


def rows(folder: Path) -> list[tuple[str, ...]]:
    """The documents' table: each model in each layout, on all numbers of devices, its batch growing with them."""
    made = []
    for path in sorted(folder.glob(f"{NAME}*.json")):
        found = [each for each in read(path) if each["scaling"] == "weak"]
        for workload, layout in dict.fromkeys(key[:2] for key in keys_of(found)):
            keys = [key for key in keys_of(found) if key[:2] == (workload, layout)]
            made.append(_row(path.stem.removeprefix(NAME), [own for key in keys if (own := trio(found, key))]))
    return made


def _row(target: str, trios: list[dict[str, Figures]]) -> tuple[str, ...]:
    """Of one model in one layout: draw, plain and private step on each number of devices."""
    steps = [(own["private"], own["plain"]) for own in trios]
    first = steps[0][0]
    mib = lambda number: f"{number / 2**20:,.1f}"
    both = lambda of: ", ".join(f"{mib(of(private))} ({mib(of(plain))})" for private, plain in steps)
    return (
        f"{first['workload']} ({first['batch_size'] // first['devices']})",
        LAYOUTS[first["layout"]].title,
        f"{', '.join(str(private['devices']) for private, _ in steps)} {target}",
        ", ".join(f"{ratio(own):.2f}" for own in trios),
        ", ".join(f"{ratio_after_draw(own):.2f}" for own in trios),
        both(bytes_between),
        both(lambda figures: figures["temporary_bytes"]),
        ", ".join(mib(private["changing_bytes"]) for private, _ in steps),
    )
