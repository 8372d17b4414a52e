"""The page itself: findings to one HTML file that needs nothing else, no script and no network."""

from __future__ import annotations

import shlex
from html import escape
from importlib.resources import files
from string import Template

from triptych import __version__
from triptych.report import plots
from triptych.report.findings import Findings, modalities, temperatures
from triptych.report.inline import Inliner
from triptych.report.parts import arrow, duo, example, figure, note, percent, section, table
from triptych.report.parts import plots as grid

PERCENT = "%"
STATES = {"temperature", "mass", "error", "iterations"}  # logged of an objective beside the terms it minimises
OPEN = 2  # directions whose examples are shown at once; the others are folded


def html(found: Findings, budget: int | None = None) -> str:
    """The whole page."""
    inline = Inliner() if budget is None else Inliner(budget)
    sections = {
        "recall": ("What finds what", _recall(found)),
        "ranks": ("Where the right answers stand", _ranks(found)),
        "examples": ("Look and listen", _examples(found, inline)),
        "names": ("Named by prompts", _names(found)),
        "transit": ("Pairs that were never trained", _transits(found)),
        "shape": ("The shape of the space", _shape(found)),
        "matches": ("One by one, or all at once", _matches(found)),
        "training": ("Training", _training(found)),
        "facts": ("What this is", _facts(found)),
    }
    there = {name: (title, body) for name, (title, body) in sections.items() if body}
    page = Template((files("triptych.report") / "page.html").read_text(encoding="utf-8"))
    left = f" {inline.left_out} files are named only, to keep this page small." if inline.left_out else ""
    return page.substitute(
        title=escape(f"{found.recipe.name} · {found.run.name} · triptych report"),
        style=(files("triptych.report") / "page.css").read_text(encoding="utf-8"),
        heading=escape(f"{found.recipe.name}: {found.run.name}"),
        lead=_lead(found),
        contents="".join(f'<a href="#{name}">{escape(title)}</a>' for name, (title, _) in there.items()),
        sections="".join(section(name, title, body) for name, (title, body) in there.items()),
        footer=escape(f"Made by triptych {__version__}. Sounds are cut to their beginning, pictures made small.{left}"),
    )


def _lead(found: Findings) -> str:
    best = max(found.evaluation.directions, key=lambda d: d.recall[10] - d.chance[10])
    worst = min(found.evaluation.directions, key=lambda d: d.recall[10] - d.chance[10])
    held = f"Measured on {len(found.data.rows):,} rows ({escape(found.split)}) of {escape(found.data.path.name)}."

    def told(d: plots.Retrieval) -> str:
        return f"{arrow(d.query, d.gallery)} {percent(d.recall[10])}{PERCENT} (chance {percent(d.chance[10])}{PERCENT})"

    least = "" if best is worst else f"; the weakest direction is {told(worst)}"
    return f"{held} A right answer is among the first ten for {told(best)} of the queries{least}."


def _recall(found: Findings) -> str:
    directions = found.evaluation.directions
    cards = "".join(
        f"<li><span>{arrow(d.query, d.gallery)}</span><b>{percent(d.recall[10])}{PERCENT}</b>"
        f'<span class="note">R@10{_between(d)}<br>'
        f"chance {percent(d.chance[10])}{PERCENT}{_untrained(found, d)}</span></li>"
        for d in directions
    )
    rows = [
        [
            arrow(d.query, d.gallery),
            *(percent(d.recall[k], d.interval.get(f"R@{k}")) for k in plots.CUTS),
            percent(d.chance[10]),
            percent(d.metrics["mAP@10"], d.interval.get("mAP@10")),
            percent(d.metrics["nDCG@10"], d.interval.get("nDCG@10")),
            f"{d.median_rank:g}",
            f"{d.queries:,}",
            f"{d.items:,}",
        ]
        for d in directions
    ]
    heads = ["query → found", "R@1", "R@5", "R@10", "chance", "mAP@10", "nDCG@10", "median rank", "queries", "items"]
    said = "Recall at 1, 5 and 10 of every direction with 95% intervals; the table below has the numbers"
    failed = len(found.evaluation.failures)
    return (
        f'<ul class="cards">{cards}</ul>'
        + grid(
            [figure(plots.recalls(directions, "recalls", said), "Dots: recall. Bars: 95% interval. Ticks: chance.")],
            "single",
        )
        + table("In %, with 95% intervals; chance is that of R@10.", heads, rows)
        + note(
            "Each caption is a query of its own; any right answer counts; ties count against the space. Intervals come "
            "from drawing whole groups anew: captions of one item are not independent trials."
        )
        + (note(f"{failed} files could not be read and are left out.") if failed else "")
    )


