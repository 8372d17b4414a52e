"""The recipes that contrast pairs: clap, siglip, align_uniform, wang_contrastive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.results.data import FOLDS
from bench.results.schema import (
    CLASSIFY,
    COST_COLUMNS,
    EVALUATE,
    Page,
    Row,
    Table,
    accuracy_column,
    recall_column,
    recall_columns,
)

SEEDS = (0, 1, 2)
Overrides = Mapping[str, Sequence[str]]  # label -> changes of the recipe
DEFAULT: Overrides = {"as it comes": ()}
# 1,600 clips are few: smaller batches make enough steps of them; the maximum hears what is short.
SMALL_DATA = ("space.pooling=mean_max", "training.batch_size=256", "training.learning_rate=1e-3")
AUDIO_OVERRIDES = (*SMALL_DATA, "training.epochs=15")
UNSEEN_OVERRIDES = (*SMALL_DATA, "training.epochs=6")


def image_table(recipe: str, rows: Overrides = DEFAULT, seeds: tuple[int, ...] = SEEDS, about: str = "") -> Table:
    """Recall on Flickr8k's 1,000 test photographs and their captions."""
    return Table(
        "Flickr8k",
        [*recall_columns("text", "image"), *recall_columns("image", "text"), *COST_COLUMNS],
        [
            Row(label, recipe, ("flickr8k",), tuple(overrides), seeds, headline=index == 0)
            for index, (label, overrides) in enumerate(rows.items())
        ],
        about or "Photographs and their five captions; 1,000 of them are the test. Chance is 1.0% at R@10.",
    )


def audio_table(recipe: str, rows: Overrides = DEFAULT) -> Table:
    """Classes named by prompts, and recall, on ESC-50's five official folds."""
    return Table(
        "ESC-50, official folds",
        [accuracy_column(), recall_column("text", "audio", 10), recall_column("audio", "text", 10), *COST_COLUMNS],
        [
            Row(
                label,
                recipe,
                tuple(f"esc50-fold{n}-all" for n in FOLDS),
                (*AUDIO_OVERRIDES, *overrides),
                SEEDS,
                measures={"classes": CLASSIFY, "recall": EVALUATE},
                headline=index == 0,
            )
            for index, (label, overrides) in enumerate(rows.items())
        ],
        "Learned from four folds of clips, with the class and the clip's title as captions; the fifth is named by the "
        "class whose prompt, “this is a sound of …”, is closest (chance: 2%). A right answer of recall is any clip, or "
        "any caption, of the class. Epochs and pooling were chosen with three folds to learn from and the fourth to "
        "look at, never on the test fold.",
    )


def unseen_table(recipe: str, rows: Overrides) -> Table:
    """Classes that were never heard in training, named by prompts: five folds of ten classes."""
    return Table(
        "ESC-50, ten unseen classes",
        [accuracy_column("named rightly, of ten"), *COST_COLUMNS],
        [
            Row(
                label,
                recipe,
                tuple(f"esc50-unseen{n}-all" for n in FOLDS),
                (*UNSEEN_OVERRIDES, *overrides),
                SEEDS,
                measures={"classes": CLASSIFY},
                headline=index == 0,
            )
            for index, (label, overrides) in enumerate(rows.items())
        ],
        "Learned from forty classes, measured on the other ten, which no sound and no caption of training is of "
        "(chance: 10%); five folds of classes, fixed by a seed. Chosen as above, on ten classes of the forty.",
    )


CLAP = Page(
    "clap",
    "Each item must pick its partner out of the batch, both ways, with a learned temperature.",
    [
        image_table("clap"),
        audio_table("clap"),
        unseen_table(
            "clap",
            {
                "fixed temperature 0.2": ("objectives.0.temperature=0.2", "objectives.0.learn_temperature=false"),
            },
        ),
    ],
    observations="The simplest recipe has the highest figures on pictures, `siglip` a point behind: a matrix for each "
    "side, the temperature learned. Rate, batch and epochs were chosen on the validation split for matching and "
    "taken over here and by the other recipes untuned, so small differences between recipes say little.\n\n"
    "Sounds are named better by prompts than a linear classifier names them on the same features and folds "
    "(86.1%, `python -m bench probe`): the captions, among them the clips' titles, add something. For classes "
    "that were never heard the temperature is fixed at 0.2, as a sharp, learned one knows the forty classes of "
    "training by heart; that, and few epochs, was chosen on validation classes. The five folds differ by almost "
    "thirty points, so a figure of one fold says little.",
)
SIGLIP = Page(
    "siglip",
    "Each pair of the batch is judged alone, right or wrong.",
    [image_table("siglip"), audio_table("siglip")],
    observations="A point behind `clap` on pictures, four on sounds; not tuned. "
    "That sigmoids win with small batches could "
    "not be seen here, at 512.",
)
ALIGN_UNIFORM = Page(
    "align_uniform",
    "Partners close together, everything spread evenly over the sphere: the two halves of a contrastive loss.",
    [image_table("align_uniform"), audio_table("align_uniform")],
    observations="With the published weights (alpha = t = 2, both halves alike) it stays behind the contrastive losses that it "
    "is the limit of, and takes the longest: it compares every two items of each side without a matrix product. "
    "That the two halves do as well as the whole did not hold on these data; the weights were not tuned.",
)
WANG_CONTRASTIVE = Page(
    "wang_contrastive",
    "A partner against M negatives drawn at random from the batch.",
    [
        image_table(
            "wang_contrastive",
            {
                "64 negatives, as it comes": (),
                **{f"{m} negatives": (f"objectives.0.num_negatives={m}",) for m in (4, 16, 255)},
            },
            seeds=(0,),
        ),
        audio_table("wang_contrastive"),
    ],
    observations="Against `clap` it has 64 negatives in place of 511, one direction in place of two, and a temperature that "
    "stays. Together that costs two points at R@10. More negatives find more: from 4 to 255 of them seven points, most "
    "of it gained by 64. On sounds, with fifty classes, it is as good as `clap`.",
)
