"""Any folder: files of one name belong together; a file that is alone gets a caption from its name and its folder's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from triptych.data.columns import FileKind
from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, captions, kind_of, link
from triptych.data.sources.duplicates import identical_files
from triptych.data.sources.local import Copy
from triptych.data.sources.naming import caption_from_names, words_in_name
from triptych.errors import MediaError
from triptych.media import TEXT_ENDINGS
from triptych.media import text as texts

# Folders that say what kind of files they hold; they are no labels, and audio/dog.wav belongs to images/dog.jpg.
KINDS = frozenset(
    f"{name}{many}"
    for name in ("audio", "sound", "wav", "image", "picture", "photo", "video", "film", "text", "caption")
    for many in ("", "s")
)
EXAMPLES = 5  # captions that the user is shown
MOST_ENDINGS = 8  # that the user is shown of files that are not read

Folders = tuple[str, ...]  # the names of the folders that a file lies in


@dataclass(frozen=True)
class Found:
    """The files of one name."""

    files: dict[FileKind, Path]
    texts: list[Path] = field(default_factory=list)


def read(copy: Copy) -> Draft:
    """dog.wav, dog.jpg and dog.txt are one row; folders named train, valid, test are splits.

    Each line of a text file is a caption. A row of one file without a text gets the words of its name and of the
    innermost folder that says something as its caption, and the caption as its group: the words fit every such file.
    """
    left_out: Counter[str] = Counter()
    notes: list[str] = []
    rows = _rows(copy, left_out, notes)
    if not any(own.files for own in rows.values()):
        raise copy.missing("sound, picture or film files")
    split_folders = _split_folders(rows)
    items: list[Item] = []
    made: dict[str, str] = {}
    for key, own in sorted(rows.items()):
        item = _item(key, own, split_folders, left_out)
        caption = "" if item.texts else _caption(item, key, split_folders)
        if caption:
            made[item.id] = caption
            item = replace(item, texts=captions(caption), group=caption)
        elif not item.files:
            left_out["text files without a sound, picture or film of the same name"] += 1
            continue
        elif not item.pairs:
            left_out["files without a caption: neither name nor folder says anything"] += 1
            continue
        items.append(item)
    contents = identical_files(path for item in items for path in item.files.values())
    items = _merge_copies(items, made, contents, left_out)
    notes += _about_captions(items, made, left_out)
    notes += _about_leaks(items, contents)
    units = link({item.id: [contents[path] for path in item.files.values() if path in contents] for item in items})
    return Draft(items, left_out, notes, units)


def _rows(copy: Copy, left_out: Counter[str], notes: list[str]) -> dict[Folders, Found]:
    """The files by the folders they lie in, but for those that name a kind of file, and by their name."""
    rows: dict[Folders, Found] = {}
    endings: Counter[str] = Counter()
    for path in copy.all("*"):
        parts = path.relative_to(copy.path).parts
        if any(part.startswith(".") for part in parts):
            continue
        kind = kind_of(path)
        if kind is None and path.suffix.lower() not in TEXT_ENDINGS:
            endings[path.suffix.lower() or "no ending"] += 1
            continue
        if path.stat().st_size == 0:
            left_out["empty files"] += 1
            continue
        own = rows.setdefault((*(part for part in parts[:-1] if part.lower() not in KINDS), path.stem), Found({}))
        if kind in own.files and own.files[kind].parent != path.parent:
            own = rows.setdefault((*parts[:-1], path.stem), Found({}))  # photos/1.jpg and pictures/1.jpg are two things
        if kind is None:
            own.texts.append(path)
        elif kind in own.files:
            left_out[f"second {kind} files of one name"] += 1
        else:
            own.files[kind] = path
    if endings:
        shown = ", ".join(f"{ending} {count}" for ending, count in endings.most_common(MOST_ENDINGS))
        more = " …" if len(endings) > MOST_ENDINGS else ""
        notes.append(f"files of other kinds were passed over: {shown}{more}")
    return rows


def _split_folders(rows: Iterable[Folders]) -> set[Folders]:
    """The folders that are splits: called so, and either not the only split beside each other, or alone there.

    A folder "train" among "plane" and "ship" is full of trains.
    """
    below: dict[Folders, set[str]] = {}
    for key in rows:
        for depth in range(len(key) - 1):
            below.setdefault(key[:depth], set()).add(key[depth])
    found: set[Folders] = set()
    for parent, names in below.items():
        splits = {name: SPLITS[name.lower()] for name in names if name.lower() in SPLITS}
        if len(set(splits.values())) > 1 or len(splits) == len(names):
            found |= {(*parent, name) for name in splits}
    return found


def _item(key: Folders, own: Found, split_folders: set[Folders], left_out: Counter[str]) -> Item:
    within = [key[:depth] for depth in range(1, len(key))]
    split = next((SPLITS[folder[-1].lower()] for folder in within if folder in split_folders), None)
    label = _words_of_folder(key, split_folders) or None
    told = captions(*(line for path in own.texts for line in _lines(path, left_out)))
    return Item(str(PurePath(*key).as_posix()), texts=told, split=split, label=label, files=own.files)


def _words_of_folder(key: Folders, split_folders: set[Folders]) -> str:
    """What the innermost folder says that says anything."""
    folders = (key[:depth] for depth in range(len(key) - 1, 0, -1))
    words = (words_in_name(folder[-1], is_folder=True) for folder in folders if folder not in split_folders)
    return next(filter(None, words), "")


def _caption(item: Item, key: Folders, split_folders: set[Folders]) -> str:
    """The caption of a row of one file, from names; "" where they say nothing.

    A film pairs with itself. A caption that it shares with all others of its folder would take that away, as rows with
    one caption are right answers to each other: it gets one only if its own name says something.
    """
    if len(item.files) != 1:
        return ""
    name = words_in_name(key[-1])
    return "" if "video" in item.files and not name else caption_from_names(name, _words_of_folder(key, split_folders))


def _merge_copies(
    items: list[Item], made: dict[str, str], contents: dict[Path, str], left_out: Counter[str]
) -> list[Item]:
    """One row for all copies of a file, with the captions that their names gave; rows of several files stay.

    The copy in the fewest folders gives the row: others are rather in folders of backups.
    """
    copies: dict[tuple[str, str | None], list[Item]] = {}
    for item in items:
        content = contents.get(next(iter(item.files.values()))) if item.id in made else None
        copies.setdefault((content or f"row {item.id}", item.split), []).append(item)
    kept: dict[str, Item] = {}
    for own in copies.values():
        own.sort(key=lambda item: (item.id.count("/"), item.id))
        kept[own[0].id] = replace(own[0], texts=captions(*(text for item in own for text in item.texts)))
    if len(kept) < len(items):
        left_out["copies of files, whose captions went to the row of the original"] += len(items) - len(kept)
    return [kept[item.id] for item in items if item.id in kept]


def _about_captions(items: list[Item], made: dict[str, str], left_out: Counter[str]) -> Iterator[str]:
    """What to tell of the captions from names: how many, some of them, and what to do about the rest."""
    rows = [item for item in items if item.id in made]
    different = list({text: item for item in rows for text in item.texts}.items())
    if rows:
        step = max(1, len(different) // EXAMPLES)
        examples = [f"\n    {item.id}: {text}" for text, item in different[::step][:EXAMPLES]]
        yield (
            f"{len(rows)} rows have captions from names of files and folders, {len(different)} different ones, such as"
            f"{''.join(examples)}"
        )
    if any(kind.startswith("files without a caption") for kind in left_out):
        yield "to use files without a caption, give them names that say what they hold, or put the words into NAME.txt"


def _about_leaks(items: list[Item], contents: dict[Path, str]) -> Iterator[str]:
    splits: dict[str, set[str | None]] = {}
    for item in items:
        for path in item.files.values():
            if path in contents:
                splits.setdefault(contents[path], set()).add(item.split)
    leaks = sum(len(found) > 1 for found in splits.values())
    if leaks:
        yield f"{leaks} files have copies in another split: what is measured on them was seen in training"


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
        "a file that is alone gets the words of its name and folder as caption: rain/on a tin roof.wav",
        "folders train, valid, test beside each other are splits",
    ),
    licence="yours",
    read=read,
    is_personal=True,
)
