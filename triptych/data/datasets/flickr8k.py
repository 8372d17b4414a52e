"""Flickr8k: 8,000 photographs with five captions each, and official train, dev and test lists."""

import csv
from collections import Counter
from dataclasses import replace

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_lines
from triptych.data.datasets.splits import SPLIT_ALIASES

SPLIT_LISTS = ("train", "dev", "test")
CAPTION_CHOICES = ("together", "single")


def read(copy: LocalCopy, *, captions: str = "together") -> ManifestDraft:
    """Read one row for each image. Images in no official list are skipped.

    captions: `together` gives one row for each image, with all captions of the image. `single` gives one row for each
      caption; the rows of an image share a group.
    """
    check_choice("captions", captions, CAPTION_CHOICES)
    texts, splits = read_captions(copy), read_splits(copy)
    image_folder = copy.find_base_folder(splits, "images")
    items = [
        DraftItem(
            name.removesuffix(".jpg"),
            files={"image": image_folder / name},
            texts=clean_captions(*texts.get(name, {}).values()),
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
    return ManifestDraft(items, Counter({"images in no official list": len(texts.keys() - splits.keys())}))


def read_captions(copy: LocalCopy) -> dict[str, dict[int, str]]:
    """Return image -> caption number -> caption."""
    texts: dict[str, dict[int, str]] = {}
    tokens = copy.find_file("Flickr8k.token.txt")
    if tokens:
        for line in read_lines(tokens):
            name, _, text = line.partition("\t")
            image_name, _, number = name.partition("#")
            texts.setdefault(image_name, {})[int(number) if number.isdigit() else len(texts[image_name])] = text
        return texts
    with copy.require_file("Flickr8k.token.txt", "captions.txt").open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            image_captions = texts.setdefault(row.get("image") or "", {})
            image_captions[len(image_captions)] = row.get("caption") or ""
    return texts


def read_splits(copy: LocalCopy) -> dict[str, str]:
    """Return image -> split, from the official lists."""
    lists = {part: copy.require_file(f"Flickr_8k.{part}Images.txt") for part in SPLIT_LISTS}
    return {name: SPLIT_ALIASES[part] for part, path in lists.items() for name in read_lines(path)}


DATASET = Dataset(
    title="Flickr8k: photographs with five captions",
    modalities="image–text",
    expected_files=(
        "Flickr8k.token.txt (or captions.txt: image, caption)",
        "Flickr_8k.trainImages.txt, …devImages.txt, …testImages.txt",
        "images in images/, Flicker8k_Dataset/ or any folder",
    ),
    licence="research use only; photographs belong to their authors",
    read=read,
)
