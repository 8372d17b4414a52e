"""How well do two modalities meet that were never trained together, as the bridge between them grows?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from triptych.contracts import MODALITIES, Modality
from triptych.errors import UsageError
from triptych.evaluation.retrieval import chance
from triptych.recipe import ObjectiveUse, Recipe
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, Table, use
from triptych.studies.plots import lines, name_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How well do text and sound meet that were never trained together, as the bridge of pictures grows?"
HOW = (
    "Every second training row keeps its picture and its text, every other its picture and its sound: no row has text "
    "and sound. The heads learn image–text and image–audio by ranking (triplets over all negatives), by distillation "
    "from the image classifier's 1,000 classes, or by both, with a growing share of the rows. Measured on test rows "
    "that have all three. One seed."
)
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PAIRS: tuple[tuple[Modality, Modality], ...] = (("image", "text"), ("image", "audio"))
WIDTH, EPOCHS = 256, 20
WAYS = ("ranking", "distillation", "both")
NEVER, TRAINED = "text → audio (never trained)", "image → text (trained)"


def cells() -> int:
    """How many cells the study has, at most."""
    return len(SHARES) * len(WAYS) + 1


def run(lab: Lab, book: Book) -> Finding:
    """Each way at each share, and one fit that is trained on text and sound, for comparison."""
    if set(lab.names) != set(MODALITIES):
        raise UsageError(f"this study needs rows with image, audio and text; the data has {', '.join(lab.names)}")
    taught = teacher(lab)
    found = {
        (way, share): book.cell(partial(measure, lab, taught, share), bridging(lab, way, share), way=way, share=share)
        for way in WAYS
        for share in SHARES
    }
    every = lab.recipe(use("triplet", *PAIRS, ("audio", "text"), negatives="all"), **_how(1.0))
    whole = book.cell(lambda recipe: _values(lab, lab.fit(recipe)), every, way="trained on text and sound", share=1.0)
    records: list[Record] = [{"trained by": way, "rows": f"{share:.3g}", **v} for (way, share), v in found.items()]
    records.append({"trained by": "ranking, text and sound too", "rows": "1", **whole})
    full = found["ranking", 1.0]  # as the fit it is held against
    said = [
        f"With all rows, ranking finds the sound for a text it was never paired with in {full[NEVER]:.1f}% of the "
        f"cases among the first ten, {full[NEVER] / full['chance']:.1f} times chance; trained on text and sound it is "
        f"{whole[NEVER]:.1f}%.",
        *(
            f"{way}: {found[way, SHARES[0]][NEVER]:.1f}% with {SHARES[0]:.3g} of the rows, "
            f"{found[way, 1.0][NEVER]:.1f}% with all."
            for way in WAYS
        ),
    ]
    return Finding({"R@10 in %": records}, said, partial(_draw, found=found))


@torch.inference_mode()
def teacher(lab: Lab) -> Tensor:
    """What the image encoder, as a classifier, says of every training row's picture: (R, C)."""
    table = lab.splits["train"]
    said = lab.encoders["image"].judge(table.vectors["image"][table.places["image"][:, 0], 0])
    if said is None:
        raise UsageError(f"this study needs an image encoder that was taught classes; {lab.names['image']} was not")
    return said.clone()


def bridged(table: Table, share: float) -> Table:
    """A share of the rows, every second without sound, every other without text."""
    rows = torch.arange(len(table))
    kept = rows < round(share * len(table))
    return table.only({"image": kept, "text": kept & (rows % 2 == 0), "audio": kept & (rows % 2 == 1)})


def _uses(way: str) -> list[ObjectiveUse]:
    distill = use("distill", *PAIRS, classes=1000, width=WIDTH)
    ranking = use("triplet", *PAIRS, negatives="all")
    return {"ranking": [ranking], "distillation": [distill], "both": [distill, ranking]}[way]


def bridging(lab: Lab, way: str, share: float) -> Recipe:
    """How image–text and image–audio are learned from a share of the rows."""
    return lab.recipe(*_uses(way), **_how(share))


def measure(lab: Lab, taught: Tensor, share: float, recipe: Recipe) -> Values:
    """Recall on the pair that was never trained, and on one that was."""
    return _values(lab, lab.fit(recipe, bridged(lab.splits["train"], share), taught))


def _how(share: float) -> dict[str, Any]:
    """As many steps for few rows as for many, up to eight times as many epochs."""
    return {"space": {"width": WIDTH}, "epochs": round(EPOCHS * min(8, 1 / share)), "batch": 64}


def _values(lab: Lab, space: Any) -> Values:
    never, trained = lab.measure(space, "test", "audio", "text"), lab.measure(space, "test", "image", "text")
    sounds, group = lab.splits["test"].items("audio")
    right = len(sounds) / len(group.unique())
    return {
        NEVER: never.recall("text", "audio", 10),
        "audio → text (never trained)": never.recall("audio", "text", 10),
        TRAINED: trained.recall("image", "text", 10),
        "chance": 100 * float(chance(len(sounds), round(right), 10)),
    }


def _draw(figure: Figure, found: dict[tuple[str, float], Values]) -> None:
    for axes, key in zip(figure.subplots(1, 2), (NEVER, TRAINED), strict=True):
        series = {way: {share: found[way, share][key] for share in SHARES} for way in WAYS}
        series["chance"] = {share: found[WAYS[0], share]["chance"] for share in SHARES}
        lines(axes, series, "share of the rows", "R@10 (%)", log=True, title=key)
    name_lines(figure)
