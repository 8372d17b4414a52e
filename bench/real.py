"""One space for real sounds, photographs, drawings and voices (recipe mixed), and what a collection of them finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.real_data import all_say, find
from triptych.app import show
from triptych.contracts import Hit, Modality, Source
from triptych.data import manifest
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert
from triptych.evaluation.evaluate import evaluate
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.items import items_of
from triptych.search.relevance import RELEVANT
from triptych.training.loop import train

NAMES = ("flickr8k", "esc50", "gcompris")
HOME = Path("runs/real")
# No clip, photograph or drawing of the collection is of these; people would ask for them all the same.
ABSENT = (
    "a violin", "a piano sonata", "a man reading the news", "an orchestra tuning", "bagpipes", "whale song",
    "a choir", "a tennis match", "a horse galloping", "a lion roaring", "popping corn", "an opera singer",
    "a printer", "coins falling", "skateboard wheels", "a woodpecker", "a zip", "a bowling alley", "morse code",
    "a kettle whistling",
)  # fmt: skip


def main() -> None:
    """Make manifests, train, measure every direction, index the held-out rows, ask."""
    places = {name: find(name) for name in NAMES}
    missing = [name for name, place in places.items() if place is None]
    if missing:
        print(f"no {', '.join(missing)} here: set TRIPTYCH_DATA to the folder that holds it")
        return
    pairs = {name: HOME / "data" / f"{name}.csv" for name in NAMES}
    for name, path in pairs.items():
        convert(name, SOURCES[name], places[name], path, show=False)
    first, *others = map(str, pairs.values())
    changes = [f"data.manifest={first}", f"data.also={others}", "data.allow_outside=true"]
    train(Recipe.load("mixed", changes), HOME / "run")
    collection = Collection.create(HOME / "collection", HOME / "run", rebuild=True)
    for name, path in pairs.items():
        rows = manifest.read(path, allow_outside=True).split("test").rows
        show.out.print(name)
        show.out.print(show.recalls(evaluate(collection.space, rows).directions))
        collection.index(items_of(rows, collection.space), path)
    kinds = {m: len(collection.sample(m, 1_000_000)[0]) for m in collection.space.modalities}
    print(f"the collection: {kinds}")
    _ask_by_class(collection, [row for row in manifest.read(pairs["esc50"], True).rows if row.split == "test"])
    _ask_across(collection, pairs)
    first_hits = [collection.search(Source("text", words), ["audio"], k=1)[0] for words in ABSENT]
    above = sum(hit.relevance >= RELEVANT for hit in first_hits)
    print(f"words for {len(ABSENT)} sounds that are not there: the first sound is above the line for {above}")


def _ask_by_class(collection: Collection, rows: Sequence[manifest.Row]) -> None:
    """The plain names of the classes, asked of all sounds: clips and voices."""
    names = sorted({row.label or "" for row in rows})
    found = [collection.search(Source("text", name), ["audio"], k=5, fold=False) for name in names]
    first = sum(_label(hits[0]) == name for name, hits in zip(names, found, strict=True))
    right = np.mean([[_label(hit) == name for hit in hits] for name, hits in zip(names, found, strict=True)])
    line = sum(hits[0].relevance >= RELEVANT for hits in found)
    print(
        f"names of {len(names)} classes → sounds: the first is right for {first}, {100 * right:.0f}% of the first five "
        f"are; the first is above the line for {line}"
    )


def _ask_across(collection: Collection, pairs: dict[str, Path]) -> None:
    """Pictures and sounds that met in no pair: dogs of photographs and of clips, drawings and clips of one name."""
    photos = manifest.read(pairs["flickr8k"], True).split("test").rows
    dogs = [row.image for row in photos if row.image and all_say(list(row.texts), "dog")]
    _tell("photographs of dogs → sounds", collection, "image", dogs, "audio", lambda hit, _: _label(hit) == "dog")
    clips = manifest.read(pairs["esc50"], True).split("test").rows
    barks = [row.audio for row in clips if row.audio and row.label == "dog"]

    def shows_dog(hit: Hit, _: Path) -> bool:
        return sum("dog" in words.lower() for words in hit.captions) >= 3

    _tell("clips of dogs → pictures", collection, "audio", barks, "image", shows_dog)
    classes = {row.label for row in clips}
    things = {row.image: row.texts[0] for row in manifest.read(pairs["gcompris"], True).rows if row.image}
    drawn = {path: word for path, word in things.items() if word in classes}

    def is_named(hit: Hit, path: Path) -> bool:
        return _label(hit) == drawn[path]

    _tell(f"drawings ({', '.join(drawn.values())}) → sounds", collection, "image", list(drawn), "audio", is_named)


def _tell(
    title: str,
    collection: Collection,
    asked: Modality,
    files: Sequence[Path],
    want: Modality,
    is_right: Callable[[Hit, Path], bool],
) -> None:
    found = [[is_right(h, f) for h in collection.search(Source(asked, f), [want], k=5, fold=False)] for f in files]
    first, five = sum(hits[0] for hits in found), sum(any(hits) for hits in found)
    print(f"{title}: of {len(files)} the first is right for {first}, one of the first five for {five}")


def _label(hit: Hit) -> str:
    return hit.columns.get("label", ("",))[0] if Path(hit.item).parts[-3:-2] == ("esc50",) else ""
