"""What are negatives for, and which ones?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from triptych.recipe import Recipe
from triptych.space import Space
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, use
from triptych.studies.plots import lines, name_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What are negatives for, and which ones?"
HOW = (
    "The same heads and twelve epochs, with no negatives at all (alignment alone), with a few drawn at random, with "
    "the semi-hard, the hardest or all of the batch; as a contrastive loss and as triplets. After every epoch the mean "
    "cosine between items that do not belong together is taken: 1 means that everything has fallen into one point. "
    "One seed."
)
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "none (alignment alone)": ("align_uniform", {"uniform_weight": 0.0}),
    "contrastive, 1": ("contrastive", {"negatives": 1}),
    "contrastive, 4": ("contrastive", {"negatives": 4}),
    "contrastive, 64": ("contrastive", {"negatives": 64}),
    "contrastive, all (infonce)": ("infonce", {}),
    "triplet, random": ("triplet", {"negatives": "random"}),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}),
    "triplet, hardest": ("triplet", {"negatives": "hardest"}),
    "triplet, all": ("triplet", {"negatives": "all"}),
    "triplet, random + semi-hard": ("triplet", {"negatives": "random"}),
}
BOTH = "triplet, random + semi-hard"
ARGUMENTS = (
    "Without negatives nothing holds items apart: giving every item the same vector costs nothing, so alignment alone "
    "has that as its minimum.",
    "A triplet stops pulling once its margin is met: with random negatives most are met early, and those that remain "
    "say little. Semi-hard ones are always near enough to teach; the hardest one of a large batch is often a right "
    "answer that nobody wrote down.",
    "A contrastive loss weighs its negatives by itself: the softmax gives the near ones the gradient.",
)


def cells() -> int:
    """How many cells the study has, at most."""
    return len(RIVALS)


def run(lab: Lab, book: Book) -> Finding:
    """Every choice of negatives, looked at after every epoch."""
    found = {name: look_at(lab, book, name) for name in RIVALS}
    records: list[Record] = [
        {"negatives": name, "text → image R@1": v["text → image R@1"], "text → image R@10": v["text → image R@10"]}
        | {"cosine of strangers, one epoch": v["strangers"][0], "all epochs": v["strangers"][-1]}
        | {"cosine of partners": v["partners"]}
        for name, v in found.items()
    ]
    none = found["none (alignment alone)"]
    best = max(found, key=lambda name: found[name]["recalls"][-1])
    said = [
        f"Without negatives the mean cosine of strangers rises to {none['strangers'][-1]:.3f} and R@10 is "
        f"{none['text → image R@10']:.1f}%.",
        f"Highest text → image R@10 on the validation rows: **{best}** ({found[best]['recalls'][-1]:.1f}%).",
    ]
    return Finding({"Negatives": records}, said, partial(_draw, found=found), ARGUMENTS)


def look_at(lab: Lab, book: Book, name: str) -> Values:
    """One choice of negatives."""
    objective, settings = RIVALS[name]
    uses = [use(objective, **settings)]
    if name == BOTH:
        uses.append(use("triplet", negatives="semi_hard"))
    return book.cell(partial(_over_time, lab), lab.recipe(*uses), negatives=name)


def _over_time(lab: Lab, recipe: Recipe) -> Values:
    strangers: list[float] = []
    recalls: list[float] = []

    def look(_: int, space: Space, __: dict[str, float]) -> None:
        strangers.append(_cosines(lab, space)[0])
        recalls.append(lab.measure(space, "valid").recall("text", "image", 10))

    space = lab.fit(recipe, each=look)
    return lab.measure(space).values() | {
        "strangers": strangers,
        "recalls": recalls,
        "partners": _cosines(lab, space)[1],
    }


def _cosines(lab: Lab, space: Space) -> tuple[float, float]:
    """Mean cosine of images with texts of other groups, and of their own."""
    (image, a), (text, b) = (lab.features(space, "valid", m) for m in ("image", "text"))
    cosines, own = image.embedding @ text.embedding.T, a[:, None] == b
    return cosines[~own].mean().item(), cosines[own].mean().item()


def _draw(figure: Figure, found: dict[str, Values]) -> None:
    left, right = figure.subplots(1, 2)
    for axes, key, label in (
        (left, "strangers", "mean cosine of strangers"),
        (right, "recalls", "text → image R@10, validation (%)"),
    ):
        series = {name: {float(i + 1): x for i, x in enumerate(v[key])} for name, v in found.items()}
        lines(axes, series, "epoch", label)
    name_lines(figure)