def _between(d: plots.Retrieval) -> str:
    known = d.interval.get("R@10")
    return f" ({100 * known.low:.1f}–{100 * known.high:.1f})" if known else ""


def _untrained(found: Findings, d: plots.Retrieval) -> str:
    return "" if frozenset((d.query, d.gallery)) in found.trained or not found.trained else "<br>never trained"


def _ranks(found: Findings) -> str:
    drawn = [
        figure(
            plots.ranks(
                d,
                f"rank{i}",
                f"Histogram of the best right answer's rank, {d.query} to {d.gallery}: "
                f"{percent(d.recall[1])}% first, {percent(d.recall[10])}% in the first ten, median {d.median_rank:g}",
            )
        )
        for i, d in enumerate(found.evaluation.directions)
        if d.each is not None
    ]
    return note("The rank of each query's best right answer. Dashed: a random order.") + grid(drawn, "small")


def _examples(found: Findings, inline: Inliner) -> str:
    words: dict[str, str] = {}
    for row in found.data.rows:
        if row.texts:
            words.setdefault(row.group, row.texts[0])
    parts = [note("Good ones are drawn from those whose first answer is right; bad ones are the worst there are.")]
    for d, (good, bad) in zip(found.evaluation.directions, found.examples, strict=True):
        shown = "".join(example(one, inline, words) for one in (*good, *bad))
        if shown:
            state = " open" if len(parts) <= OPEN else ""
            title = f"<summary><h3>{arrow(d.query, d.gallery)}</h3></summary>"
            parts.append(f'<details{state}>{title}<div class="examples">{shown}</div></details>')
    return "".join(parts) if len(parts) > 1 else ""


def _names(found: Findings) -> str:
    parts = []
    for c in found.zero_shot:
        rows = [
            [escape(r.label), percent(r.accuracy), f"{r.right}/{r.items}", escape(r.confused or "")]
            for r in sorted(c.classes, key=lambda r: (-r.accuracy, r.label))
        ]
        listed = table(f"{c.modality}: every class, best first", ["class", "%", "right", "taken for"], rows, (3,))
        parts.append(
            f"<p>{escape(c.modality.capitalize())}: <b>{percent(c.accuracy)}{PERCENT}</b> of {c.items} named rightly "
            f"(95%: {100 * c.interval.low:.1f}–{100 * c.interval.high:.1f}), chance {percent(c.chance)}{PERCENT}, "
            f"by {escape(c.by)}.</p><details><summary>Every class</summary>{listed}</details>"
        )
    return "".join(parts)


def _transits(found: Findings) -> str:
    if not found.transits:
        return ""
    rows = [
        [
            arrow(t.query, t.gallery),
            percent(t.untrained.recall[10], t.untrained.interval.get("R@10")),
            percent(t.untrained.chance[10]),
            f"{arrow(t.query, t.bridge)} {percent(t.there.recall[10])}",
            f"{arrow(t.bridge, t.gallery)} {percent(t.onward.recall[10])}",
            f"{100 * t.kept:.0f}%",
        ]
        for t in found.transits
    ]
    heads = ["never trained", "R@10", "chance", "trained there", "trained onward", "kept"]
    return table("Directions that only a bridge has trained, in %.", heads, rows) + note(
        "Kept: recall above chance, as a share of that of the weaker of the two trained legs."
    )


def _shape(found: Findings) -> str:
    shape = found.geometry
    said = "Items along the two main axes of the space, coloured by modality, with the middle of each modality marked"
    drawn = [
        figure(
            plots.scatter(found.axes, "axes", said, lines=False, middles=True),
            "The modality gap: all items along the two axes in which they vary most; crosses are the middles.",
        )
    ]
    if found.map:
        said = "Map of the space in which near items stay near, coloured by modality; lines join what belongs together"
        drawn.append(
            figure(
                plots.scatter(found.map, "map", said),
                "A map in which near items stay near (t-SNE); lines join what belongs together. Long lines are misses.",
            )
        )
    apart = [
        [
            f"{arrow(d.a, d.b).replace('→', '–')}",
            "–" if d.alignment is None else f"{d.alignment:.3f}",
            f"{d.gap:.3f}",
            f"{d.relative_gap:.2f}",
        ]
        for d in shape.distances
    ]
    each = [
        [
            f'<span class="{s.modality}">{s.modality}</span>',
            f"{s.uniformity:.2f}",
            f"{s.effective_rank:.1f} <small>of {s.width}</small>",
            f"{s.length:.2f}",
            f"{s.items:,}",
        ]
        for s in shape.shapes
    ]
    hubs = [
        [arrow(h.query, h.gallery), f"{h.skewness:.2f}", f"{percent(h.most)}", f"{percent(h.never)}"]
        for h in shape.hubs
    ]
    k = shape.hubs[0].k if shape.hubs else 0
    return (
        grid(drawn, "wide")
        + table("Two modalities", ["pair", "alignment", "gap", "gap ÷ spread"], apart)
        + table("One modality", ["modality", "uniformity", "effective rank", "mean length", "items"], each)
        + table(f"Hubs among the {k} nearest, in %", ["query → found", "skewness", "largest hub", "never found"], hubs)
        + note(
            "Alignment: mean squared distance of right pairs (0 same, 2 unrelated). Uniformity: lower is more even. "
            "Gap: distance between the middles of two modalities, as it is and in units of the items' own spread. "
            "Skewness above 1: few items are found far too often."
        )
    )


