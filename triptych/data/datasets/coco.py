"""COCO Captions: photographs with five captions each."""

import re
from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_fields, read_json
from triptych.errors import ManifestError

TABLE_NAME = re.compile(r"captions_(train|val)(\d{4})")
SPLIT_NAMES = {"train": "train", "restval": "train", "val": "valid", "test": "test"}


def read(copy: LocalCopy, *, splits: str = "auto") -> ManifestDraft:
    """Read one row for each image.

    splits: `karpathy` reads dataset_coco.json, with 5,000 test images. `official` reads captions_*.json and uses val as
      the test split, because the captions of the test images are not published. `auto` selects `karpathy` if
      dataset_coco.json exists.
    """
    check_choice("splits", splits, ("auto", "official", "karpathy"))
    table = copy.find_file("dataset_coco.json")
    if splits == "karpathy" or (splits == "auto" and table):
        return _read_karpathy(copy, table or copy.require_file("dataset_coco.json"))
    tables = {path: match for path in copy.find_files("captions_*.json") if (match := TABLE_NAME.fullmatch(path.stem))}
    if not tables:
        raise copy.missing_error("annotations/captions_train2017.json, …_val2017.json or dataset_coco.json")
    years = sorted({match[2] for match in tables.values()})
    items: list[DraftItem] = []
    for path, match in tables.items():
        if match[2] == years[-1]:
            items += _read_official(copy, path, match[1] + match[2], "train" if match[1] == "train" else "test")
    notes = [f"there are annotations of several years; only {years[-1]} is used"] if len(years) > 1 else []
    return ManifestDraft(items, notes=notes)


def _read_official(copy: LocalCopy, table: Path, part: str, split: str) -> list[DraftItem]:
    content = read_json(table, "images", "annotations")
    names: dict[str, str] = {}
    for entry in content["images"]:
        number, name = read_fields(entry, table, "id", "file_name")
        names[number] = name
    texts: dict[str, list[str]] = {}
    for entry in content["annotations"]:
        image_id, text = read_fields(entry, table, "image_id", "caption")
        texts.setdefault(image_id, []).append(text)
    base = copy.find_base_folder(names.values(), f"images of {part}", prefer=part)
    return [
        DraftItem(f"{number}", files={"image": base / name}, texts=clean_captions(*texts.get(number, ())), split=split)
        for number, name in names.items()
    ]


def _read_karpathy(copy: LocalCopy, table: Path) -> ManifestDraft:
    images = read_json(table, "images")["images"]
    paths = ["/".join(read_fields(entry, table, "filepath", "filename")) for entry in images]
    base = copy.find_base_folder(paths, "images")
    items = []
    for entry, path in zip(images, paths, strict=True):
        number, split = read_fields(entry, table, "cocoid", "split")
        if split not in SPLIT_NAMES:
            raise ManifestError(f"{table}: split {split!r} is not one of {', '.join(SPLIT_NAMES)}")
        texts = clean_captions(*(read_fields(each, table, "raw")[0] for each in entry.get("sentences", ())))
        items.append(DraftItem(number, {"image": base / path}, texts, split=SPLIT_NAMES[split]))
    return ManifestDraft(items)


DATASET = Dataset(
    title="COCO Captions: photographs with five captions",
    modalities="image–text",
    expected_files=(
        "annotations/captions_train2017.json and captions_val2017.json (or 2014)",
        "or dataset_coco.json, with Karpathy's splits",
        "images in train2017/, val2017/ (or 2014), here or in images/",
    ),
    licence="captions CC BY 4.0; photographs under their authors' Flickr terms",
    read=read,
)
