"""WavCaps: 400,000 sounds of four sites with captions a language model wrote from their descriptions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from triptych.data.sources.draft import Dataset, DraftItem, ManifestDraft, clean_captions, file_kind_from_suffix
from triptych.data.sources.local_copy import LocalCopy, read_fields, read_json

# The blacklists that keep test sets of others out; a third one, all_ac, is for those who also train on Clotho's rest.
BLACKLISTS = ("blacklist_exclude_test_ac.json", "blacklist_exclude_ub*8k_esc50_vggsound.json")


def read(copy: LocalCopy) -> ManifestDraft:
    """Everything is train: there is no official split. What the data set's own blacklists name is left out."""
    tables = [path for path in copy.find_files("*.json") if path.parent.name != "blacklist" and "_final" in path.stem]
    tables = [path for path in tables if not path.stem.endswith("_2s")]  # a part of the same table
    if not tables:
        raise copy.missing_error("json_files/*/*_final.json")
    audio_files = _index_audio_files(copy)
    if not audio_files:
        raise copy.missing_error("sound files named after id, such as FreeSound_flac/1234.flac,")
    excluded_names = _read_blacklists(copy)
    items: list[DraftItem] = []
    skip_counts: Counter[str] = Counter()
    for table in tables:
        site = table.parent.name
        for entry in read_json(table, "data")["data"]:
            name, caption = read_fields(entry, table, "id", "caption")
            name = name.removesuffix(".wav")
            path = _find_audio_file(audio_files, site, name)
            if name in excluded_names.get(site.split("_")[0], ()):
                skip_counts["sounds on a blacklist: they are in a test set"] += 1
            elif path is None:
                skip_counts["captions without a sound file"] += 1
            else:
                items.append(
                    DraftItem(f"{site}/{name}", files={"audio": path}, texts=clean_captions(caption), split="train")
                )
    notes = (
        []
        if excluded_names
        else ["no blacklist is here: sounds of the test sets of AudioCaps, Clotho, ESC-50 may be in it"]
    )
    return ManifestDraft(items, skip_counts, notes)


def _index_audio_files(copy: LocalCopy) -> dict[str, list[Path]]:
    audio_files: dict[str, list[Path]] = {}
    for path in copy.find_files("*"):
        if file_kind_from_suffix(path) == "audio":
            audio_files.setdefault(path.stem, []).append(path)
    return audio_files


def _find_audio_file(audio_files: dict[str, list[Path]], site: str, name: str) -> Path | None:
    """The file in a folder that names the site: FreeSound and SoundBible both number their sounds."""
    candidates = audio_files.get(name, [])
    site_files = [path for path in candidates if any(part.startswith(site) for part in path.parts)]
    return site_files[0] if site_files else None


def _read_blacklists(copy: LocalCopy) -> dict[str, set[str]]:
    excluded_names: dict[str, set[str]] = {}
    for path in copy.find_files(*BLACKLISTS):
        for site, names in read_json(path, "FreeSound").items():
            excluded_names.setdefault(site, set()).update(str(name).removesuffix(".wav") for name in names)
    return excluded_names


SOURCE = Dataset(
    title="WavCaps, sounds with captions by a language model",
    modalities="audio–text",
    expected_files=(
        "json_files/SITE/*_final.json: data, each with id and caption",
        "sounds named ID.flac in a folder whose name starts with SITE (AudioSet_SL, BBC_Sound_Effects, …)",
        "json_files/blacklist/*.json, to keep test sets of others out",
    ),
    licence="academic use only",
    read=read,
)
