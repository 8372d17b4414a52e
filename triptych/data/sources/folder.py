"""Any folder: files of one name belong together, and a sub-folder is a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from triptych.data.columns import FileKind
from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, captions, kind_of, split_all
from triptych.data.sources.local import Copy
from triptych.errors import MediaError
from triptych.media import TEXT_ENDINGS
from triptych.media import text as texts

# Folders that say what kind of files they hold; they are no labels, and audio/dog.wav belongs to images/dog.jpg.
KINDS = frozenset(
    f"{name}{many}"
    for name in ("audio", "sound", "wav", "image", "picture", "photo", "video", "film", "text", "caption")
    for many in ("", "s")
)


@dataclass(frozen=True)
class Found:
    """The files of one name."""

    files: dict[FileKind, Path]
    texts: list[Path] = field(default_factory=list)


def read(copy: Copy) -> Draft:
    """dog.wav, dog.jpg and dog.txt are one row; folders named train, valid, test are splits, other folders labels.

    Each line of a text file is a caption. A row with one file only gets its label as its caption, and its label as its
    group: the words fit every file of the folder.
    """
    rows: dict[tuple[str, ...], Found] = {}
    left_out: Counter[str] = Counter()
    for path in copy.all("*"):
        parts = path.relative_to(copy.path).parts
        kind = kind_of(path)
        if (kind is None and path.suffix.lower() not in TEXT_ENDINGS) or any(part.startswith(".") for part in parts):
            continue
        own = rows.setdefault((*(part for part in parts[:-1] if part.lower() not in KINDS), path.stem), Found({}))
        if kind is None:
            own.texts.append(path)
        elif kind in own.files:
            left_out[f"second {kind} files of one name"] += 1
        else:
            own.files[kind] = path
    if not any(own.files for own in rows.values()):
        raise copy.missing("sound, picture or film files")
    items = [_item(key, own, left_out) for key, own in sorted(rows.items())]
    notes: list[str] = []
    return Draft(split_all(items, "folder", notes), left_out, notes)


def _item(key: tuple[str, ...], own: Found, left_out: Counter[str]) -> Item:
    folders = key[:-1]
    split = next((SPLITS[name.lower()] for name in folders if name.lower() in SPLITS), None)
    label = next((name for name in reversed(folders) if name.lower() not in SPLITS), None)
    words = label.replace("_", " ") if label else None
    told = captions(*(line for path in own.texts for line in _lines(path, left_out)))
    item = Item(str(PurePath(*key).as_posix()), texts=told, split=split, label=words, files=own.files)
    if item.pairs or words is None:
        return item
    return Item(item.id, texts=captions(words), group=words, split=split, label=words, files=own.files)


def _lines(path: Path, left_out: Counter[str]) -> Iterable[str]:
    try:
        texts.read(path)  # within its limits, and UTF-8
    except MediaError:
        left_out["text files that cannot be read"] += 1
        return ()
    return path.read_text(encoding="utf-8-sig").split("\n")


SOURCE = Dataset(
    title="any folder of sounds, pictures, films and text files",
    pairs="whatever lies together",
    expects=(
        "files of one name belong together: dog.wav, dog.jpg, dog.txt (also in audio/, images/, captions/)",
        "other sub-folders are labels: rain/1.wav, rain/2.wav; folders train, valid, test are splits",
    ),
    licence="yours",
    read=read,
)
