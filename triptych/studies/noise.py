"""How much wrong data does each objective bear?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from triptych.data.noise import similar, swap
from triptych.recipe import Recipe
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, Table, use
from triptych.studies.plots import lines, name_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How many wrong pairs does each objective bear?"
HOW = (
    "Linear heads, twelve epochs. A share of the training rows is given the captions of another row: of any row "
    "(random), or of a row whose captions are alike (similar). Validation is not looked at; the test rows stay clean. "
    "One seed."
)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
KINDS = ("random", "similar")
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "infonce": ("infonce", {"temperature": 0.07}),
    "sigmoid": ("sigmoid", {}),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}),
    "alignment + uniformity": ("align_uniform", {}),
    "matching": ("matching", {"epsilon": 0.1}),
    "matching, partial (mass estimated)": ("matching", {"epsilon": 0.1, "mass": "estimate", "form": "trimmed"}),
}
MEASURE = "text → image R@10"


def cells() -> int:
    """How many cells the study has, at most."""
    return len(RIVALS) * (len(KINDS) * (len(SHARES) - 1) + 1)


def run(lab: Lab, book: Book) -> Finding:
    """Every objective at every share of both kinds of damage."""
    found: dict[tuple[str, str], dict[float, Values]] = {}
    for name, (objective, settings) in RIVALS.items():
        recipe = lab.recipe(use(objective, **settings))
        clean = book.cell(partial(_measure, lab, None), recipe, objective=name, share=0.0)
        for kind in KINDS:
            found[name, kind] = {0.0: clean}
            for share in SHARES[1:]:
                work = partial(_measure, lab, (kind, share))
                found[name, kind][share] = book.cell(work, recipe, objective=name, kind=kind, share=share)
    tables = {f"{MEASURE} in %, {kind} swaps": _records(found, kind) for kind in KINDS}
    return Finding(tables, _said(found), partial(_draw, found=found))


def _measure(lab: Lab, damage: tuple[str, float] | None, recipe: Recipe) -> Values:
    return lab.measure(lab.fit(recipe, damaged(lab.splits["train"], *damage) if damage else None)).values()


def damaged(table: Table, kind: str, share: float, seed: int = 0) -> Table:
    """A table in which a share of the rows has the captions of another row: any, or one with captions alike."""
    if kind == "random":
        return table.swapped(swap(table.ids, [""] * len(table), share, "random", seed))
    first = table.vectors["text"][table.places["text"], 0]  # (R, C, W)
    real = (torch.arange(first.shape[1]) < table.counts["text"][:, None]).unsqueeze(2)
    mean = (first * real).sum(dim=1) / real.sum(dim=1)
    labels = similar(mean.numpy(), seed)
    return table.swapped(swap(table.ids, labels, share, "category", seed))


def _records(found: dict[tuple[str, str], dict[float, Values]], kind: str) -> list[Record]:
    return [
        {"objective": name} | {f"{share:.0%} wrong": values[MEASURE] for share, values in some.items()}
        for (name, own), some in found.items()
        if own == kind
    ]


def _said(found: dict[tuple[str, str], dict[float, Values]]) -> list[str]:
    said = []
    for kind in KINDS:
        kept = {name: some[0.4][MEASURE] / some[0.0][MEASURE] for (name, own), some in found.items() if own == kind}
        order = sorted(kept, key=lambda name: -kept[name])
        shares = ", ".join(f"{name} {100 * kept[name]:.0f}%" for name in order)
        said.append(f"With 40% {kind} swaps, of its own clean {MEASURE} each keeps: {shares}.")
    return said


def _draw(figure: Figure, found: dict[tuple[str, str], dict[float, Values]]) -> None:
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), KINDS, strict=True):
        series = {
            name: {100 * share: values[MEASURE] for share, values in some.items()}
            for (name, own), some in found.items()
            if own == kind
        }
        lines(axes, series, "wrong pairs (%)", f"{MEASURE} (%)" if kind == KINDS[0] else "", title=f"{kind} swaps")
    name_lines(figure)
