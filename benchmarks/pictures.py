"""What the benchmarks' pictures have in common, and all of them drawn again from the committed figures.

python benchmarks/pictures.py
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from record import short

from jaxdp._outputs import written
from jaxdp.runs._pictures import COLORS as COLORS, new_figure as new_figure, panels as panels

RESULTS = Path(__file__).parent / "results"


class Dot(NamedTuple):
    """A figure with its range, and what is written above it."""

    value: float
    least: float
    most: float
    text: str = ""


def dots(axes: Any, names: Sequence[str], series: dict[str, Sequence[Dot | None]]) -> None:
    """Figures by name, a dot with its range for each of a series: on an axis of logarithms no bar has a beginning.

    Args:
        axes: of matplotlib.
        names: below the groups.
        series: by what the legend calls it, a dot for each name, or None where there is none.
    """
    width = 0.8 / len(series)
    for i, (label, found) in enumerate(series.items()):
        there = [(k + (i - (len(series) - 1) / 2) * width, dot) for k, dot in enumerate(found) if dot is not None]
        at, values = [place for place, _ in there], [dot.value for _, dot in there]
        ranges = [[dot.value - dot.least for _, dot in there], [dot.most - dot.value for _, dot in there]]
        axes.errorbar(at, values, yerr=ranges, linestyle="none", markersize=6, capsize=2, label=label)
        below = i % 2 == 1  # so that what is written above neighbours has room
        for place, dot in there:
            at_end, offset = (dot.least, (0, -5)) if below else (dot.most, (0, 5))
            how = {"ha": "center", "va": "top" if below else "bottom", "fontsize": 7}
            axes.annotate(dot.text, (place, at_end), xytext=offset, textcoords="offset points", **how)
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_xlim(-0.5, len(names) - 0.5)
    for k in range(1, len(names)):
        axes.axvline(k - 0.5, color="0.9", linewidth=0.8, zorder=0)
    axes.grid(alpha=0.3, axis="y")


def save(figure: Any, path: Path, record: dict[str, Any] | None = None) -> None:
    """Write the picture, with what it was measured on, and of which commit, below it, where a record says so."""
    said = "" if record is None else _measured_on(record)
    figure.canvas.draw()
    figure.set_layout_engine("none")  # it has laid everything out, and the caption goes below that
    bottom = figure.get_tightbbox().y0 / figure.get_figheight()
    figure.text(0.995, bottom - 0.01, said, fontsize=7, color="0.35", ha="right", va="top")
    with written(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png", bbox_inches="tight")


def _measured_on(record: dict[str, Any]) -> str:
    processor = record.get("processor") or record["machine"]
    return f"{processor}, {record['device']}; JAX {record['versions']['jax']}, commit {short(record['commit'])}"


def main() -> None:
    """Draw."""
    import audit
    import clipping
    import compiler_report
    import offices
    import records_report
    import scaling
    import scaling_report
    import throughput_report
    from records_rows import measured

    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        for path in sorted(folder.glob("*.json")):
            found = json.loads(path.read_text())
            if path.stem.startswith("throughput"):
                throughput_report.write(path)
            elif path.stem == "records":
                records_report.draw(measured(path), path.with_suffix(".png"), found)
            elif path.stem == "audit":
                audit.draw(found, path.with_suffix(".png"))
            elif path.stem == "offices":
                offices.draw(found, path.with_suffix(".png"))
            elif path.stem in ("clipping", "clipping-sweep"):
                clipping.draw(found, path.with_suffix(".png"), sweep=path.stem.endswith("sweep"))
            elif path.stem in ("scaling", "scaling-steps"):
                scaling.draw(found, path.with_suffix(".png"))
            elif path.stem.startswith(scaling_report.NAME):
                scaling_report.draw(path)
            else:
                continue
            print(f"{path.with_suffix('.png').relative_to(RESULTS)}")
        if folder.name == "compilers":
            compiler_report.draw(folder)
            print("compilers/compilers.png")


if __name__ == "__main__":
    sys.exit(main())
