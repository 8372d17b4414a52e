"""Drawings that several studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#1f77b4", 0.3
STYLES = ("o-", "s--", "^-", "D--", "v-", "p--")
MARKED = 20  # points of a line that are few enough to be marked one by one


def bars(axes: Axes, values: Mapping[str, Sequence[float]], label: str) -> None:
    """A bar for each name, best on top: the mean of its values, and every value as a dot."""
    order = sorted(values, key=lambda name: float(np.mean(values[name])))
    axes.barh(order, [float(np.mean(values[name])) for name in order], color=INK, alpha=0.55)
    for place, name in enumerate(order):
        axes.plot(values[name], [place] * len(values[name]), "o", color="black", markersize=3)
    seeds = max(map(len, values.values()))
    axes.set_xlabel(f"{label}; dots: seeds" if seeds > 1 else label)
    axes.grid(axis="x", alpha=GRID)
    axes.set_axisbelow(True)


def lines(
    axes: Axes, series: Mapping[str, Mapping[float, float]], x: str, y: str, *, log: bool = False, title: str = ""
) -> None:
    """A line for each name over a number."""
    for place, (name, points) in enumerate(series.items()):
        # Every second one dashed: a line below another still shows.
        size = 3.5 if len(points) <= MARKED else 0
        axes.plot(list(points), list(points.values()), STYLES[place % len(STYLES)], markersize=size, label=name)
    if log:
        ticks = sorted({x for points in series.values() for x in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,.3g}" if tick < 1 else f"{tick:,.0f}" for tick in ticks], fontsize=8)
        axes.minorticks_off()
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=GRID)


def spread_out(axes: Axes) -> None:
    """A logarithmic y axis, with its numbers written out."""
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
    axes.tick_params(axis="y", which="both", labelsize=8)


def name_lines(figure: Figure) -> None:
    """One legend beside all drawings, which have the same lines."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=8)
