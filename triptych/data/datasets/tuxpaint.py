"""Tux Paint stamps: images with captions in many languages, sound effects, and captions read aloud."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

from triptych.data.datasets.archive import unpack
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_lines
from triptych.data.datasets.splits import find_connected_groups, split_by_hash
from triptych.errors import UsageError

STAMPS_PATH = PurePosixPath("usr/share/tuxpaint/stamps")
AUDIO_SUFFIXES = (".ogg", ".wav")
AUDIO_CHOICES = ("both", "effects", "speech")


def read(copy: LocalCopy, *, language: str = "en", audio: str = "both") -> ManifestDraft:
    """Read one row for each audio file of a stamp: the effect with all captions, each speech file with its caption.

    A stamp without audio is one row of image and captions. Stamps with the same caption share a group. The split is a
    hash of the English caption.

    language: one or several languages, comma-separated, or `all`.
    audio: effects, speech or both.
    """
    check_choice("audio", audio, AUDIO_CHOICES)
    root = _find_root(copy)
    stamps = {str(path.relative_to(root).with_suffix("").as_posix()): path for path in sorted(root.rglob("*.txt"))}
    if not stamps:
        raise copy.missing_error("stamps: images with a .txt file of the same name")
    captions_by_stamp = {name: _read_captions(path) for name, path in stamps.items()}
    languages = _parse_languages(language, captions_by_stamp)
    groups, english_groups = (_group_by_caption(captions_by_stamp, each) for each in (languages, ["en"]))
    draft = ManifestDraft()
    for name, path in stamps.items():
        image_path, texts = path.with_suffix(".png"), captions_by_stamp[name]
        if not image_path.exists():
            draft.skip_counts["images that exist as SVG only, which is not supported"] += path.with_suffix(
                ".svg"
            ).exists()
        stamp = DraftItem(
            name,
            files={"image": image_path} if image_path.exists() else {},
            group=groups[name],
            split=split_by_hash("tuxpaint", english_groups[name]),
            label=name.partition("/")[0],
        )
        texts = {each: texts[each] for each in languages if each in texts}
        draft.items.extend(_build_items(stamp, path.with_suffix(""), texts, audio))
    return draft


def _group_by_caption(captions_by_stamp: dict[str, dict[str, str]], languages: list[str]) -> dict[str, str]:
    """Return the group of each stamp. Stamps with the same caption in one of the languages share a group."""
    return find_connected_groups(
        {
            name: [(language, texts[language].casefold()) for language in languages if language in texts]
            for name, texts in captions_by_stamp.items()
        }
    )


def _find_root(copy: LocalCopy) -> Path:
    """Find the folder of the stamps, by default the copy itself. Unpack a .deb file first."""
    if copy.path.is_file() and copy.path.suffix == ".deb":
        unpack(copy.path, copy.unpack_folder, _is_stamp)
        return copy.unpack_folder / STAMPS_PATH
    if not copy.path.is_dir():
        raise copy.missing_error(
            "the folder of the Debian package tuxpaint-stamps-default (install it), or its .deb file"
        )
    candidates = (copy.path / STAMPS_PATH, copy.path / "tuxpaint/stamps", copy.path / "stamps")
    return next((folder for folder in candidates if folder.is_dir()), copy.path)


def _is_stamp(name: PurePosixPath) -> bool:
    return name.is_relative_to(STAMPS_PATH) and name.suffix in {".txt", ".png", ".svg", *AUDIO_SUFFIXES}


def _read_captions(path: Path) -> dict[str, str]:
    """Return language -> caption. The first line is English; other lines name their language: fr.utf8=Un chien."""
    texts: dict[str, str] = {}
    for number, line in enumerate(read_lines(path)):
        name, equals, text = line.partition(".utf8=")
        if number == 0 and not equals:
            name, text = "en", line
        for caption in clean_captions(text):
            texts.setdefault(name, caption)
    return texts


def _parse_languages(option: str, captions_by_stamp: dict[str, dict[str, str]]) -> list[str]:
    available = sorted({name for texts in captions_by_stamp.values() for name in texts})
    if option == "all":
        return available
    languages = [name.strip() for name in option.split(",")]
    for name in languages:
        if name not in available:
            raise UsageError(f"--language {name} is unknown; known: {', '.join(available)}, all")
    return languages


def _build_items(stamp: DraftItem, stem: Path, texts: dict[str, str], audio: str) -> list[DraftItem]:
    all_texts = clean_captions(*texts.values())
    audio_files: dict[str, tuple[Path | None, tuple[str, ...]]] = {}
    if audio != "speech":
        audio_files["effect"] = _find_audio(stem, *(f"_{name}" for name in texts), ""), all_texts
    for name, text in texts.items() if audio != "effects" else ():
        audio_files[name] = _find_audio(stem, f"_desc_{name}", *(["_desc"] if name == "en" else [])), (text,)
    items = [
        replace(stamp, id=f"{stamp.id}:{name}", files={**stamp.files, "audio": path}, texts=captions)
        for name, (path, captions) in audio_files.items()
        if path
    ]
    return items or [replace(stamp, texts=all_texts)]


def _find_audio(stem: Path, *endings: str) -> Path | None:
    """Return the first audio file that exists. Some effects (numbers, letters) are speech, one file per language."""
    paths = (stem.with_name(stem.name + ending + suffix) for ending in endings for suffix in AUDIO_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


DATASET = Dataset(
    title="Tux Paint stamps: images with captions, effects and speech",
    modalities="image–audio–text",
    expected_files=(
        "the folder of the Debian package tuxpaint-stamps-default (default: where it is installed),",
        "or its .deb file (`apt-get download tuxpaint-stamps-default`)",
    ),
    licence="GPL-2+",
    read=read,
    installed_path=Path("/usr/share/tuxpaint/stamps"),
)
