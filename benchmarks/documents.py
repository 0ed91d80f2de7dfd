"""Put figures of records, comparison, compilers and scaling into the documents, from files under benchmarks/results: no table is
typed.

    python benchmarks/documents.py
"""

import json
import statistics
from pathlib import Path
from typing import Any

import clipping
import compiler_report
import records_report
import scaling_report
import start
import throughput_report as report
from cells import Cell
from libraries import LIBRARIES, WORKLOADS, batch_size_of
from record import short
from records_rows import measured, searched

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = ("CPU", "GPU", "TPU")
COMPARISONS = tuple(f"throughput{each}.json" for each in ("", "-fast", "-part", "-fast-part"))  # the fullest first
PEERS = tuple(name for name in LIBRARIES if name != "jaxdp")


def main() -> None:
    """Replace what stands between the marks."""
    for name in TABLES:
        path = ROOT / name
        path.write_text(replaced(path.read_text(), name))


def replaced(text: str, document: str) -> str:
    """A document with the tables of all results in their places."""
    for name, made in TABLES[document].items():
        begin, end = f"<!-- {name}: written by benchmarks/documents.py -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = f"{before}{begin}\n\n{made()}\n\n{end}{after}"
    return text


def results() -> str:
    """Our own accuracies, which need no column of whose they are."""
    own = [[row[:-1] for row in rows if row[-1].startswith("jaxdp")] for rows in _of_devices()]
    return "\n\n".join(report.markdown(records_report.HEADINGS[:-1], rows) for rows in own)


def records() -> str:
    """Accuracies, ours and those that are quoted."""
    return "\n\n".join(report.markdown(records_report.HEADINGS, rows) for rows in _of_devices())


def _of_devices() -> list[list[tuple[str, ...]]]:
    """The rows of records of each device on which some were measured."""
    found = sorted(RESULTS.glob("*/records.json"))
    return [records_report.rows(measured(path), searched(path)) for path in found]


def compilers() -> str:
    """What compilers expect of programs on accelerators that weren't at hand."""
    return report.markdown(compiler_report.HEADINGS, compiler_report.rows(RESULTS / "compilers"))


def scaling() -> str:
    """What a pod's compiler expects of whole steps on it."""
    return report.markdown(scaling_report.HEADINGS, scaling_report.rows(RESULTS / "compilers"))


def starting() -> str:
    """How long commands take to answer."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/start.json"))]
    rows = [
        (f"`{name}`", f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}")
        for each in found
        for name, seconds in each["seconds"].items()
    ]
    return report.markdown(("command", "seconds, median", "range"), rows)


def weights() -> str:
    """What each dependency costs."""
    packages = json.loads(next(RESULTS.glob("*/start.json")).read_text())["packages"]
    rows = sorted(start.charged(packages).items(), key=lambda each: -each[1][1])
    total = f"{len(packages)} packages, {sum(each['bytes'] for each in packages.values()) / 1e6:,.0f} MB in all."
    shown = [(name, f"{size:.1f}", str(count), f"{seconds:.2f}") for name, (seconds, size, count) in rows]
    return f"{total}\n\n" + report.markdown(("dependency", "MB", "packages", "seconds to import, alone"), shown)


def throughput() -> str:
    """A table for each device that was measured, and the kinds of device that weren't."""
    parts = []
    for kind in KINDS:
        folders = [folder for folder in sorted(RESULTS.iterdir()) if _kind(folder) == kind]
        parts += [_table(path) for folder in folders for path in _fullest(folder)] or [
            f"{kind}: not timed, none was at hand; what its compiler expects stands below."
        ]
    return "\n\n".join(parts)


def timed() -> str:
    """Private steps on each accelerator that was at hand."""
    found = [
        (path, json.loads(path.read_text()))
        for name in ("clipping.json", "clipping-earlier.json")  # time on an accelerator ends before the models do
        for path in sorted(RESULTS.glob(f"*/{name}"))
        if _kind(path.parent) != "CPU"
    ]
    return "\n\n".join(
        f"{record['processor']}, JAX {record['versions']['jax']}, commit {short(record['commit'])}:\n\n"
        f"{report.markdown(clipping.HEADINGS, clipping.rows(record))}\n\n"
        f"![Clipped gradients and private steps over plain ones](../{path.with_suffix('.png').relative_to(ROOT)})"
        for path, record in found
    )


def _kind(folder: Path) -> str:
    """Of the device that a folder is named after; GPUs have names of many kinds."""
    return next((kind for kind in ("CPU", "TPU") if folder.name.startswith(kind.lower())), "GPU")


def _fullest(folder: Path) -> list[Path]:
    """The fullest comparison that a device has; none where it has none."""
    return [path for name in COMPARISONS if (path := folder / name).exists()][:1]


def _table(path: Path) -> str:
    record, cells = report.read(path)
    is_part = path.stem.endswith("-part")
    keys = report.keys(cells) if is_part else [(workload, batch_size_of(workload)) for workload in WORKLOADS]
    headings = ("workload (batch)", "jaxdp, examples/s", *(f"{peer}: fastest mode, its tutorial's" for peer in PEERS))
    rows = []
    for key in keys:
        ours = report.best(cells, key, "jaxdp")
        rate = f"{key[1] / ours.median('step'):,.0f}" if ours else "not measured"
        rows.append([f"{key[0]} ({key[1]})", rate, *(_peer(cells, key, peer) for peer in PEERS)])
    folder = path.parent.relative_to(ROOT)
    return (
        f"{record['processor']}, {record['threads']} cores, products in {report.PRODUCTS[record['precision']]}, commit "
        f"{short(record['commit'])}; how many times as fast as each peer "
        f"jaxdp takes whole private steps:\n\n{report.markdown(headings, rows)}\n\n"
        f"![Examples a second, by library and model](../{folder}/{path.stem}.png)\n\n"
        f"[All figures](../{folder}/{path.stem}.md): modes, non-private steps, clipped gradients alone, compilation, memory, "
        "epochs."
    )


def _peer(cells: list[Cell], key: tuple[str, int], peer: str) -> str:
    fastest, taught = report.best(cells, key, peer), report.tutorial(cells, key, peer)
    if fastest is None:
        return _why_not(cells, key, peer)
    said = f"{_times(cells, fastest)} ({fastest.mode})"
    return said if taught in (fastest, None) else f"{said}, {_times(cells, taught)}"


def _why_not(cells: list[Cell], key: tuple[str, int], peer: str) -> str:
    problems = [cell.problem for cell in cells if (cell.workload, cell.batch_size, cell.library) == (*key, peer)]
    return problems[0] if problems else "not measured"


def _times(cells: list[Cell], cell: Any) -> str:
    ratio = report.times_faster(cells, cell)
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}"


TABLES = {
    "README.md": {"results": results},
    "docs/dependencies.md": {"start": starting, "weights": weights},
    "docs/benchmarks.md": {
        "records": records,
        "throughput": throughput,
        "timed": timed,
        "compilers": compilers,
        "scaling": scaling,
    },
}

if __name__ == "__main__":
    main()
