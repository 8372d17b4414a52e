"""WavCaps: 400,000 sounds of four sites with captions a language model wrote from their descriptions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from triptych.data.sources.draft import Dataset, Draft, Item, captions, kind_of
from triptych.data.sources.local import Copy, pick, read_json

# The blacklists that keep test sets of others out; a third one, all_ac, is for those who also train on Clotho's rest.
BLACKLISTS = ("blacklist_exclude_test_ac.json", "blacklist_exclude_ub*8k_esc50_vggsound.json")


def read(copy: Copy) -> Draft:
    """Everything is train: there is no official split. What the data set's own blacklists name is left out."""
    tables = [path for path in copy.all("*.json") if path.parent.name != "blacklist" and "_final" in path.stem]
    tables = [path for path in tables if not path.stem.endswith("_2s")]  # a part of the same table
    if not tables:
        raise copy.missing("json_files/*/*_final.json")
    sounds = _sounds(copy)
    if not sounds:
        raise copy.missing("sound files named after id, such as FreeSound_flac/1234.flac,")
    barred = _barred(copy)
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for table in tables:
        site = table.parent.name
        for entry in read_json(table, "data")["data"]:
            name, caption = pick(entry, table, "id", "caption")
            name = name.removesuffix(".wav")
            path = _find(sounds, site, name)
            if name in barred.get(site.split("_")[0], ()):
                left_out["sounds on a blacklist: they are in a test set"] += 1
            elif path is None:
                left_out["captions without a sound file"] += 1
            else:
                items.append(Item(f"{site}/{name}", files={"audio": path}, texts=captions(caption), split="train"))
    notes = (
        [] if barred else ["no blacklist is here: sounds of the test sets of AudioCaps, Clotho, ESC-50 may be in it"]
    )
    return Draft(items, left_out, notes)


def _sounds(copy: Copy) -> dict[str, list[Path]]:
    sounds: dict[str, list[Path]] = {}
    for path in copy.all("*"):
        if kind_of(path) == "audio":
            sounds.setdefault(path.stem, []).append(path)
    return sounds


def _find(sounds: dict[str, list[Path]], site: str, name: str) -> Path | None:
    """The file in a folder that names the site: FreeSound and SoundBible both number their sounds."""
    found = sounds.get(name, [])
    own = [path for path in found if any(part.startswith(site) for part in path.parts)]
    return own[0] if own else None


def _barred(copy: Copy) -> dict[str, set[str]]:
    barred: dict[str, set[str]] = {}
    for path in copy.all(*BLACKLISTS):
        for site, names in read_json(path, "FreeSound").items():
            barred.setdefault(site, set()).update(str(name).removesuffix(".wav") for name in names)
    return barred


SOURCE = Dataset(
    title="WavCaps, sounds with captions by a language model",
    pairs="audio–text",
    expects=(
        "json_files/SITE/*_final.json: data, each with id and caption",
        "sounds named ID.flac in a folder whose name starts with SITE (AudioSet_SL, BBC_Sound_Effects, …)",
        "json_files/blacklist/*.json, to keep test sets of others out",
    ),
    licence="academic use only",
    read=read,
)
