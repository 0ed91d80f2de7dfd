"""Pictures without a window: a figure, and a PNG written all or nothing."""

from pathlib import Path
from typing import Any

from .._outputs import written


def new_figure(width: float) -> Any:
    """An empty matplotlib figure of `width` inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write the picture, all or nothing."""
    with written(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
