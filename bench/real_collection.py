"""Train a space for audio clips, photographs, drawings and speech (recipe `mixed`), and search a collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.real_data import all_contain_word, find_dataset
from triptych.app import terminal
from triptych.data import datasets, manifest
from triptych.data.datasets.convert import convert
from triptych.evaluation.evaluate import evaluate
from triptych.interfaces import Modality, Source
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.item import Hit
from triptych.search.ranking import RELEVANCE_THRESHOLD
from triptych.search.scan import items_from_rows
from triptych.training.loop import train

DATASET_NAMES = ("flickr8k", "esc50", "gcompris")
RUN_FOLDER = Path("runs/real")
# Plausible queries for which the collection has no item.
ABSENT_QUERIES = (
    "a violin", "a piano sonata", "a man reading the news", "an orchestra tuning", "bagpipes", "whale song",
    "a choir", "a tennis match", "a horse galloping", "a lion roaring", "popping corn", "an opera singer",
    "a printer", "coins falling", "skateboard wheels", "a woodpecker", "a zip", "a bowling alley", "morse code",
    "a kettle whistling",
)  # fmt: skip


def main() -> None:
    """Make manifests, train, evaluate all directions, index the test rows, and search."""
    folders = {name: find_dataset(name) for name in DATASET_NAMES}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        print(f"{', '.join(missing)} not available: set TRIPTYCH_DATA to the folder that contains it")
        return
    manifests = {name: RUN_FOLDER / "data" / f"{name}.csv" for name in DATASET_NAMES}
    for name, path in manifests.items():
        convert(name, datasets.DATASETS[name], folders[name], path, show_progress=False)
    first, *others = map(str, manifests.values())
    overrides = [f"data.manifest={first}", f"data.extra_manifests={others}", "data.allow_outside=true"]
    overrides.append("space.encoders.audio.name=yamnet")  # the encoder of the results in docs/search.md
    train(Recipe.load("mixed", overrides), RUN_FOLDER / "run")
    collection = Collection(RUN_FOLDER / "collection", RUN_FOLDER / "run", rebuild=True)
    for name, path in manifests.items():
        rows = manifest.read(path, allow_outside=True).split("test").rows
        terminal.stdout.print(name)
        terminal.stdout.print(terminal.make_recall_table(evaluate(collection.space, rows).directions))
        collection.index(items_from_rows(rows, collection.space), path)
    item_counts = {m: len(collection.sample(m, 1_000_000)[0]) for m in collection.space.modalities}
    print(f"items in the collection: {item_counts}")
    _search_by_class_name(
        collection, [row for row in manifest.read(manifests["esc50"], True).rows if row.split == "test"]
    )
    _search_across_datasets(collection, manifests)
    first_hits = [collection.search(Source("text", query), ["audio"], k=1)[0] for query in ABSENT_QUERIES]
    num_relevant = sum(hit.relevance >= RELEVANCE_THRESHOLD for hit in first_hits)
    print(
        f"{len(ABSENT_QUERIES)} queries without matching audio: the first hit is above the relevance threshold for "
        f"{num_relevant}"
    )


def _search_by_class_name(collection: Collection, rows: Sequence[manifest.Row]) -> None:
    """Search all audio items (clips and speech) by class name."""
    names = sorted({row.label or "" for row in rows})
    hits_by_class = [collection.search(Source("text", name), ["audio"], k=5, fold_duplicates=False) for name in names]
    num_first_correct = sum(_read_label(hits[0]) == name for name, hits in zip(names, hits_by_class, strict=True))
    precision = np.mean(
        [[_read_label(hit) == name for hit in hits] for name, hits in zip(names, hits_by_class, strict=True)]
    )
    num_relevant = sum(hits[0].relevance >= RELEVANCE_THRESHOLD for hits in hits_by_class)
    print(
        f"{len(names)} class names → audio: the first hit is correct for {num_first_correct}, precision@5 is "
        f"{100 * precision:.0f}%; the first hit is above the relevance threshold for {num_relevant}"
    )


def _search_across_datasets(collection: Collection, manifests: dict[str, Path]) -> None:
    """Search between modalities of different datasets: images and audio of dogs, drawings and audio of one class."""
    image_rows = manifest.read(manifests["flickr8k"], True).split("test").rows
    dog_images = [row.image for row in image_rows if row.image and all_contain_word(list(row.texts), "dog")]
    _print_hit_rates(
        "photographs of dogs → audio",
        collection,
        "image",
        dog_images,
        "audio",
        lambda hit, _: _read_label(hit) == "dog",
    )
    clips = manifest.read(manifests["esc50"], True).split("test").rows
    dog_clips = [row.audio for row in clips if row.audio and row.label == "dog"]

    def shows_dog(hit: Hit, _: Path) -> bool:
        return sum("dog" in caption.lower() for caption in hit.item.captions) >= 3

    _print_hit_rates("clips of dogs → images", collection, "audio", dog_clips, "image", shows_dog)
    classes = {row.label for row in clips}
    words_by_image = {row.image: row.texts[0] for row in manifest.read(manifests["gcompris"], True).rows if row.image}
    drawings = {path: word for path, word in words_by_image.items() if word in classes}

    def is_named(hit: Hit, path: Path) -> bool:
        return _read_label(hit) == drawings[path]

    _print_hit_rates(
        f"drawings ({', '.join(drawings.values())}) → audio", collection, "image", list(drawings), "audio", is_named
    )


def _print_hit_rates(
    title: str,
    collection: Collection,
    query_modality: Modality,
    files: Sequence[Path],
    target_modality: Modality,
    is_correct: Callable[[Hit, Path], bool],
) -> None:
    correct = [
        [
            is_correct(h, f)
            for h in collection.search(Source(query_modality, f), [target_modality], k=5, fold_duplicates=False)
        ]
        for f in files
    ]
    num_first_correct, num_any_correct = sum(hits[0] for hits in correct), sum(any(hits) for hits in correct)
    print(
        f"{title}: {len(files)} queries, the first hit is correct for {num_first_correct}, one of the first five for "
        f"{num_any_correct}"
    )


def _read_label(hit: Hit) -> str:
    return hit.item.columns.get("label", ("",))[0] if hit.source.path.parts[-3:-2] == ("esc50",) else ""
