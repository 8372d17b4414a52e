"""Places Audio Captions: photographs of places that people describe aloud."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.data.sources.draft import Dataset, Draft, Item, captions, choose
from triptych.data.sources.local import Copy, pick, read_json, read_lines
from triptych.errors import ManifestError

# val of the first publication is what everybody measures on; the parts of 2020 have a test of their own.
PARTS = {
    "train": "train",
    "val": "test",
    "dev_seen": "valid_seen",
    "dev_unseen": "valid_unseen",
    "test_seen": "test_seen",
    "test_unseen": "test_unseen",
}
TABLE = re.compile(r"(train|val|dev_seen|dev_unseen|test_seen|test_unseen)(?:_2020)?")
Utterance = tuple[str, str, str, str]  # id, sound, picture, words


def read(copy: Copy, *, captions: str = "none") -> Draft:
    """Rows are utterances; those about one photograph share its group.

    captions: `none`, or `asr` for the words a recogniser heard in the speech; they hold its mistakes.
    """
    choose("captions", captions, ("none", "asr"))
    parts = dict(_tables(copy)) or dict(_lists(copy))
    if not parts:
        raise copy.missing("train.json and val.json, or metadata/utt2wav, metadata/utt2image and lists/*_uttids,")
    everything = [utterance for part in parts.values() for utterance in part]
    sounds = copy.base((sound for _, sound, _, _ in everything), "sound files")
    pictures = copy.base((picture for _, _, picture, _ in everything), "photographs")
    items = [
        _item(utterance, sounds, pictures, PARTS[part], captions == "asr")
        for part, utterances in parts.items()
        for utterance in utterances
    ]
    return Draft(items, Counter())


def _item(utterance: Utterance, sounds: Path, pictures: Path, split: str, words: bool) -> Item:
    name, sound, picture, heard = utterance
    texts = captions(heard) if words else ()
    return Item(
        name, files={"audio": sounds / sound, "image": pictures / picture}, texts=texts, group=picture, split=split
    )


def _tables(copy: Copy) -> Iterator[tuple[str, list[Utterance]]]:
    """The JSON layout: train.json, val.json; or train_2020.json, dev_seen_2020.json and so on."""
    for path in copy.all("*.json"):
        match = TABLE.fullmatch(path.stem)
        if match:
            yield match[1], [_utterance(entry, path) for entry in read_json(path, "data")["data"]]


def _utterance(entry: Any, table: Path) -> Utterance:
    name, sound, picture = pick(entry, table, "uttid", "wav", "image")
    return name, sound, picture, str(entry.get("asr_text") or "")


def _lists(copy: Copy) -> Iterator[tuple[str, list[Utterance]]]:
    """The text layout: a file for each property of an utterance, and lists of the utterances of each split."""
    places = {name: copy.seek(f"metadata/{name}", name) for name in ("utt2wav", "utt2image")}
    sounds, pictures = (_mapping(path) if path else {} for path in places.values())
    heard = copy.seek("metadata/utt2ASR", "metadata/utt2ASR_text")
    words = _mapping(heard) if heard else {}
    for path in copy.all("*_uttids"):
        match = re.search(r"(train|val)_uttids$", path.name)
        if match and sounds and pictures:
            names = read_lines(path)
            lost = [name for name in names if name not in sounds or name not in pictures]
            if lost:
                raise ManifestError(f"{path}: {lost[0]} is in neither utt2wav nor utt2image, and {len(lost) - 1} more")
            yield match[1], [(name, sounds[name], pictures[name], words.get(name, "")) for name in names]


def _mapping(path: Path) -> dict[str, str]:
    return {name: rest.strip() for name, _, rest in (line.partition(" ") for line in read_lines(path))}


SOURCE = Dataset(
    title="Places Audio Captions, photographs and spoken descriptions",
    pairs="image–speech",
    expects=(
        "train.json, val.json (or …_2020.json): data, each with uttid, wav, image",
        "or metadata/utt2wav, utt2image and lists/*_train_uttids, *_val_uttids",
        "the sounds and photographs in any folders",
    ),
    licence="speech CC BY-SA 4.0; photographs under the terms of Places",
    read=read,
)
