"""The small pieces a page is made of: tables, figures, items one can see and play. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from triptych.evaluation.significance import Interval
from triptych.interfaces import Source
from triptych.report.examples import RetrievalExample, RetrievedItem
from triptych.report.inline import MediaInliner

MODALITY_LABELS = {"image": "image", "audio": "audio", "text": "text"}
MAX_TEXT_CHARS, MAX_CAPTION_CHARS = (
    300,
    90,
)  # characters of a text that are shown, and of a caption below something else


def format_percent(fraction: float, interval: Interval | None = None) -> str:
    """A share in %, with its interval where it has one."""
    if interval is None:
        return f"{100 * fraction:.1f}"
    return f"{100 * fraction:.1f} <small>({100 * interval.low:.1f}–{100 * interval.high:.1f})</small>"


def format_direction(query: str, gallery: str) -> str:
    """A direction, each modality in its colour."""
    query_html, gallery_html = escape(query, quote=True), escape(gallery, quote=True)
    return f'<span class="{query_html}">{query_html}</span> → <span class="{gallery_html}">{gallery_html}</span>'


def render_table(
    caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = ()
) -> str:
    """A real table that scrolls sideways by itself where the screen is narrow; cells are HTML, heads are text."""
    cell_class = dict.fromkeys(text_columns, ' class="text-column"')
    header_cells = "".join(
        f'<th scope="col"{cell_class.get(i, "")}>{escape(head)}</th>' for i, head in enumerate(headers)
    )
    body = "".join(
        "<tr>"
        + f'<th scope="row">{row[0]}</th>'
        + "".join(f"<td{cell_class.get(i, '')}>{cell}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{header_cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def render_figure(svg: str, caption: str = "") -> str:
    """A drawing with what it shows below it."""
    caption_html = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{caption_html}</figure>"


def render_figure_pair(left: str, right: str, caption: str) -> str:
    """Two drawings that are one figure."""
    return f'<figure><div class="figure-pair">{left}{right}</div><figcaption>{escape(caption)}</figcaption></figure>'


def render_grid(figures: Iterable[str], layout: str = "") -> str:
    """Figures side by side where there is room, else one below the other."""
    return f'<div class="plots {layout}">{"".join(figures)}</div>'


def render_section(anchor: str, title: str, *parts: str) -> str:
    """One part of the page, to which the contents can point."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def render_note(text: str) -> str:
    """A paragraph that explains."""
    return f'<p class="note">{escape(text)}</p>'


def render_item(source: Source, inliner: MediaInliner, description: str = "") -> str:
    """A source as one can see, hear or read it; `words` say what it is to those who cannot."""
    if source.modality == "text":
        text = str(source.content)
        return f'<div class="item">“{escape(text[:MAX_TEXT_CHARS])}{"…" if len(text) > MAX_TEXT_CHARS else ""}”</div>'
    name = Path(source.content).name
    time = "" if source.start is None else f" at {source.start:g} s"
    alt_text = escape(
        f"{MODALITY_LABELS[source.modality]} {name}{time}{f': {description}' if description else ''}", quote=True
    )
    data_uri = inliner.data_uri(source)
    caption = f"{description[:MAX_CAPTION_CHARS].rstrip()}…" if len(description) > MAX_CAPTION_CHARS else description
    caption_html = f'<span class="name">{escape(name + time)}</span>' + (
        f" <span>{escape(caption)}</span>" if description else ""
    )
    if data_uri is None:
        return f'<div class="item">{caption_html}</div>'
    if source.modality == "image":
        return f'<div class="item"><img src="{data_uri}" alt="{alt_text}">{caption_html}</div>'
    return f'<div class="item"><audio controls preload="none" src="{data_uri}" aria-label="{alt_text}"></audio>{caption_html}</div>'


def render_example(result: RetrievalExample, inliner: MediaInliner, caption_of_group: dict[str, str]) -> str:
    """A query, what it found, and where the right answer was if it was not found; `words` are captions by group."""
    caption = caption_of_group.get(result.query.group, "")
    answers = "".join(_render_answer(answer, inliner, caption_of_group) for answer in result.answers)
    if result.missed_positive:
        answers += _render_answer(result.missed_positive, inliner, caption_of_group)
    is_found = any(answer.is_positive and answer.rank == 1 for answer in result.answers)
    css_class, verdict = ("good", "found at once") if is_found else ("bad", f"right one at rank {result.rank}")
    query_html = render_item(result.query.source, inliner, caption)
    heading = f'{format_direction(result.query_modality, result.gallery_modality)} · <span class="{css_class}">{verdict}</span>'
    return f'<article class="example"><p>{heading}</p>{query_html}<ol>{answers}</ol></article>'


def _render_answer(answer: RetrievedItem, inliner: MediaInliner, caption_of_group: dict[str, str]) -> str:
    caption = caption_of_group.get(answer.item.group, "")
    mark = "✓ " if answer.is_positive else ""
    css_class = ' class="positive"' if answer.is_positive else ""
    item_html = render_item(answer.item.source, inliner, caption)
    return f'<li{css_class}><span class="rank">{mark}rank {answer.rank} · {answer.score:.3f}</span>{item_html}</li>'
