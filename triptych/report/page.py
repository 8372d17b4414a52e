"""The page itself: findings to one HTML file that needs nothing else, no script and no network."""

from __future__ import annotations

import shlex
from html import escape
from importlib.resources import files
from string import Template

from triptych import __version__
from triptych.report import plots
from triptych.report.inline import MediaInliner
from triptych.report.parts import (
    format_direction,
    format_percent,
    render_example,
    render_figure,
    render_figure_pair,
    render_note,
    render_section,
    render_table,
)
from triptych.report.parts import render_grid as grid
from triptych.report.report_data import ReportData, last_temperatures, list_modalities

PERCENT = "%"
OBJECTIVE_STATES = {
    "temperature",
    "mass",
    "error",
    "iterations",
}  # logged of an objective beside the terms it minimises
NUM_OPEN = 2  # directions whose examples are shown at once; the others are folded


def render_report(report: ReportData, max_bytes: int | None = None) -> str:
    """The whole page."""
    inliner = MediaInliner() if max_bytes is None else MediaInliner(max_bytes)
    sections = {
        "recall": ("What finds what", _render_recall(report)),
        "ranks": ("Where the right answers stand", _render_ranks(report)),
        "examples": ("Look and listen", _render_examples(report, inliner)),
        "zero-shot": ("Named by prompts", _render_zero_shot(report)),
        "transitivity": ("Pairs that were never trained", _render_transitivity(report)),
        "geometry": ("The shape of the space", _render_geometry(report)),
        "matches": ("One by one, or all at once", _render_matches(report)),
        "training": ("Training", _render_training(report)),
        "about": ("What this is", _render_facts(report)),
    }
    present = {name: (title, body) for name, (title, body) in sections.items() if body}
    page = Template((files("triptych.report") / "page.html").read_text(encoding="utf-8"))
    omitted_note = (
        f" {inliner.num_omitted} files are named only, to keep this page small." if inliner.num_omitted else ""
    )
    return page.substitute(
        title=escape(f"{report.recipe.name} · {report.run.name} · triptych report"),
        style=(files("triptych.report") / "page.css").read_text(encoding="utf-8"),
        heading=escape(f"{report.recipe.name}: {report.run.name}"),
        lead=_render_lead(report),
        contents="".join(f'<a href="#{name}">{escape(title)}</a>' for name, (title, _) in present.items()),
        sections="".join(render_section(name, title, body) for name, (title, body) in present.items()),
        footer=escape(
            f"Made by triptych {__version__}. Sounds are cut to their beginning, pictures made small.{omitted_note}"
        ),
    )


def _render_lead(report: ReportData) -> str:
    best = max(report.evaluation.directions, key=lambda d: d.recall[10] - d.chance_recall[10])
    worst = min(report.evaluation.directions, key=lambda d: d.recall[10] - d.chance_recall[10])
    measured_on = f"Measured on {len(report.manifest.rows):,} rows ({escape(report.split)}) of {escape(report.manifest.path.name)}."

    def describe(d: plots.RetrievalResult) -> str:
        return f"{format_direction(d.query, d.gallery)} {format_percent(d.recall[10])}{PERCENT} (chance {format_percent(d.chance_recall[10])}{PERCENT})"

    weakest = "" if best is worst else f"; the weakest direction is {describe(worst)}"
    return f"{measured_on} A right answer is among the first ten for {describe(best)} of the queries{weakest}."


