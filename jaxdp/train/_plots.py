"""`metrics.png`: loss, accuracy and epsilon by epoch."""

from pathlib import Path
from typing import Any


def plot_metrics(records: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the recorded epochs to a PNG.

    Args:
        records: lines of metrics.jsonl.
        title: what was trained, and how.
        path: where to write the picture, all or nothing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    epochs = [record["epoch"] for record in records]
    private = bool(records) and records[-1]["epsilon"] is not None
    figure = Figure(figsize=(12 if private else 8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3 if private else 2)
    for axis, name, unit in ((axes[0], "loss", "cross-entropy (nats)"), (axes[1], "accuracy", "accuracy (%)")):
        scale = 100 if name == "accuracy" else 1
        for split, style in (("train", "--"), ("test", "-")):
            values = [scale * record[f"{split}_{name}"] for record in records]
            axis.plot(epochs, values, style, marker="o", markersize=3, label=split)
        axis.set_ylabel(unit)
        axis.legend(frameon=False)
    if private:
        axes[2].plot(epochs, [record["epsilon"] for record in records], "-", marker="o", markersize=3, color="tab:red")
        axes[2].set_ylabel(f"ε at δ = {records[-1]['delta']:g} (RDP)")
        axes[2].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
