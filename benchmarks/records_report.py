"""Accuracies as a table and as a picture, each beside those that the field quotes."""

from pathlib import Path
from typing import Any

from field import ADULT, MNIST, Quoted
from matplotlib.axes import Axes
from pictures import new_figure, panels, save
from records_rows import LINEAR, ROWS, Row
from trained import Figures, between, epsilon, mean

from jaxdp.accounting import rounded_up

HEADINGS = ("data", "ε (PLD)", "ε (RDP)", "test accuracy, last step (range)", "method", "figures from")
_QUOTED = {"MNIST": MNIST, "Adult": ADULT}
_SHOWN = 91, 99.7  # of the picture, in %


def rows(found: dict[str, list[Figures]], search: dict[str, Any] | None = None) -> list[tuple[str, ...]]:
    """The table's rows: of each data set ours and the quoted ones, by epsilon.

    Args:
        found: figures of each row.
        search: what benchmarks/search.py wrote, if it has.
    """
    made: list[tuple[str, ...]] = []
    for data, quoted in _QUOTED.items():
        ours = [
            (epsilon(found[name], "pld"), _line(row, found[name]))
            for name, row in ROWS.items()
            if _shown(row, data) and found.get(name)
        ]
        if search and data == "MNIST":
            ours.append((search["setting"]["epsilon"], _search_line(search)))
        theirs = [(each.epsilon, _quoted_line(data, each)) for each in quoted]
        made += [line for _, line in sorted([*ours, *theirs], key=lambda pair: pair[0])]
    return made


def draw(found: dict[str, list[Figures]], path: Path, record: dict[str, Any] | None = None) -> None:
    """Accuracy on MNIST against epsilon: a curve for each method, with the range over seeds, and the quoted points."""
    figure = new_figure(7.5)
    figure.set_figheight(5)
    axes = panels(figure)
    for method in dict.fromkeys(row.method for row in ROWS.values() if row.data == "MNIST"):
        own = [
            (epsilon(found[name], "pld"), found[name])
            for name, row in ROWS.items()
            if row.method == method and found.get(name)
        ]
        if len(own) > 1:
            _curve(axes, method, sorted(own, key=lambda point: point[0]))
    labels = dict.fromkeys(f"{each.method}, {each.source}" for each in MNIST)
    for label, marker in zip(labels, "sD^vX", strict=True):
        points = [(each.epsilon, 100 * each.accuracy) for each in MNIST if f"{each.method}, {each.source}" == label]
        axes.plot(*zip(*points, strict=True), marker, color="0.45", fillstyle="none", label=label)
    axes.set_xscale("log")
    ticks = [0.1, 0.3, 1, 3, 8]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="ε at δ = 1e-5 (ours: PLD)", ylabel="test accuracy on MNIST (%)", ylim=_SHOWN)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    save(figure, path, record)


def _curve(axes: Axes, method: str, points: list[tuple[float, list[Figures]]]) -> None:
    means = [100 * mean(figures) for _, figures in points]
    ends = [between(figures) for _, figures in points]
    bars = [
        [middle - 100 * low for middle, (low, _) in zip(means, ends, strict=True)],
        [100 * high - middle for middle, (_, high) in zip(means, ends, strict=True)],
    ]
    axes.errorbar(
        [spent for spent, _ in points],
        means,
        yerr=bars,
        markersize=4,
        capsize=3,
        label=f"jaxdp: {method}",
    )


def _shown(row: Row, data: str) -> bool:
    return row.in_table and row.data == data


def _line(row: Row, figures: list[Figures]) -> tuple[str, ...]:
    spent = [rounded_up(epsilon(figures, accountant), 3) for accountant in ("pld", "rdp")]
    return (row.data, *spent, _accuracy(figures), row.method, f"jaxdp, {len(figures)} seeds")


def _accuracy(figures: list[Figures]) -> str:
    low, high = between(figures)
    return f"**{mean(figures):.2%}** ({low:.2%} to {high:.2%})"


def _search_line(search: dict[str, Any]) -> tuple[str, ...]:
    setting = search["setting"]
    figures = [each for each in search["searches"] if each["test_accuracy"] is not None]
    method = f"{LINEAR}, its learning rate and clip norm chosen by {setting['runs']:g} runs or so, which ε pays for"
    spent = rounded_up(setting["epsilon"], 3)
    return ("MNIST", "", spent, _accuracy(figures), method, f"jaxdp, {len(figures)} searches")


def _quoted_line(data: str, quoted: Quoted) -> tuple[str, ...]:
    remark = f"; {quoted.remark}" if quoted.remark else ""
    return (
        data,
        f"{quoted.epsilon:g} as quoted",
        "",
        f"{quoted.accuracy:.1%}",
        quoted.method,
        f"{quoted.source}{remark}",
    )