def _render_recall(report: ReportData) -> str:
    directions = report.evaluation.directions
    cards = "".join(
        f"<li><span>{format_direction(d.query, d.gallery)}</span><b>{format_percent(d.recall[10])}{PERCENT}</b>"
        f'<span class="note">R@10{_format_interval(d)}<br>'
        f"chance {format_percent(d.chance_recall[10])}{PERCENT}{_note_untrained(report, d)}</span></li>"
        for d in directions
    )
    rows = [
        [
            format_direction(d.query, d.gallery),
            *(format_percent(d.recall[k], d.intervals.get(f"R@{k}")) for k in plots.RECALL_KS),
            format_percent(d.chance_recall[10]),
            format_percent(d.metrics["mAP@10"], d.intervals.get("mAP@10")),
            format_percent(d.metrics["nDCG@10"], d.intervals.get("nDCG@10")),
            f"{d.median_rank:g}",
            f"{d.num_queries:,}",
            f"{d.num_items:,}",
        ]
        for d in directions
    ]
    headers = ["query → found", "R@1", "R@5", "R@10", "chance", "mAP@10", "nDCG@10", "median rank", "queries", "items"]
    alt_text = "Recall at 1, 5 and 10 of every direction with 95% intervals; the table below has the numbers"
    num_failed = len(report.evaluation.failures)
    return (
        f'<ul class="cards">{cards}</ul>'
        + grid(
            [
                render_figure(
                    plots.plot_recall(directions, "recalls", alt_text),
                    "Dots: recall. Bars: 95% interval. Ticks: chance.",
                )
            ],
            "single",
        )
        + render_table("In %, with 95% intervals; chance is that of R@10.", headers, rows)
        + render_note(
            "Each caption is a query of its own; any right answer counts; ties count against the space. Intervals come "
            "from drawing whole groups anew: captions of one item are not independent trials."
        )
        + (render_note(f"{num_failed} files could not be read and are left out.") if num_failed else "")
    )


def _format_interval(d: plots.RetrievalResult) -> str:
    interval = d.intervals.get("R@10")
    return f" ({100 * interval.low:.1f}–{100 * interval.high:.1f})" if interval else ""


def _note_untrained(report: ReportData, d: plots.RetrievalResult) -> str:
    return (
        ""
        if frozenset((d.query, d.gallery)) in report.trained_pairs or not report.trained_pairs
        else "<br>never trained"
    )


def _render_ranks(report: ReportData) -> str:
    figures = [
        render_figure(
            plots.plot_ranks(
                d,
                f"rank{i}",
                f"Histogram of the best right answer's rank, {d.query} to {d.gallery}: "
                f"{format_percent(d.recall[1])}% first, {format_percent(d.recall[10])}% in the first ten, median {d.median_rank:g}",
            )
        )
        for i, d in enumerate(report.evaluation.directions)
        if d.per_query is not None
    ]
    return render_note("The rank of each query's best right answer. Dashed: a random order.") + grid(figures, "small")


def _render_examples(report: ReportData, inliner: MediaInliner) -> str:
    caption_of_group: dict[str, str] = {}
    for row in report.manifest.rows:
        if row.texts:
            caption_of_group.setdefault(row.group, row.texts[0])
    parts = [
        render_note("Good ones are drawn from those whose first answer is right; bad ones are the worst there are.")
    ]
    for d, (good, bad) in zip(report.evaluation.directions, report.examples, strict=True):
        examples_html = "".join(render_example(one, inliner, caption_of_group) for one in (*good, *bad))
        if examples_html:
            state = " open" if len(parts) <= NUM_OPEN else ""
            title = f"<summary><h3>{format_direction(d.query, d.gallery)}</h3></summary>"
            parts.append(f'<details{state}>{title}<div class="examples">{examples_html}</div></details>')
    return "".join(parts) if len(parts) > 1 else ""


def _render_zero_shot(report: ReportData) -> str:
    parts = []
    for c in report.zero_shot:
        rows = [
            [
                escape(r.label),
                format_percent(r.accuracy),
                f"{r.num_correct}/{r.num_items}",
                escape(r.most_confused_with or ""),
            ]
            for r in sorted(c.classes, key=lambda r: (-r.accuracy, r.label))
        ]
        class_table = render_table(
            f"{c.modality}: every class, best first", ["class", "%", "right", "taken for"], rows, (3,)
        )
        parts.append(
            f"<p>{escape(c.modality.capitalize())}: <b>{format_percent(c.accuracy)}{PERCENT}</b> of {c.num_items} named rightly "
            f"(95%: {100 * c.interval.low:.1f}–{100 * c.interval.high:.1f}), chance {format_percent(c.chance_level)}{PERCENT}, "
            f"by {escape(c.method)}.</p><details><summary>Every class</summary>{class_table}</details>"
        )
    return "".join(parts)


