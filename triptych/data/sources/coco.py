"""COCO Captions: photographs with five captions each."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from triptych.data.sources.draft import Dataset, Draft, Item, captions, choose
from triptych.data.sources.local import Copy, pick, read_json
from triptych.errors import ManifestError

TABLE = re.compile(r"captions_(train|val)(\d{4})")
PARTS = {"train": "train", "restval": "train", "val": "valid", "test": "test"}


def read(copy: Copy, *, splits: str = "auto") -> Draft:
    """Official tables: val is the test split, as COCO never published captions of its test pictures.

    splits: `karpathy` takes dataset_coco.json and its 5,000 test pictures, `official` captions_*.json; `auto` the first
    of them that is there.
    """
    choose("splits", splits, ("auto", "official", "karpathy"))
    table = copy.seek("dataset_coco.json")
    if splits == "karpathy" or (splits == "auto" and table):
        return _karpathy(copy, table or copy.file("dataset_coco.json"))
    tables = {path: match for path in copy.all("captions_*.json") if (match := TABLE.fullmatch(path.stem))}
    if not tables:
        raise copy.missing("annotations/captions_train2017.json, …_val2017.json or dataset_coco.json")
    years = sorted({match[2] for match in tables.values()})
    items: list[Item] = []
    for path, match in tables.items():
        if match[2] == years[-1]:
            items += _official(copy, path, match[1] + match[2], "train" if match[1] == "train" else "test")
    notes = [f"tables of several years are here; only {years[-1]} is used"] if len(years) > 1 else []
    return Draft(items, Counter(), notes)


def _official(copy: Copy, table: Path, part: str, split: str) -> list[Item]:
    content = read_json(table, "images", "annotations")
    names: dict[str, str] = {}
    for entry in content["images"]:
        number, name = pick(entry, table, "id", "file_name")
        names[number] = name
    texts: dict[str, list[str]] = {}
    for entry in content["annotations"]:
        picture, text = pick(entry, table, "image_id", "caption")
        texts.setdefault(picture, []).append(text)
    base = copy.base(names.values(), f"the pictures of {part}", prefer=part)
    return [
        Item(f"{number}", files={"image": base / name}, texts=captions(*texts.get(number, ())), split=split)
        for number, name in names.items()
    ]


def _karpathy(copy: Copy, table: Path) -> Draft:
    images = read_json(table, "images")["images"]
    places = [_place(entry, table) for entry in images]
    base = copy.base((str(place) for place in places), "pictures")
    items = []
    for entry, place in zip(images, places, strict=True):
        number, split = pick(entry, table, "cocoid", "split")
        if split not in PARTS:
            raise ManifestError(f"{table}: split {split!r} is none of {', '.join(PARTS)}")
        texts = [pick(sentence, table, "raw")[0] for sentence in entry.get("sentences", ())]
        items.append(Item(number, files={"image": base / place}, texts=captions(*texts), split=PARTS[split]))
    return Draft(items)


def _place(entry: Any, table: Path) -> Path:
    folder, name = pick(entry, table, "filepath", "filename")
    return Path(folder) / name


SOURCE = Dataset(
    title="COCO Captions, photographs with five captions",
    pairs="image–text",
    expects=(
        "annotations/captions_train2017.json and captions_val2017.json (or 2014)",
        "or dataset_coco.json, with Karpathy's splits",
        "the pictures in train2017/, val2017/ (or 2014), here or in images/",
    ),
    licence="captions CC BY 4.0; the photographs under their authors' Flickr terms",
    read=read,
)
