"""Figures for pictures of results. matplotlib is imported once one is drawn: numbers alone do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of 100 dots per inch that `savefig` writes as a PNG, on machines without a screen too.

    Args:
        width: Inches.
        height: Inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # pragma: no cover
        raise ImportError("plots need matplotlib, of the extra `bench`") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
