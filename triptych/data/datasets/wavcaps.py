"""WavCaps: 400,000 recordings from four sites. A language model wrote the captions, based on the descriptions."""

from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_fields, read_json

# Blacklists that exclude test sets of other datasets. A third one, all_ac, excludes all of AudioCaps and Clotho.
BLACKLISTS = ("blacklist_exclude_test_ac.json", "blacklist_exclude_ub*8k_esc50_vggsound.json")


def read(copy: LocalCopy) -> ManifestDraft:
    """Read all rows into the train split, because there are no official splits. Skip recordings on the blacklists."""
    tables = [path for path in copy.find_files("*.json") if path.parent.name != "blacklist" and "_final" in path.stem]
    tables = [path for path in tables if not path.stem.endswith("_2s")]  # a part of the same table
    if not tables:
        raise copy.missing_error("json_files/*/*_final.json")
    audio_files = copy.index_by_stem("audio")
    if not audio_files:
        raise copy.missing_error("audio files named after id, such as FreeSound_flac/1234.flac,")
    excluded_names = _read_blacklists(copy)
    draft = ManifestDraft()
    for table in tables:
        site = table.parent.name
        for entry in read_json(table, "data")["data"]:
            name, caption = read_fields(entry, table, "id", "caption")
            name = name.removesuffix(".wav")
            path = _find_audio_file(audio_files, site, name)
            if name in excluded_names.get(site.split("_")[0], ()):
                draft.skip_counts["recordings on a blacklist: they are in a test set"] += 1
            elif path is None:
                draft.skip_counts["captions without an audio file"] += 1
            else:
                texts = clean_captions(caption)
                draft.items.append(DraftItem(f"{site}/{name}", {"audio": path}, texts, split="train"))
    if not excluded_names:
        test_sets = "the test sets of AudioCaps, Clotho and ESC-50"
        draft.notes.append(f"there are no blacklists: rows may contain recordings of {test_sets}")
    return draft


def _find_audio_file(audio_files: dict[str, list[Path]], site: str, name: str) -> Path | None:
    """Find the file in a folder named after the site: FreeSound and SoundBible use the same numbers."""
    candidates = audio_files.get(name, [])
    return next((path for path in candidates if any(part.startswith(site) for part in path.parts)), None)


def _read_blacklists(copy: LocalCopy) -> dict[str, set[str]]:
    excluded_names: dict[str, set[str]] = {}
    for path in copy.find_files(*BLACKLISTS):
        for site, names in read_json(path, "FreeSound").items():
            excluded_names.setdefault(site, set()).update(str(name).removesuffix(".wav") for name in names)
    return excluded_names


DATASET = Dataset(
    title="WavCaps: recordings with captions by a language model",
    modalities="audio–text",
    expected_files=(
        "json_files/SITE/*_final.json: data, each with id and caption",
        "ID.flac in a folder whose name starts with SITE (AudioSet_SL, BBC_Sound_Effects, …)",
        "json_files/blacklist/*.json, to exclude test sets of other datasets",
    ),
    licence="academic use only",
    read=read,
)
