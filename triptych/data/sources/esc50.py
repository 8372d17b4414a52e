"""ESC-50: 2,000 clips of environmental sound in 50 classes and 5 official folds."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from triptych.data.sources.draft import Dataset, Draft, Item, captions, choose, share
from triptych.data.sources.local import Copy, read_csv, read_lines
from triptych.errors import ManifestError, UsageError

FOLDS = (1, 2, 3, 4, 5)
CAPTIONS = ("both", "classes", "titles")
SPLITS = ("three", "two")
# The first number that leaves the pairs of classes which share recordings (hen and rooster, clock tick and clock
# alarm) in one class fold each: nothing that is heard in training is heard again in the test.
CLASS_SEED = 0
ATTRIBUTION = re.compile(r"- \[(\d+-\d+)-\w+\.ogg\]:\s+clip derived from (.*?)\s*\(https?://\S+\) by ")
ENDING = re.compile(r"\.(wav|mp3|aiff?|flac|ogg|m4a)$", re.IGNORECASE)
ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


def class_folds(classes: list[str]) -> dict[str, int]:
    """Every class -> its fold of 1 to 5 for class-disjoint splits: ten classes each, in an order a hash decides."""
    order = sorted(classes, key=lambda name: share("esc50 classes", str(CLASS_SEED), name))
    size = -(-len(order) // len(FOLDS))
    return {name: 1 + place // size for place, name in enumerate(order)}


def read(
    copy: Copy, *, fold: int | None = None, classes: int | None = None, captions: str = "both", splits: str = "three"
) -> Draft:
    """One fold is the test split and the next one valid: a fold of clips, or with `classes` a fold of classes.

    splits: three, or two, where the fold that would be valid is learned from as well.

    captions: the class in words, the title the clip had on Freesound, or both. A class fits every clip of it, so the
    group is the class; titles alone tell clips apart, so the group is the title.
    """
    choose("captions", captions, CAPTIONS)
    choose("splits", splits, SPLITS)
    if fold is not None and classes is not None:
        raise UsageError("--fold and --classes cannot go together: the test split is a fold of clips or of classes")
    test = classes or fold or 1
    choose("fold" if classes is None else "classes", test, FOLDS)
    table = copy.file("meta/esc50.csv", "meta.csv", "esc50.csv")
    rows = read_csv(table, ("filename", "fold", "category"))
    titles = _titles(copy, rows)
    notes = []
    if captions != "classes" and not titles:
        if captions == "titles":
            raise ManifestError(f"{table}: has no titles, and LICENSE beside it names none; use --captions classes")
        notes.append("no titles here (neither a title column nor the LICENSE file): the captions are the classes alone")
        captions = "classes"
    sounds = copy.base((row["filename"] for row in rows), "sound files")
    of_class = class_folds(sorted({row["category"] for row in rows}))
    items = []
    for row in rows:
        item = _item(row, sounds, titles, captions)
        own = of_class[row["category"]] if classes is not None else int(row["fold"])
        items.append(replace(item, split=_split(own, test, valid=splits == "three")))
    return Draft(items, Counter(), notes)


def _item(row: dict[str, str], sounds: Path, titles: dict[str, str], kind: str) -> Item:
    name = Path(row["filename"]).stem
    label = row["category"].replace("_", " ")
    told = {"classes": f"this is a sound of {label}", "titles": titles.get(name)}
    texts = captions(*(told[one] for one in (("classes", "titles") if kind == "both" else (kind,))))
    group = texts[0].casefold() if kind == "titles" and texts else label
    return Item(name, files={"audio": sounds / row["filename"]}, texts=texts, group=group, label=label)


def _split(own: int, test: int, valid: bool) -> str:
    return "test" if own == test else "valid" if valid and own == test % len(FOLDS) + 1 else "train"


def _titles(copy: Copy, rows: list[dict[str, str]]) -> dict[str, str]:
    """Clip -> title: from a title column, else from the attributions in the data set's LICENSE file."""
    if "title" in rows[0]:
        return {Path(row["filename"]).stem: _words(row["title"] or "") for row in rows}
    licence = copy.seek("LICENSE")
    found = map(ATTRIBUTION.match, read_lines(licence) if licence else ())
    known = {match[1]: match[2] for match in found if match}
    # By recording, 1-100032 of 1-100032-A-0: its clips share a title, and one clip is misspelt there.
    names = {Path(row["filename"]).stem for row in rows}
    return {name: _words(known[own]) for name in names if (own := "-".join(name.split("-")[:2])) in known}


def _words(title: str) -> str:
    """A title as words: without the ending of a sound file, with spaces for underscores."""
    plain = ESCAPED.sub(lambda match: chr(int(match[1], 16)), title).replace("\u200b", "")
    return ENDING.sub("", plain.strip()).replace("_", " ")


SOURCE = Dataset(
    title="ESC-50, environmental sounds in 50 classes",
    pairs="audio–text",
    expects=("meta/esc50.csv or meta.csv", "audio/*.wav or *.ogg", "LICENSE, for the titles (where meta.csv has none)"),
    licence="CC BY-NC 3.0 as a whole; each clip CC0, CC BY, CC BY-NC or Sampling+ (see its LICENSE)",
    read=read,
)
