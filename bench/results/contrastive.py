"""The recipes that contrast pairs: clap, siglip, align_uniform, wang_contrastive."""

from __future__ import annotations

from bench.results.data import FOLDS
from bench.results.plan import COST, Page, Row, Table, recalls

SEEDS = (0, 1, 2)
FOLD_DATA = tuple(f"esc50-fold{n}" for n in FOLDS)


def pictures(recipe: str, rows: dict[str, tuple[str, ...]] | None = None, about: str = "") -> Table:
    """Recall on Flickr8k's 1,000 test photographs and their captions."""
    return Table(
        "Flickr8k",
        [*recalls("text", "image"), *recalls("image", "text"), *COST],
        [
            Row(label, recipe, ("flickr8k",), changes, SEEDS, headline=number == 0)
            for number, (label, changes) in enumerate((rows or {"as it comes": ()}).items())
        ],
        about,
    )


CLAP = Page("clap", "", [pictures("clap")])
SIGLIP = Page("siglip", "", [pictures("siglip")])
ALIGN_UNIFORM = Page("align_uniform", "", [pictures("align_uniform")])
WANG_CONTRASTIVE = Page("wang_contrastive", "", [pictures("wang_contrastive")])