def _render_transitivity(report: ReportData) -> str:
    if not report.transitivity:
        return ""
    rows = [
        [
            format_direction(t.query, t.gallery),
            format_percent(t.direct.recall[10], t.direct.intervals.get("R@10")),
            format_percent(t.direct.chance_recall[10]),
            f"{format_direction(t.query, t.bridge)} {format_percent(t.to_bridge.recall[10])}",
            f"{format_direction(t.bridge, t.gallery)} {format_percent(t.from_bridge.recall[10])}",
            f"{100 * t.retention:.0f}%",
        ]
        for t in report.transitivity
    ]
    headers = ["never trained", "R@10", "chance", "trained there", "trained onward", "kept"]
    return render_table("Directions that only a bridge has trained, in %.", headers, rows) + render_note(
        "Kept: recall above chance, as a share of that of the weaker of the two trained legs."
    )


def _render_geometry(report: ReportData) -> str:
    geometry = report.geometry
    alt_text = (
        "Items along the two main axes of the space, coloured by modality, with the middle of each modality marked"
    )
    figures = [
        render_figure(
            plots.plot_projection(report.pca, "axes", alt_text, show_lines=False, show_centroids=True),
            "The modality gap: all items along the two axes in which they vary most; crosses are the middles.",
        )
    ]
    if report.tsne:
        alt_text = (
            "Map of the space in which near items stay near, coloured by modality; lines join what belongs together"
        )
        figures.append(
            render_figure(
                plots.plot_projection(report.tsne, "map", alt_text),
                "A map in which near items stay near (t-SNE); lines join what belongs together. Long lines are misses.",
            )
        )
    pair_rows = [
        [
            f"{format_direction(d.a, d.b).replace('→', '–')}",
            "–" if d.alignment is None else f"{d.alignment:.3f}",
            f"{d.gap:.3f}",
            f"{d.relative_gap:.2f}",
        ]
        for d in geometry.pairs
    ]
    modality_rows = [
        [
            f'<span class="{s.modality}">{s.modality}</span>',
            f"{s.uniformity:.2f}",
            f"{s.effective_rank:.1f} <small>of {s.embed_dim}</small>",
            f"{s.mean_norm:.2f}",
            f"{s.num_items:,}",
        ]
        for s in geometry.modalities
    ]
    hubness_rows = [
        [
            format_direction(h.query, h.gallery),
            f"{h.skewness:.2f}",
            f"{format_percent(h.top_hub_rate)}",
            f"{format_percent(h.never_retrieved_rate)}",
        ]
        for h in geometry.hubness
    ]
    k = geometry.hubness[0].k if geometry.hubness else 0
    return (
        grid(figures, "wide")
        + render_table("Two modalities", ["pair", "alignment", "gap", "gap ÷ spread"], pair_rows)
        + render_table(
            "One modality", ["modality", "uniformity", "effective rank", "mean length", "items"], modality_rows
        )
        + render_table(
            f"Hubs among the {k} nearest, in %",
            ["query → found", "skewness", "largest hub", "never found"],
            hubness_rows,
        )
        + render_note(
            "Alignment: mean squared distance of right pairs (0 same, 2 unrelated). Uniformity: lower is more even. "
            "Gap: distance between the middles of two modalities, as it is and in units of the items' own spread. "
            "Skewness above 1: few items are found far too often."
        )
    )


