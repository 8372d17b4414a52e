"""The small pieces a page is made of: tables, figures, items one can see and play. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from triptych.contracts import Source
from triptych.evaluation.significance import Interval
from triptych.report.examples import Answer, Example
from triptych.report.inline import Inliner

KIND = {"image": "picture", "audio": "sound", "text": "text"}
LONG, SHORT = 300, 90  # characters of a text that are shown, and of a caption below something else


def percent(share: float, interval: Interval | None = None) -> str:
    """A share in %, with its interval where it has one."""
    if interval is None:
        return f"{100 * share:.1f}"
    return f"{100 * share:.1f} <small>({100 * interval.low:.1f}–{100 * interval.high:.1f})</small>"


def arrow(query: str, gallery: str) -> str:
    """A direction, each modality in its colour."""
    asks, finds = escape(query, quote=True), escape(gallery, quote=True)
    return f'<span class="{asks}">{asks}</span> → <span class="{finds}">{finds}</span>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    """A real table that scrolls sideways by itself where the screen is narrow; cells are HTML, heads are text."""
    kind = dict.fromkeys(words, ' class="words"')
    top = "".join(f'<th scope="col"{kind.get(i, "")}>{escape(head)}</th>' for i, head in enumerate(heads))
    body = "".join(
        "<tr>"
        + f'<th scope="row">{row[0]}</th>'
        + "".join(f"<td{kind.get(i, '')}>{cell}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(drawing: str, caption: str = "") -> str:
    """A drawing with what it shows below it."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{drawing}{below}</figure>"


def duo(one: str, other: str, caption: str) -> str:
    """Two drawings that are one figure."""
    return f'<figure><div class="duo">{one}{other}</div><figcaption>{escape(caption)}</figcaption></figure>'


def plots(figures: Iterable[str], kind: str = "") -> str:
    """Figures side by side where there is room, else one below the other."""
    return f'<div class="plots {kind}">{"".join(figures)}</div>'


def section(name: str, title: str, *parts: str) -> str:
    """One part of the page, to which the contents can point."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def note(text: str) -> str:
    """A paragraph that explains."""
    return f'<p class="note">{escape(text)}</p>'


def item(source: Source, inline: Inliner, words: str = "") -> str:
    """A source as one can see, hear or read it; `words` say what it is to those who cannot."""
    if source.modality == "text":
        text = str(source.content)
        return f'<div class="item">“{escape(text[:LONG])}{"…" if len(text) > LONG else ""}”</div>'
    name = Path(source.content).name
    moment = "" if source.start is None else f" at {source.start:g} s"
    said = escape(f"{KIND[source.modality]} {name}{moment}{f': {words}' if words else ''}", quote=True)
    address = inline.address(source)
    caption = f"{words[:SHORT].rstrip()}…" if len(words) > SHORT else words
    below = f'<span class="name">{escape(name + moment)}</span>' + (f" <span>{escape(caption)}</span>" if words else "")
    if address is None:
        return f'<div class="item">{below}</div>'
    if source.modality == "image":
        return f'<div class="item"><img src="{address}" alt="{said}">{below}</div>'
    return f'<div class="item"><audio controls preload="none" src="{address}" aria-label="{said}"></audio>{below}</div>'


def example(shown: Example, inline: Inliner, words: dict[str, str]) -> str:
    """A query, what it found, and where the right answer was if it was not found; `words` are captions by group."""
    own = words.get(shown.query.group, "")
    answers = "".join(_answer(answer, inline, words) for answer in shown.answers)
    if shown.missed:
        answers += _answer(shown.missed, inline, words)
    good = any(answer.right and answer.rank == 1 for answer in shown.answers)
    mood, verdict = ("good", "found at once") if good else ("bad", f"right one at rank {shown.rank}")
    ask = item(shown.query.source, inline, own)
    said = f'{arrow(shown.asks, shown.finds)} · <span class="{mood}">{verdict}</span>'
    return f'<article class="example"><p>{said}</p>{ask}<ol>{answers}</ol></article>'


def _answer(answer: Answer, inline: Inliner, words: dict[str, str]) -> str:
    own = words.get(answer.item.group, "")
    mark = "✓ " if answer.right else ""
    kind = ' class="right"' if answer.right else ""
    shown = item(answer.item.source, inline, own)
    return f'<li{kind}><span class="rank">{mark}rank {answer.rank} · {answer.score:.3f}</span>{shown}</li>'
