"""ESC-50: 2,000 environmental recordings in 50 classes and 5 official folds."""

import re
from dataclasses import replace
from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_csv, read_lines
from triptych.data.datasets.splits import hash_to_fraction
from triptych.errors import ManifestError, UsageError

FOLDS = (1, 2, 3, 4, 5)
CAPTION_CHOICES = ("both", "classes", "titles")
SPLIT_CHOICES = ("three", "two")
# The first seed for which classes that share recordings (hen and rooster, clock tick and clock alarm) are in one fold,
# so that no recording occurs in both train and test.
CLASS_SEED = 0
ATTRIBUTION = re.compile(r"- \[(\d+-\d+)-\w+\.ogg\]:\s+clip derived from (.*?)\s*\(https?://\S+\) by ")
AUDIO_SUFFIX = re.compile(r"\.(wav|mp3|aiff?|flac|ogg|m4a)$", re.IGNORECASE)
ESCAPED_CHARACTER = re.compile(r"\\u([0-9a-f]{4})")


def assign_class_folds(classes: list[str]) -> dict[str, int]:
    """Assign each class to a fold from 1 to 5, for class-disjoint splits: ten classes per fold, sorted by a hash."""
    order = sorted(classes, key=lambda name: hash_to_fraction("esc50 classes", str(CLASS_SEED), name))
    size = -(-len(order) // len(FOLDS))
    return {name: 1 + position // size for position, name in enumerate(order)}


def read(
    copy: LocalCopy,
    *,
    fold: int | None = None,
    classes: int | None = None,
    captions: str = "both",
    splits: str = "three",
) -> ManifestDraft:
    """Read one row for each clip. One fold is the test split, and the next fold is the valid split.

    fold, classes: the number of the test fold. `fold` is an official fold of clips, `classes` a fold of classes.
    captions: the class name, the title of the clip on Freesound, or both. A class name fits every clip of the class, so
      the group is the class; for `titles` the group is the title.
    splits: `three`, or `two` to add the valid fold to train.
    """
    check_choice("captions", captions, CAPTION_CHOICES)
    check_choice("splits", splits, SPLIT_CHOICES)
    if fold is not None and classes is not None:
        raise UsageError("--fold and --classes exclude each other: the test split is a fold of clips or of classes")
    test_fold = classes or fold or 1
    check_choice("fold" if classes is None else "classes", test_fold, FOLDS)
    table = copy.require_file("meta/esc50.csv", "meta.csv", "esc50.csv")
    rows = read_csv(table, ("filename", "fold", "category"))
    titles = _read_titles(copy, rows)
    notes = []
    if captions != "classes" and not titles:
        if captions == "titles":
            raise ManifestError(f"{table}: there are no titles, neither here nor in LICENSE; use --captions classes")
        notes.append("there are no titles (no title column and no LICENSE file): captions are class names only")
        captions = "classes"
    audio_folder = copy.find_base_folder((row["filename"] for row in rows), "audio files")
    class_folds = assign_class_folds(sorted({row["category"] for row in rows}))
    items = []
    for row in rows:
        fold_number = class_folds[row["category"]] if classes is not None else int(row["fold"])
        split = _split_from_fold(fold_number, test_fold, has_valid=splits == "three")
        items.append(replace(_build_item(row, audio_folder, titles, captions), split=split))
    return ManifestDraft(items, notes=notes)


def _build_item(row: dict[str, str], audio_folder: Path, titles: dict[str, str], caption_choice: str) -> DraftItem:
    name = Path(row["filename"]).stem
    label = row["category"].replace("_", " ")
    class_caption = f"this is a sound of {label}" if caption_choice != "titles" else None
    title = titles.get(name) if caption_choice != "classes" else None
    texts = clean_captions(class_caption, title)
    group = texts[0].casefold() if caption_choice == "titles" and texts else label
    return DraftItem(name, files={"audio": audio_folder / row["filename"]}, texts=texts, group=group, label=label)


def _split_from_fold(fold_number: int, test_fold: int, has_valid: bool) -> str:
    if fold_number == test_fold:
        return "test"
    return "valid" if has_valid and fold_number == test_fold % len(FOLDS) + 1 else "train"


def _read_titles(copy: LocalCopy, rows: list[dict[str, str]]) -> dict[str, str]:
    """Return clip -> title, from the title column or from the attributions in LICENSE."""
    if "title" in rows[0]:
        return {Path(row["filename"]).stem: _clean_title(row["title"] or "") for row in rows}
    licence = copy.find_file("LICENSE")
    matches = map(ATTRIBUTION.match, read_lines(licence) if licence else ())
    titles = {match[1]: match[2] for match in matches if match}
    # Look up titles by recording (1-100032 for clip 1-100032-A-0), because LICENSE misspells the name of one clip.
    names = {Path(row["filename"]).stem for row in rows}
    recordings = {name: "-".join(name.split("-")[:2]) for name in names}
    return {name: _clean_title(titles[recording]) for name, recording in recordings.items() if recording in titles}


def _clean_title(title: str) -> str:
    """Remove the suffix of an audio file from a title, and replace underscores with spaces."""
    unescaped = ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 16)), title).replace("\u200b", "")
    return AUDIO_SUFFIX.sub("", unescaped.strip()).replace("_", " ")


DATASET = Dataset(
    title="ESC-50: environmental recordings in 50 classes",
    modalities="audio–text",
    expected_files=("meta/esc50.csv or meta.csv", "audio/*.wav or *.ogg", "LICENSE, for titles (if meta.csv has none)"),
    licence="CC BY-NC 3.0 as a whole; each clip CC0, CC BY, CC BY-NC or Sampling+ (see its LICENSE)",
    read=read,
)
