"""Plots that several studies share."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BAR_COLOUR, GRID_ALPHA = "#1f77b4", 0.3
STYLES = ("o-", "s--", "^-", "D--", "v-", "p--")
LABELLED_RATIO = 100.0  # minor ticks of a logarithmic axis have numbers up to this ratio of the limits of the axis
MAX_MARKED_POINTS = 20  # lines with more points have no markers


def draw_bars(axes: Axes, values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a horizontal bar for the mean of each method, the best on top, and a dot for each value."""
    order = sorted(values, key=lambda name: float(np.mean(values[name])))
    axes.barh(order, [float(np.mean(values[name])) for name in order], color=BAR_COLOUR, alpha=0.55)
    for position, name in enumerate(order):
        axes.plot(values[name], [position] * len(values[name]), "o", color="black", markersize=3)
    seeds = max(map(len, values.values()))
    axes.set_xlabel(f"{label}; dots: seeds" if seeds > 1 else label)
    axes.grid(axis="x", alpha=GRID_ALPHA)
    axes.set_axisbelow(True)


def draw_lines(
    axes: Axes,
    series: Mapping[str, Mapping[float, float]],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    title: str = "",
) -> None:
    """Draw a line for each method."""
    for index, (name, points) in enumerate(series.items()):
        # Every second line is dashed, so that overlapping lines are visible.
        marker_size = 3.5 if len(points) <= MAX_MARKED_POINTS else 0
        axes.plot(list(points), list(points.values()), STYLES[index % len(STYLES)], markersize=marker_size, label=name)
    if log_x:
        ticks = sorted({x for points in series.values() for x in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,.3g}" if tick < 1 else f"{tick:,.0f}" for tick in ticks], fontsize=8)
        axes.minorticks_off()
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=GRID_ALPHA)


def set_log_y(axes: Axes) -> None:
    """Use a logarithmic y axis with plain numbers."""
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
    low, high = axes.get_ylim()
    if high > LABELLED_RATIO * low:
        axes.yaxis.set_minor_formatter(lambda _value, _: "")
    axes.tick_params(axis="y", which="both", labelsize=8)


def add_legend(figure: Figure) -> None:
    """Add one legend for all axes, which show the same methods."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=8)
