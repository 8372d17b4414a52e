"""Does a learned metric help matching by transport, and what does it do to the gap between modalities?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from triptych.data.noise import swap
from triptych.evaluation.geometry import gap
from triptych.recipe import Recipe
from triptych.settings import Part
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, Table, use
from triptych.studies.plots import bars, lines
from triptych.studies.verdicts import against, mean_and_spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Does a learned metric help matching by transport, and does it close the gap between modalities?"
HOW = (
    "Matching by entropic transport over linear heads, twelve epochs. First the metric at epsilon 0.05, three seeds, "
    "with differences to the identity over items and seeds; then epsilon with the cosine; then partial "
    "transport where 0 and 40% of the training pairs are swapped at random, "
    "with the mass told, estimated, or left at 1."
)
WIDTH, SEEDS = 256, (0, 1, 2)
METRICS: dict[str, Part] = {
    "cosine": Part("cosine"),
    "identity (Euclidean)": Part("mahalanobis", {"width": WIDTH, "metric": "identity"}),
    "diagonal": Part("mahalanobis", {"width": WIDTH, "metric": "diagonal"}),
    **{f"low rank {r}": Part("mahalanobis", {"width": WIDTH, "metric": "low_rank", "rank": r}) for r in (8, 32, 128)},
    "full": Part("mahalanobis", {"width": WIDTH, "metric": "full"}),
}
REFERENCE = "identity (Euclidean)"  # the same similarity with nothing learned
EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
SHARES = (0.0, 0.4)


def cells() -> int:
    """How many cells the study has, at most."""
    return len(METRICS) * len(SEEDS) + len(EPSILONS) + len(SHARES) * 5


def run(lab: Lab, book: Book) -> Finding:
    """Metrics, then epsilon, then partial transport."""
    found = {
        name: [
            book.cell(partial(_measure, lab), _recipe(lab, part, seed=seed), part="metric", metric=name, seed=seed)
            for seed in SEEDS
        ]
        for name, part in METRICS.items()
    }
    metrics: list[Record] = [
        {"metric": name, **{key: mean_and_spread([v[key] for v in some]) for key in RECALLS}}
        | {key: sum(v[key] for v in some) / len(some) for key in ("gap", "gap, scale-free")}
        for name, some in found.items()
    ]
    smooth = {
        epsilon: book.cell(
            partial(_measure, lab), _recipe(lab, Part("cosine"), epsilon=epsilon), part="epsilon", e=epsilon
        )
        for epsilon in EPSILONS
    }
    partials: list[Record] = [_partial(lab, book, share) for share in SHARES]
    return Finding(
        {
            "The metric (recall in %, mean of three seeds, smallest–largest)": metrics,
            "Epsilon (cosine, one seed)": [
                {"epsilon": e, **{key: v[key] for key in RECALLS}} for e, v in smooth.items()
            ],
            "Partial transport under wrong pairs (text → image R@10, one seed)": partials,
        },
        against(REFERENCE, {name: [v["hits"] for v in some] for name, some in found.items()}, "text → image R@10"),
        partial(_draw, found=found, smooth=smooth),
    )


RECALLS = ("text → image R@1", "text → image R@10", "image → text R@1", "image → text R@10")


def _recipe(lab: Lab, similarity: Part, epsilon: float = 0.05, seed: int = 0, **settings: Any) -> Recipe:
    shape = {"similarity": similarity, "width": WIDTH}
    return lab.recipe(use("matching", epsilon=epsilon, **settings), space=shape, metric_rate=0.1, seed=seed)


def _measure(lab: Lab, recipe: Recipe, table: Table | None = None) -> Values:
    space = lab.fit(recipe, table)
    found = lab.measure(space)
    a, b = (lab.features(space, "test", m)[0].embedding for m in ("image", "text"))
    raw, free = gap(a, b)
    return found.values() | {"gap": raw, "gap, scale-free": free, "hits": found.hits("text", "image")}


def _partial(lab: Lab, book: Book, share: float) -> Record:
    """One line: every way to say how much of the mass is to be moved, at one share of wrong pairs."""
    ways: Mapping[str, dict[str, Any]] = {
        "balanced": {},
        "trimmed, told": {"mass": 1 - share or 1.0, "form": "trimmed"},
        "trimmed, estimated": {"mass": "estimate", "form": "trimmed"},
        "target, told": {"mass": 1 - share or 1.0, "form": "target"},
        "paper, told": {"mass": 1 - share or 1.0, "form": "paper"},
    }
    table = lab.splits["train"]
    damaged = table.swapped(swap(table.ids, [""] * len(table), share, "random", seed=0)) if share else table
    found = {
        way: book.cell(
            partial(_measure, lab, table=damaged),
            _recipe(lab, Part("cosine"), **settings),
            part="partial",
            way=way,
            share=share,
        )
        for way, settings in ways.items()
    }
    return {"wrong pairs": f"{share:.0%}", **{way: values["text → image R@10"] for way, values in found.items()}}


def _draw(figure: Figure, found: Mapping[str, list[Values]], smooth: Mapping[float, Values]) -> None:
    left, right = figure.subplots(1, 2)
    bars(
        left,
        {name: [v["score"] for v in some] for name, some in found.items()},
        "mean of R@1, R@5, R@10, both directions (%)",
    )
    curve = {"cosine": {epsilon: values["score"] for epsilon, values in smooth.items()}}
    lines(right, curve, "epsilon (cosine, one seed)", "mean of R@1, R@5, R@10, both directions (%)", log=True)
