"""The recipes that match the batch by transport: mltm and mltm_partial."""

from __future__ import annotations

from bench.results.contrastive import SEEDS, pictures, sounds
from bench.results.plan import Column, Found, Grid, Page, Row, recall

DAMAGE = {
    "no wrong pairs": "flickr8k",
    "20% wrong": "flickr8k-random20",
    "40% wrong": "flickr8k-random40",
    "60% wrong": "flickr8k-random60",
    "40%, among similar captions": "flickr8k-similar40",
}
REPEATED = ("no wrong pairs", "40% wrong")  # with three seeds for the first method
TRIPLETS = "objectives.0={name='triplet', pairs=[['image','text'],['audio','text']], negatives='all', margin=0.2}"
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "partial matching, trimmed: as it comes": ("mltm_partial", ()),
    "partial matching, target": ("mltm_partial", ("objectives.0.form=target",)),
    "partial matching, paper": ("mltm_partial", ("objectives.0.form=paper",)),
    "balanced matching": ("mltm_partial", ("objectives.0.mass=1.0",)),
    "infonce": ("clap", ()),
    "sigmoid": ("siglip", ()),
    "triplets with all negatives": ("clap", (TRIPLETS,)),
}
FIRST = next(iter(METHODS))


def _row(label: str, damage: str) -> Row:
    recipe, changes = METHODS[label]
    seeds = SEEDS if label == FIRST and damage in REPEATED else (0,)
    return Row(f"{label}; {damage}", recipe, (DAMAGE[damage],), changes, seeds, test="flickr8k")


def _wrong(found: Found) -> float:
    return 100 - 100 * found["metrics"]["matching(image,text).mass"]


ESTIMATING = [label for label in METHODS if label.startswith("partial")]
PARTIAL = Page(
    "mltm_partial",
    "Partial transport for data of which some pairs are wrong: only a share of the batch is matched. How large a share "
    "is estimated while training, from the ranks of the pairs' own scores; nothing is told of how many are wrong.",
    [
        Grid(
            "Flickr8k with wrong pairs",
            [recall("text", "image", 10), recall("text", "image", 1), recall("image", "text", 10)],
            {label: {damage: _row(label, damage) for damage in DAMAGE} for label in METHODS},
            "A share of the photographs has the captions of another one, in training and in validation alike: whoever "
            "has wrong pairs has them everywhere. The 1,000 test photographs have their own. In brackets what is kept "
            "of the first column. One seed, but three (± their standard deviation) for the first row without wrong "
            "pairs and with 40%.",
        ),
        Grid(
            "The share of wrong pairs, as estimated",
            [Column("% estimated", _wrong)],
            {label: {damage: _row(label, damage) for damage in DAMAGE} for label in ESTIMATING},
            "At the end of training; the same runs.",
            kept=False,
        ),
        sounds("mltm_partial"),
    ],
)
MLTM = Page(
    "mltm",
    "The batch matched by entropic transport, under a metric that is learned or not.",
    [
        pictures(
            "mltm",
            {
                "full metric, as it comes": (),
                "low rank (32)": ("space.similarity.metric=low_rank", "space.similarity.rank=32"),
                "diagonal": ("space.similarity.metric=diagonal",),
                "identity": ("space.similarity.metric=identity",),
            },
            seeds=(0,),
        ),
        sounds("mltm"),
    ],
)
