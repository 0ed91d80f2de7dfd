"""Pictures without a window: figures in colours that the colour-blind tell apart, and a PNG written all or nothing."""

from pathlib import Path
from typing import Any

from .._outputs import written

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")  # of Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # so that nothing is told by its colour alone


def new_figure(width: float) -> Any:
    """An empty matplotlib figure of `width` inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Any, *shape: int, **how: Any) -> Any:
    """`figure.subplots(*shape, **how)`, whose lines differ in colour and in marker."""
    import matplotlib
    from cycler import cycler

    cycle = cycler(color=COLORS) + cycler(marker=MARKERS)
    with matplotlib.rc_context({"axes.prop_cycle": cycle, "lines.markersize": 4}):
        return figure.subplots(*shape, **how)


def save_figure(figure: Any, path: Path) -> None:
    """Write the picture, all or nothing, its texts as they are: a file may be called `$a$`, which is no formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with written(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
