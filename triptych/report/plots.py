"""Draw figures as inline SVG with the text colour of the page, for light and dark mode."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from triptych.evaluation.chance import compute_chance_recall
from triptych.evaluation.retrieval import RECALL_KS, RetrievalResult
from triptych.report.projections import MatchMatrices, Projection

INK = "#010203"  # placeholder colour that figure_to_svg replaces with currentColor
COLOUR = {"image": "#3b82d6", "audio": "#e0721d", "text": "#2f9e63"}
SERIES = ("#3b82d6", "#e0721d", "#2f9e63", "#b553c9", "#c94f5a", "#8a7f2c", "#1c9aa8", "#7d6be0")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "triptych",
    "font.family": "sans-serif",
    "font.size": 10,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.alpha": 0.12,
    "legend.frameon": False,
    "legend.fontsize": 9,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}
MIN_VISIBLE = 0.01  # smaller fractions are not drawn
RANK_BINS = ((1, 1), (2, 5), (6, 10), (11, 50), (51, 100), (101, None))


@contextmanager
def _new_figure(width: float = 3.6, height: float = 2.5) -> Iterator[tuple[Figure, Axes]]:
    """Create a figure without a window and without global state."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure, figure.add_subplot()


def figure_to_svg(figure: Figure, id_prefix: str, alt_text: str) -> Markup:
    """Return a figure as an SVG element with an alternative text. All ids of the SVG start with id_prefix."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    text = re.sub(r'\bid="', f'id="{id_prefix}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{id_prefix}-", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(alt_text)}">'
    text = opening + text[text.index(">") + 1 :]
    return Markup(re.sub(r">\s+<", "><", text).strip())  # noqa: S704 - matplotlib escapes the texts of a figure


def plot_history(history: Sequence[Mapping[str, Any]], keys: Sequence[str], id_prefix: str, title: str) -> Markup:
    """Plot logged values over the epochs."""
    last = ", ".join(f"{key} {next(e[key] for e in reversed(history) if key in e):.3g}" for key in keys)
    alt_text = f"{title} over {len(history)} epochs; final values: {last}"
    with _new_figure(3.6, 2.4 + 0.16 * (len(keys) if len(keys) > 1 else 0)) as (figure, axes):
        for i, key in enumerate(keys):
            points = [(entry.get("epoch", n), entry[key]) for n, entry in enumerate(history, 1) if key in entry]
            x, y = zip(*points, strict=True)
            label = key.partition(".")[0] if key.endswith(".temperature") else key
            axes.plot(x, y, color=SERIES[i % len(SERIES)], linewidth=1.6, marker="o", markersize=2.5, label=label)
        axes.set_xlabel("epoch")
        axes.set_title(title)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(keys) > 1:
            figure.legend(loc="outside lower left", ncols=1 if max(map(len, keys)) > 24 else 2, fontsize=8)
        return figure_to_svg(figure, id_prefix, alt_text)


def plot_recall(directions: Sequence[RetrievalResult], id_prefix: str = "recall") -> Markup:
    """Plot R@1, R@5 and R@10 of every direction as dots, their 95% intervals as bars and chance levels as ticks."""
    alt_text = "Recall at 1, 5 and 10 of every direction with 95% intervals; the table below has the numbers"
    shades = ("#1d5fa8", "#3b82d6", "#8ab8ee")
    with _new_figure(4.6, 0.62 * len(directions) + 1.0) as (figure, axes):
        for row, d in enumerate(directions):
            for i, k in enumerate(RECALL_KS):
                y, value, chance_level = row + 0.24 * (i - 1), 100 * d.recall[k], 100 * d.chance_recall[k]
                interval = d.intervals.get(f"R@{k}")
                if interval:
                    axes.plot([100 * interval.low, 100 * interval.high], [y, y], color=shades[i], linewidth=2, zorder=2)
                label = f"R@{k}, 95% interval" if row == 0 else None
                axes.plot([value], [y], "o", color=shades[i], markersize=5.5, label=label, zorder=3)
                mark = "chance" if row == 0 and i == 0 else None
                axes.plot([chance_level], [y], "|", color=INK, markersize=7, label=mark)
        axes.set_yticks(range(len(directions)), [f"{d.query} → {d.gallery}" for d in directions])
        axes.set_ylim(len(directions) - 0.5, -0.5)
        axes.set_xlim(-2, 102)
        axes.set_xlabel("% of queries")
        axes.grid(axis="x")
        figure.legend(loc="outside lower center", ncols=2)
        return figure_to_svg(figure, id_prefix, alt_text)


def plot_ranks(direction: RetrievalResult, id_prefix: str) -> Markup:
    """Plot a histogram of the best positive's rank. The histogram expected under random ranking is an outline."""
    alt_text = (
        f"Histogram of the best positive's rank, {direction.query} to {direction.gallery}: "
        f"{100 * direction.recall[1]:.1f}% of the queries at rank 1, "
        f"{100 * direction.recall[10]:.1f}% in the first ten, median rank {direction.median_rank:g}"
    )
    best_rank, num_items = direction.per_query.best_rank, direction.num_items
    bins = [(low, min(high or num_items, num_items)) for low, high in RANK_BINS if low <= num_items]
    fractions = [100 * float(((best_rank >= low) & (best_rank <= high)).mean()) for low, high in bins]
    chance_fractions = [100 * f for f in compute_chance_fractions(num_items, direction.per_query.num_positives, bins)]
    with _new_figure(3.6, 2.2) as (figure, axes):
        axes.bar(range(len(bins)), fractions, width=0.78, color=COLOUR[direction.gallery])
        outline: Any = {"fill": False, "edgecolor": INK, "linewidth": 1.1, "linestyle": (0, (2, 2))}
        axes.bar(range(len(bins)), chance_fractions, width=0.78, **outline)
        axes.set_xticks(range(len(bins)), [_format_range(low, high, num_items) for low, high in bins])
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(f"{direction.query} → {direction.gallery}")
        axes.set_ylabel("% of queries")
        axes.set_ylim(0, max(100.0 if max(fractions) > 60 else 0, 1.15 * max(*fractions, *chance_fractions)))
        return figure_to_svg(figure, id_prefix, alt_text)


