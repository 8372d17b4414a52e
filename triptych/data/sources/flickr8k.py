"""Flickr8k: 8,000 photographs with five captions each, and official train, dev and test lists."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace

from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, choose
from triptych.data.sources.draft import captions as clean
from triptych.data.sources.local import Copy, read_lines

LISTS = ("train", "dev", "test")
CAPTIONS = ("together", "single")


def read(copy: Copy, *, captions: str = "together") -> Draft:
    """Rows are photographs, each a group of its own; those in no official list are left out.

    captions: all of a photograph in one row, or single: a row each, so that every caption is a pair of its own.
    """
    choose("captions", captions, CAPTIONS)
    texts, splits = read_captions(copy), read_splits(copy)
    pictures = copy.base(splits, "photographs")
    items = [
        Item(
            name.removesuffix(".jpg"),
            files={"image": pictures / name},
            texts=clean(*texts.get(name, {}).values()),
            split=split,
        )
        for name, split in splits.items()
    ]
    if captions == "single":
        items = [
            replace(item, id=f"{item.id}#{number}", texts=(text,), group=item.id)
            for item in items
            for number, text in enumerate(item.texts)
        ]
    return Draft(items, Counter({"photographs in no official list": len(texts.keys() - splits.keys())}))


def read_captions(copy: Copy) -> dict[str, dict[int, str]]:
    """Photograph -> number of the caption -> caption."""
    texts: dict[str, dict[int, str]] = {}
    tokens = copy.seek("Flickr8k.token.txt")
    if tokens:
        for line in read_lines(tokens):
            name, _, text = line.partition("\t")
            picture, _, number = name.partition("#")
            texts.setdefault(picture, {})[int(number) if number.isdigit() else len(texts[picture])] = text
        return texts
    with copy.file("Flickr8k.token.txt", "captions.txt").open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            own = texts.setdefault(row.get("image") or "", {})
            own[len(own)] = row.get("caption") or ""
    return texts


def read_splits(copy: Copy) -> dict[str, str]:
    """Photograph -> split, by the official lists."""
    lists = {part: copy.file(f"Flickr_8k.{part}Images.txt") for part in LISTS}
    return {name: SPLITS[part] for part, path in lists.items() for name in read_lines(path)}


SOURCE = Dataset(
    title="Flickr8k, photographs with five captions",
    pairs="image–text",
    expects=(
        "Flickr8k.token.txt (or captions.txt: image, caption)",
        "Flickr_8k.trainImages.txt, …devImages.txt, …testImages.txt",
        "the photographs in images/, Flicker8k_Dataset/ or any folder",
    ),
    licence="research use only; the photographs belong to their authors",
    read=read,
)
