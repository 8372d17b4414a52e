"""Any folder: files of the same name are one row; a single file gets a caption from file and folder names."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.duplicates import hash_identical_files
from triptych.data.datasets.filename_captions import build_caption, extract_words
from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.datasets.splits import SPLIT_ALIASES, find_connected_groups
from triptych.data.row_parser import MediaType, media_type_from_suffix
from triptych.errors import MediaError
from triptych.media import TEXT_EXTENSIONS
from triptych.media import text as texts

# Names of folders that are not labels. Files in such folders are paired: audio/dog.wav with images/dog.jpg.
MEDIA_FOLDER_NAMES = frozenset(
    f"{name}{plural}"
    for name in ("audio", "sound", "wav", "image", "picture", "photo", "video", "film", "text", "caption")
    for plural in ("", "s")
)
MAX_EXAMPLES = 5  # maximum number of captions in a note
MAX_SUFFIXES = 8  # maximum number of suffixes of unsupported files in a note

PathKey = tuple[str, ...]  # the folders of a file below the root, and its stem


@dataclass(frozen=True)
class FileGroup:
    """Files with the same name except for the suffix."""

    files: dict[MediaType, Path]
    texts: list[Path] = field(default_factory=list)


def read(copy: LocalCopy) -> ManifestDraft:
    """Read one row for each file name: dog.wav, dog.jpg and dog.txt are one row. Folders train, valid, test are splits.

    Each line of a text file is a caption. A single file without a text file gets a caption from the words of its name
    and of the innermost folder with a meaningful name. Files with the same caption from names share a group.
    """
    skip_counts, notes = Counter[str](), list[str]()
    file_groups = _group_files(copy, skip_counts, notes)
    if not any(file_group.files for file_group in file_groups.values()):
        raise copy.missing_error("audio, image or video files")
    split_folders = _find_split_folders(file_groups)
    items: list[DraftItem] = []
    name_captions: dict[str, str] = {}
    for key, file_group in sorted(file_groups.items()):
        item = _build_item(key, file_group, split_folders, skip_counts)
        caption = "" if item.texts else _caption_from_key(item, key, split_folders)
        if caption:
            name_captions[item.id] = caption
            item = replace(item, texts=clean_captions(caption), group=caption)
        elif not item.files:
            skip_counts["text files without an audio, image or video file of the same name"] += 1
            continue
        elif not item.has_pair:
            skip_counts["files without a caption: neither file nor folder name is meaningful"] += 1
            continue
        items.append(item)
    contents = hash_identical_files(path for item in items for path in item.files.values())
    items = _merge_duplicates(items, name_captions, contents, skip_counts)
    notes += _caption_notes(items, name_captions, skip_counts)
    notes += _leak_notes(items, contents)
    links = {item.id: [contents[path] for path in item.files.values() if path in contents] for item in items}
    return ManifestDraft(items, skip_counts, notes, split_units=find_connected_groups(links))


def _group_files(copy: LocalCopy, skip_counts: Counter[str], notes: list[str]) -> dict[PathKey, FileGroup]:
    """Group files by their folders, without folders named after a media type, and by their name."""
    file_groups: dict[PathKey, FileGroup] = {}
    suffix_counts: Counter[str] = Counter()
    for path in copy.find_files("*"):
        parts = path.relative_to(copy.path).parts
        if any(part.startswith(".") for part in parts):
            continue
        media_type = media_type_from_suffix(path)
        if media_type is None and path.suffix.lower() not in TEXT_EXTENSIONS:
            suffix_counts[path.suffix.lower() or "no suffix"] += 1
            continue
        if path.stat().st_size == 0:
            skip_counts["empty files"] += 1
            continue
        folders = [part for part in parts[:-1] if part.lower() not in MEDIA_FOLDER_NAMES]
        file_group = file_groups.setdefault((*folders, path.stem), FileGroup({}))
        if media_type in file_group.files and file_group.files[media_type].parent != path.parent:
            # photos/1.jpg and pictures/1.jpg are two items
            file_group = file_groups.setdefault((*parts[:-1], path.stem), FileGroup({}))
        if media_type is None:
            file_group.texts.append(path)
        elif media_type in file_group.files:
            skip_counts[f"further {media_type} files of the same name"] += 1
        else:
            file_group.files[media_type] = path
    if suffix_counts:
        most_common = ", ".join(f"{suffix} {count}" for suffix, count in suffix_counts.most_common(MAX_SUFFIXES))
        more = " …" if len(suffix_counts) > MAX_SUFFIXES else ""
        notes.append(f"ignored files of other types: {most_common}{more}")
    return file_groups


def _find_split_folders(keys: Iterable[PathKey]) -> set[PathKey]:
    """Find folders that are splits: with the name of a split, beside another split or without other folders beside it.

    A folder "train" beside "plane" and "ship" contains trains.
    """
    children: dict[PathKey, set[str]] = {}
    for key in keys:
        for depth in range(len(key) - 1):
            children.setdefault(key[:depth], set()).add(key[depth])
    split_folders: set[PathKey] = set()
    for parent, names in children.items():
        splits = {name: SPLIT_ALIASES[name.lower()] for name in names if name.lower() in SPLIT_ALIASES}
        if len(set(splits.values())) > 1 or len(splits) == len(names):
            split_folders |= {(*parent, name) for name in splits}
    return split_folders


def _build_item(key: PathKey, group: FileGroup, split_folders: set[PathKey], skip_counts: Counter[str]) -> DraftItem:
    ancestors = [key[:depth] for depth in range(1, len(key))]
    split = next((SPLIT_ALIASES[folder[-1].lower()] for folder in ancestors if folder in split_folders), None)
    label = _extract_folder_words(key, split_folders) or None
    captions = clean_captions(*(line for path in group.texts for line in _read_caption_lines(path, skip_counts)))
    return DraftItem(PurePath(*key).as_posix(), group.files, captions, split=split, label=label)


def _extract_folder_words(key: PathKey, split_folders: set[PathKey]) -> str:
    """Return the words of the innermost folder with a meaningful name."""
    folders = (key[:depth] for depth in range(len(key) - 1, 0, -1))
    words = (extract_words(folder[-1], is_folder=True) for folder in folders if folder not in split_folders)
    return next(filter(None, words), "")


def _caption_from_key(item: DraftItem, key: PathKey, split_folders: set[PathKey]) -> str:
    """Return the caption of a single file from file and folder names; "" if they are not meaningful.

    A video is a pair by itself. Videos of one folder would be positives of each other if they shared its name as
    caption, so a video gets a caption only if its file name is meaningful.
    """
    if len(item.files) != 1:
        return ""
    name = extract_words(key[-1])
    return "" if "video" in item.files and not name else build_caption(name, _extract_folder_words(key, split_folders))


def _merge_duplicates(
    items: list[DraftItem], name_captions: dict[str, str], contents: dict[Path, str], skip_counts: Counter[str]
) -> list[DraftItem]:
    """Merge rows of a single file with equal bytes to one row with all captions. Rows of several files are not merged.

    The row keeps the file that is nested in the fewest folders, because deeper files are more likely backups.
    """
    items_by_content: dict[tuple[str, str | None], list[DraftItem]] = {}
    for item in items:
        content = contents.get(next(iter(item.files.values()))) if item.id in name_captions else None
        items_by_content.setdefault((content or f"row {item.id}", item.split), []).append(item)
    merged_items: dict[str, DraftItem] = {}
    for duplicates in items_by_content.values():
        duplicates.sort(key=lambda item: (item.id.count("/"), item.id))
        captions = clean_captions(*(text for item in duplicates for text in item.texts))
        merged_items[duplicates[0].id] = replace(duplicates[0], texts=captions)
    if len(merged_items) < len(items):
        skip_counts["duplicate files (their captions were added to the first file)"] += len(items) - len(merged_items)
    return [merged_items[item.id] for item in items if item.id in merged_items]


def _caption_notes(items: list[DraftItem], name_captions: dict[str, str], skip_counts: Counter[str]) -> Iterator[str]:
    """Yield notes on captions from names: their number, examples, and how to add captions to other files."""
    rows = [item for item in items if item.id in name_captions]
    distinct_captions = list({text: item for item in rows for text in item.texts}.items())
    if rows:
        step = max(1, len(distinct_captions) // MAX_EXAMPLES)
        examples = [f"\n    {item.id}: {text}" for text, item in distinct_captions[::step][:MAX_EXAMPLES]]
        summary = (
            f"{len(rows)} rows have captions from file and folder names, {len(distinct_captions)} distinct, such as"
        )
        yield summary + "".join(examples)
    if any(reason.startswith("files without a caption") for reason in skip_counts):
        yield "to use files without a caption, give them names that describe their content, or write NAME.txt"


def _leak_notes(items: list[DraftItem], contents: dict[Path, str]) -> Iterator[str]:
    splits: dict[str, set[str | None]] = {}
    for item in items:
        for path in item.files.values():
            if path in contents:
                splits.setdefault(contents[path], set()).add(item.split)
    leaks = sum(len(file_splits) > 1 for file_splits in splits.values())
    if leaks:
        yield f"{leaks} files have duplicates in another split: results on them are biased (train/test leakage)"


def _read_caption_lines(path: Path, skip_counts: Counter[str]) -> Iterable[str]:
    try:
        texts.read(path)  # checks size and encoding
    except MediaError:
        skip_counts["text files that cannot be read"] += 1
        return ()
    return path.read_text(encoding="utf-8-sig").split("\n")


DATASET = Dataset(
    title="Any folder of audio, image, video and text files",
    modalities="any",
    expected_files=(
        "files of the same name are one row: dog.wav, dog.jpg, dog.txt (also in audio/, images/, captions/)",
        "a single file gets a caption from file and folder names: rain/on a tin roof.wav",
        "folders train, valid and test are splits",
    ),
    licence="yours",
    read=read,
    is_user_folder=True,
)