def _format_range(low: int, high: int, num_items: int) -> str:
    """Format a range of ranks."""
    return f"{low}" if low == high else f"{low}+" if high == num_items else f"{low}–{high}"


def compute_chance_fractions(num_items: int, num_positives: NDArray, bins: Sequence[tuple[int, int]]) -> list[float]:
    """Return the probability under random ranking that the best positive is in each range of ranks."""
    distinct_counts, frequencies = np.unique(num_positives, return_counts=True)

    def recall_at(k: int) -> float:
        recalls = [compute_chance_recall(num_items, int(r), k) for r in distinct_counts]
        return float(np.average(recalls, weights=frequencies))

    return [recall_at(high) - recall_at(low - 1) for low, high in bins]


def plot_projection(
    projection: Projection, id_prefix: str, show_lines: bool = True, show_centroids: bool = False
) -> Markup:
    """Plot items coloured by modality, with lines between the items of a group and crosses at the centroids."""
    alt_text = "Two-dimensional projection of the space, coloured by modality"
    alt_text += "; lines connect the items of one group" if show_lines else ""
    alt_text += "; crosses mark the centroid of each modality" if show_centroids else ""
    with _new_figure(4.6, 4.2) as (figure, axes):
        if show_lines:
            by_group = [projection.coordinates[projection.group == g] for g in np.unique(projection.group)]
            line_ends = [(points[i], points[j]) for points in by_group for i in range(len(points)) for j in range(i)]
            axes.add_collection(LineCollection(line_ends, colors=INK, linewidths=0.5, alpha=0.18, rasterized=False))
        modalities = np.array(projection.modality)
        for modality in dict.fromkeys(projection.modality):
            coordinates = projection.coordinates[modalities == modality]
            style: Any = {"s": 14, "color": COLOUR[modality], "alpha": 0.8, "linewidths": 0, "label": modality}
            axes.scatter(coordinates[:, 0], coordinates[:, 1], **style)
        for modality in dict.fromkeys(projection.modality) if show_centroids else ():
            x, y = projection.coordinates[modalities == modality].mean(0)
            axes.plot([x], [y], "P", color=COLOUR[modality], markersize=13, markeredgecolor=INK, markeredgewidth=1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.set_aspect("equal", adjustable="datalim")
        figure.legend(loc="outside lower center", ncols=3)
        return figure_to_svg(figure, id_prefix, alt_text)


def draw_matrix(values: NDArray, title: str, alt_text: str) -> Markup:
    """Draw a matrix of fractions as opacities. The cells of the positives (the diagonal) are outlined."""
    n, step, top = len(values), 10, 16
    cells = [f'<rect y="{top}" width="{n * step}" height="{n * step}" fill="currentColor" fill-opacity="0.05"/>']
    for i in range(n):
        for j in range(n):
            if values[i, j] >= MIN_VISIBLE:
                cell_box = f'x="{j * step}" y="{top + i * step}" width="{step}" height="{step}"'
                cells.append(f'<rect {cell_box} fill="{SERIES[0]}" fill-opacity="{min(1.0, values[i, j]):.2f}"/>')
        outline_box = f'x="{i * step + 0.5}" y="{top + i * step + 0.5}" width="{step - 1}" height="{step - 1}"'
        cells.append(f'<rect {outline_box} fill="none" stroke="{SERIES[1]}"/>')
    # SVG is written directly, because matplotlib is slow for hundreds of rectangles.
    opening = f'<svg viewBox="0 0 {n * step} {n * step + top}" role="img" aria-label="{escape(alt_text)}">'
    title_text = f'<text y="10" font-size="10" fill="currentColor">{escape(title)}</text>'
    return Markup(f"{opening}{title_text}{''.join(cells)}</svg>")  # noqa: S704 - texts are escaped


def plot_match_matrices(matrices: MatchMatrices) -> tuple[Markup, Markup]:
    """Draw the softmax and the transport plan of one modality pair."""
    n = len(matrices.softmax)
    drawn = []
    for name, values in (("softmax", matrices.softmax), ("transport plan", matrices.plan)):
        title = f"{name}: {int((values.argmax(1) == np.arange(n)).sum())} of {n} correct"
        drawn.append(draw_matrix(values, title, f"{matrices.a} against {matrices.b}, {title}"))
    return drawn[0], drawn[1]
