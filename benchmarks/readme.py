"""Put figures of records, comparison, compilers and scaling into README, from files under benchmarks/results: no table is typed.

python benchmarks/readme.py
"""

from pathlib import Path
from typing import Any

import compiler_report
import records_report
import scaling_report
import throughput_report as report
from cells import Cell
from libraries import LIBRARIES, WORKLOADS, batch_size_of
from records_rows import measured, searched

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = {"CPU": ("cpu",), "GPU": ("nvidia", "amd"), "TPU": ("tpu",)}  # how their folders' names begin
PEERS = tuple(name for name in LIBRARIES if name != "jaxdp")


def main() -> None:
    """Replace what stands between the marks."""
    path = ROOT / "README.md"
    path.write_text(replaced(path.read_text()))


def replaced(readme: str) -> str:
    """README with the tables of all results in their places."""
    for name, made in (
        ("records", records),
        ("throughput", throughput),
        ("compilers", compilers),
        ("scaling", scaling),
    ):
        begin, end = f"<!-- {name}: written by benchmarks/readme.py -->", f"<!-- end of {name} -->"
        before, rest = readme.split(begin)
        after = rest.split(end)[1]
        readme = f"{before}{begin}\n\n{made()}\n\n{end}{after}"
    return readme


def records() -> str:
    """Accuracies, of each device on which some were measured."""
    found = sorted(RESULTS.glob("*/records.json"))
    made = [records_report.rows(measured(path), searched(path)) for path in found]
    return "\n\n".join(report.markdown(records_report.HEADINGS, rows) for rows in made)


def compilers() -> str:
    """What compilers expect of programs on accelerators that weren't at hand."""
    return report.markdown(compiler_report.HEADINGS, compiler_report.rows(RESULTS / "compilers"))


def scaling() -> str:
    """What a pod's compiler expects of whole steps on it."""
    return report.markdown(scaling_report.HEADINGS, scaling_report.rows(RESULTS / "compilers"))


def throughput() -> str:
    """A table for each device that was measured, and the kinds of device that weren't."""
    parts = []
    for kind, beginnings in KINDS.items():
        found = sorted(RESULTS.glob("*/throughput.json"))
        own = [path for path in found if path.parent.name.startswith(beginnings)]
        parts += [_table(path) for path in own] or [
            f"{kind}: not timed, none was at hand; what its compiler expects stands below."
        ]
    return "\n\n".join(parts)


def _table(path: Path) -> str:
    record, cells = report.read(path)
    headings = ("workload (batch)", "jaxdp, examples/s", *(f"{peer}: fastest mode, its tutorial's" for peer in PEERS))
    rows = []
    for workload in WORKLOADS:
        key = (workload, batch_size_of(workload))
        ours = report.best(cells, key, "jaxdp")
        rate = f"{key[1] / ours.median('step'):,.0f}" if ours else "not measured"
        rows.append([f"{workload} ({key[1]})", rate, *(_peer(cells, key, peer) for peer in PEERS)])
    folder = path.parent.relative_to(ROOT)
    return (
        f"{record['processor']}, {record['threads']} cores, commit {record['commit'][:9]}; how many times as fast as each peer "
        f"jaxdp takes whole private steps:\n\n{report.markdown(headings, rows)}\n\n"
        f"![Examples a second, by library and model]({folder}/throughput.png)\n\n"
        f"[All figures]({folder}/throughput.md): modes, non-private steps, clipped gradients alone, compilation, memory, epochs."
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


if __name__ == "__main__":
    main()