def _render_matches(report: ReportData) -> str:
    if not report.match_matrices:
        return ""
    figures = []
    for matrices in report.match_matrices:
        softmax_svg, plan_svg = plots.plot_match_matrices(matrices)
        figures.append(
            render_figure_pair(
                softmax_svg,
                plan_svg,
                f"{matrices.a} (rows) and {matrices.b} (columns), temperature {matrices.temperature:.3g}",
            )
        )
    return render_note(
        "The same few items of two modalities. Softmax asks each row alone, and a hub may be everybody's answer; "
        "a transport plan must use every column as well. Outlined: the right answers."
    ) + grid(figures, "small")


def _render_training(report: ReportData) -> str:
    if not report.history:
        return ""
    keys = list(dict.fromkeys(key for entry in report.history for key in entry))
    skipped_keys = {"epoch", "seconds", "steps", "loss", "valid"}
    terms = [k for k in keys if k not in skipped_keys and "(" in k and k.rpartition(".")[2] not in OBJECTIVE_STATES]
    figures = []
    for name, title, candidates in (
        ("loss", "loss", ["loss"]),
        ("terms", "its terms", terms if len(terms) <= len(plots.SERIES) else []),
        ("valid", "validation: mean of R@1, 5, 10 in %", ["valid"]),
        ("temperature", "temperature", [k for k in keys if k.endswith(".temperature")]),
    ):
        present = [key for key in candidates if key in keys]
        if present:
            last = ", ".join(f"{key} {_last_value(report, key):.3g}" for key in present)
            alt_text = f"{title} over {len(report.history)} epochs; at the end: {last}"
            figures.append(render_figure(plots.plot_history(report.history, present, f"curve-{name}", title, alt_text)))
    seconds = sum(entry.get("seconds", 0) for entry in report.history)
    steps = sum(entry.get("steps", 0) for entry in report.history)
    return grid(figures) + render_note(f"{len(report.history)} epochs, {steps:,} steps, {seconds:,.0f} seconds.")


def _last_value(report: ReportData, key: str) -> float:
    return next(float(entry[key]) for entry in reversed(report.history) if key in entry)


def _render_facts(report: ReportData) -> str:
    recipe, space, counts = report.recipe, report.space, report.manifest.counts
    num_parameters = sum(p.numel() for p in space.parameters())
    num_trained = sum(p.numel() for p in space.parameters() if p.requires_grad)
    facts = {
        "recipe": f"{recipe.name}: {recipe.description}" if recipe.description else recipe.name,
        "objectives": ", ".join(
            f"{use.name} ({', '.join(f'{a}–{b}' for a, b in use.pairs)})" for use in recipe.objectives
        )
        or "none: a ready-made space",
        "similarity": recipe.space.similarity.name,
        "space": f"{recipe.space.embed_dim} numbers, {recipe.space.geometry}; {num_parameters:,} weights, {num_trained:,} trained",
        "temperature": ", ".join(
            f"{'–'.join(sorted(pair))} {value:.4g}" for pair, value in last_temperatures(report.history).items()
        ),
        "data": f"{report.manifest.path.name}, split {report.split}: {counts.rows:,} rows, {counts.captions:,} captions, "
        f"{counts.groups:,} groups",
        "run": report.run.name,
        "space id": report.fingerprint,
        "again": shlex.join(
            ["triptych", "report", str(report.run), "--data", str(report.manifest.path), "--split", report.split]
        ),
    }
    facts_html = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    encoders = [
        [
            f'<span class="{m}">{m}</span>',
            escape(recipe.space.encoders[m].name),
            "frozen" if m in space.frozen_modalities else "trained",
            escape(space.encoder(m).origin),
            escape(space.encoder(m).licence),
        ]
        for m in list_modalities(report)
    ]
    return (
        f'<dl class="facts">{facts_html}</dl>'
        + render_table("Encoders", ["modality", "encoder", "weights", "from", "licence"], encoders, (1, 2, 3, 4))
        + f"<details><summary>The whole recipe</summary><pre><code>{escape(recipe.to_toml())}</code></pre></details>"
    )