def _matches(found: Findings) -> str:
    if not found.squares:
        return ""
    drawn = []
    for square in found.squares:
        one, both = plots.matches(square)
        drawn.append(
            duo(one, both, f"{square.a} (rows) and {square.b} (columns), temperature {square.temperature:.3g}")
        )
    return note(
        "The same few items of two modalities. Softmax asks each row alone, and a hub may be everybody's answer; "
        "a transport plan must use every column as well. Outlined: the right answers."
    ) + grid(drawn, "small")


def _training(found: Findings) -> str:
    if not found.history:
        return ""
    keys = list(dict.fromkeys(key for entry in found.history for key in entry))
    skip = {"epoch", "seconds", "steps", "loss", "valid"}
    terms = [k for k in keys if k not in skip and "(" in k and k.rpartition(".")[2] not in STATES]
    drawn = []
    for name, title, wanted in (
        ("loss", "loss", ["loss"]),
        ("terms", "its terms", terms if len(terms) <= len(plots.SERIES) else []),
        ("valid", "validation: mean of R@1, 5, 10 in %", ["valid"]),
        ("heat", "temperature", [k for k in keys if k.endswith(".temperature")]),
    ):
        there = [key for key in wanted if key in keys]
        if there:
            last = ", ".join(f"{key} {_last(found, key):.3g}" for key in there)
            said = f"{title} over {len(found.history)} epochs; at the end: {last}"
            drawn.append(figure(plots.curves(found.history, there, f"curve-{name}", title, said)))
    took = sum(entry.get("seconds", 0) for entry in found.history)
    steps = sum(entry.get("steps", 0) for entry in found.history)
    return grid(drawn) + note(f"{len(found.history)} epochs, {steps:,} steps, {took:,.0f} seconds.")


def _last(found: Findings, key: str) -> float:
    return next(float(entry[key]) for entry in reversed(found.history) if key in entry)


def _facts(found: Findings) -> str:
    recipe, space, counts = found.recipe, found.space, found.data.counts
    parts = sum(p.numel() for p in space.parameters())
    learned = sum(p.numel() for p in space.parameters() if p.requires_grad)
    facts = {
        "recipe": f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name,
        "objectives": ", ".join(
            f"{use.name} ({', '.join(f'{a}–{b}' for a, b in use.pairs)})" for use in recipe.objectives
        )
        or "none: a ready-made space",
        "similarity": recipe.space.similarity.name,
        "space": f"{recipe.space.width} numbers, {recipe.space.geometry}; {parts:,} weights, {learned:,} trained",
        "temperature": ", ".join(
            f"{'–'.join(sorted(pair))} {value:.4g}" for pair, value in temperatures(found.history).items()
        ),
        "data": f"{found.data.path.name}, split {found.split}: {counts.rows:,} rows, {counts.captions:,} captions, "
        f"{counts.groups:,} groups",
        "run": found.run.name,
        "space id": found.fingerprint,
        "again": shlex.join(
            ["triptych", "report", str(found.run), "--data", str(found.data.path), "--split", found.split]
        ),
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    encoders = [
        [
            f'<span class="{m}">{m}</span>',
            escape(recipe.space.encoders[m].name),
            "frozen" if m in space.frozen else "trained",
            escape(space.encoder(m).origin),
            escape(space.encoder(m).licence),
        ]
        for m in modalities(found)
    ]
    return (
        f'<dl class="facts">{listed}</dl>'
        + table("Encoders", ["modality", "encoder", "weights", "from", "licence"], encoders, (1, 2, 3, 4))
        + f"<details><summary>The whole recipe</summary><pre><code>{escape(recipe.text())}</code></pre></details>"
    )
