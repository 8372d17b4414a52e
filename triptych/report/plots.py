"""Drawings as SVG that takes its ink from the page, so that it reads by day and by night, on a phone and on a wall."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from triptych.evaluation.retrieval import CUTS, Retrieval, chance
from triptych.report.layouts import Points, Square

INK = "#010203"  # no other line has this colour: in the page it becomes the colour of the text
COLOUR = {"image": "#3b82d6", "audio": "#e0721d", "text": "#2f9e63"}
SERIES = ("#3b82d6", "#e0721d", "#2f9e63", "#b553c9", "#c94f5a", "#8a7f2c", "#1c9aa8", "#7d6be0")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "triptych",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
FAINT = 0.01  # a share below this is not drawn
BINS = ((1, 1), (2, 5), (6, 10), (11, 50), (51, 100), (101, None))


@contextmanager
def _drawing(width: float = 3.6, height: float = 2.5) -> Iterator[tuple[Figure, Axes]]:
    """A figure of our own: no window, no state that outlives it."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure, figure.add_subplot()


def svg(figure: Figure, name: str, said: str) -> str:
    """A figure as an SVG element with a text for those who do not see it; ids are its own."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(said, quote=True)}">'
    text = opening + text[text.index(">") + 1 :]
    return re.sub(r">\s+<", "><", text).strip()


def curves(history: Sequence[Mapping[str, Any]], names: Sequence[str], name: str, title: str, said: str) -> str:
    """Some logged numbers over the epochs."""
    with _drawing(3.6, 2.4 + 0.16 * (len(names) if len(names) > 1 else 0)) as (figure, axes):
        for i, key in enumerate(names):
            points = [(entry.get("epoch", n), entry[key]) for n, entry in enumerate(history, 1) if key in entry]
            x, y = zip(*points, strict=True)
            shown = key.partition(".")[0] if key.endswith(".temperature") else key
            axes.plot(x, y, color=SERIES[i % len(SERIES)], linewidth=1.6, marker="o", markersize=2.5, label=shown)
        axes.set_xlabel("epoch")
        axes.set_title(title)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(names) > 1:
            figure.legend(loc="outside lower left", ncols=1 if max(map(len, names)) > 24 else 2, fontsize=8)
        return svg(figure, name, said)


def recalls(directions: Sequence[Retrieval], name: str, said: str) -> str:
    """Recall at 1, 5 and 10 of every direction with intervals, and chance as a tick."""
    shades = ("#1d5fa8", "#3b82d6", "#8ab8ee")
    with _drawing(4.6, 0.62 * len(directions) + 1.0) as (figure, axes):
        for row, d in enumerate(directions):
            for i, k in enumerate(CUTS):
                y, value, chance = row + 0.24 * (i - 1), 100 * d.recall[k], 100 * d.chance[k]
                found = d.interval.get(f"R@{k}")
                if found:
                    axes.plot([100 * found.low, 100 * found.high], [y, y], color=shades[i], linewidth=2, zorder=2)
                label = f"R@{k}, 95% interval" if row == 0 else None
                axes.plot([value], [y], "o", color=shades[i], markersize=5.5, label=label, zorder=3)
                mark = "chance" if row == 0 and i == 0 else None
                axes.plot([chance], [y], "|", color=INK, markersize=7, label=mark)
        axes.set_yticks(range(len(directions)), [f"{d.query} → {d.gallery}" for d in directions])
        axes.set_ylim(len(directions) - 0.5, -0.5)
        axes.set_xlim(-2, 102)
        axes.set_xlabel("% of queries")
        axes.grid(axis="x")
        figure.legend(loc="outside lower center", ncols=2)
        return svg(figure, name, said)


def ranks(direction: Retrieval, name: str, said: str) -> str:
    """How many queries have their best right answer first, 2nd to 5th, and so on; what guessing gives as an outline."""
    assert direction.each is not None  # noqa: S101 - whoever draws ranks has measured them query by query
    rank, items = direction.each.rank, direction.items
    bins = [(low, min(high or items, items)) for low, high in BINS if low <= items]
    shares = [100 * float(((rank >= low) & (rank <= high)).mean()) for low, high in bins]
    guessed = [100 * share for share in guessed_shares(items, direction.each.right, bins)]
    with _drawing(3.6, 2.2) as (figure, axes):
        axes.bar(range(len(bins)), shares, width=0.78, color=COLOUR[direction.gallery])
        axes.bar(range(len(bins)), guessed, width=0.78, fill=False, edgecolor=INK, linewidth=1.1, linestyle=(0, (2, 2)))
        axes.set_xticks(range(len(bins)), [_between(low, high, items) for low, high in bins])
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(f"{direction.query} → {direction.gallery}")
        axes.set_ylabel("% of queries")
        axes.set_ylim(0, max(100.0 if max(shares) > 60 else 0, 1.15 * max(*shares, *guessed)))
        return svg(figure, name, said)


def _between(low: int, high: int, items: int) -> str:
    """A span of ranks in few letters."""
    return f"{low}" if low == high else f"{low}+" if high == items else f"{low}–{high}"


def guessed_shares(items: int, right: NDArray, bins: Sequence[tuple[int, int]]) -> list[float]:
    """How often a random order has the best of `right` answers between two ranks."""
    kinds, times = np.unique(right, return_counts=True)

    def within(k: int) -> float:
        return float(np.average([chance(items, int(r), k) for r in kinds], weights=times)) if k else 0.0

    return [within(high) - within(low - 1) for low, high in bins]


def scatter(points: Points, name: str, said: str, lines: bool = True, middles: bool = False) -> str:
    """Items coloured by modality; lines join what belongs together, crosses mark the middle of each modality."""
    with _drawing(4.6, 4.2) as (figure, axes):
        if lines:
            joined = [points.places[points.group == g] for g in np.unique(points.group)]
            ends = [(some[i], some[j]) for some in joined for i in range(len(some)) for j in range(i)]
            axes.add_collection(LineCollection(ends, colors=INK, linewidths=0.5, alpha=0.18, rasterized=False))
        kinds = np.array(points.modality)
        for modality in dict.fromkeys(points.modality):
            own = points.places[kinds == modality]
            axes.scatter(own[:, 0], own[:, 1], s=14, color=COLOUR[modality], alpha=0.8, linewidths=0, label=modality)
        for modality in dict.fromkeys(points.modality) if middles else ():
            x, y = points.places[kinds == modality].mean(0)
            axes.plot([x], [y], "P", color=COLOUR[modality], markersize=13, markeredgecolor=INK, markeredgewidth=1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.set_aspect("equal", adjustable="datalim")
        figure.legend(loc="outside lower center", ncols=3)
        return svg(figure, name, said)


def square(values: NDArray, title: str, said: str) -> str:
    """A small matrix of shares: the fuller a cell, the more of its row is there; right answers are outlined."""
    n, step, top = len(values), 10, 16
    cells = [f'<rect y="{top}" width="{n * step}" height="{n * step}" fill="currentColor" fill-opacity="0.05"/>']
    for i in range(n):
        for j in range(n):
            if values[i, j] >= FAINT:
                place = f'x="{j * step}" y="{top + i * step}" width="{step}" height="{step}"'
                cells.append(f'<rect {place} fill="{SERIES[0]}" fill-opacity="{min(1.0, values[i, j]):.2f}"/>')
        inside = f'x="{i * step + 0.5}" y="{top + i * step + 0.5}" width="{step - 1}" height="{step - 1}"'
        cells.append(f'<rect {inside} fill="none" stroke="{SERIES[1]}"/>')
    # Written by hand: hundreds of rectangles take matplotlib longer than all other drawings together.
    opening = f'<svg viewBox="0 0 {n * step} {n * step + top}" role="img" aria-label="{escape(said, quote=True)}">'
    words = f'<text y="10" font-size="10" fill="currentColor">{escape(title)}</text>'
    return f"{opening}{words}{''.join(cells)}</svg>"


def matches(found: Square) -> tuple[str, str]:
    """Softmax and plan of one pair of modalities, side by side."""
    n = len(found.softmax)
    first = int((found.softmax.argmax(1) == np.arange(n)).sum())
    both = int((found.plan.argmax(1) == np.arange(n)).sum())
    said = f"{found.a} against {found.b}, {n} of each: "
    return (
        square(found.softmax, f"softmax: {first} of {n} right", f"{said}softmax, {first} of {n} right"),
        square(found.plan, f"transport: {both} of {n} right", f"{said}transport plan, {both} of {n} right"),
    )
