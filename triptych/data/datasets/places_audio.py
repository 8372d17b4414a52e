"""Places Audio Captions: photographs of places with spoken descriptions."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_fields, read_json, read_lines
from triptych.data.row_parser import MediaType
from triptych.errors import ManifestError

# Papers report results on val of the first release. The 2020 release has separate test splits.
SPLIT_NAMES = {
    "train": "train",
    "val": "test",
    "dev_seen": "valid_seen",
    "dev_unseen": "valid_unseen",
    "test_seen": "test_seen",
    "test_unseen": "test_unseen",
}
TABLE_NAME = re.compile(r"(train|val|dev_seen|dev_unseen|test_seen|test_unseen)(?:_2020)?")
Utterance = tuple[str, str, str, str]  # id, audio file, image file, transcript


def read(copy: LocalCopy, *, captions: str = "none") -> ManifestDraft:
    """Read one row for each utterance. Utterances about one image share a group.

    captions: `none`, or `asr` for the transcripts of a speech recogniser, which contain recognition errors.
    """
    check_choice("captions", captions, ("none", "asr"))
    parts = dict(_read_tables(copy)) or dict(_read_lists(copy))
    if not parts:
        raise copy.missing_error("train.json and val.json, or metadata/utt2wav, metadata/utt2image and lists/*_uttids,")
    all_utterances = [utterance for part in parts.values() for utterance in part]
    audio_folder = copy.find_base_folder((audio_name for _, audio_name, _, _ in all_utterances), "audio files")
    image_folder = copy.find_base_folder((image_name for _, _, image_name, _ in all_utterances), "images")
    draft = ManifestDraft()
    for part, utterances in parts.items():
        for name, audio_name, image_name, transcript in utterances:
            files: dict[MediaType, Path] = {"audio": audio_folder / audio_name, "image": image_folder / image_name}
            texts = clean_captions(transcript) if captions == "asr" else ()
            draft.items.append(DraftItem(name, files, texts, image_name, SPLIT_NAMES[part]))
    return draft


def _read_tables(copy: LocalCopy) -> Iterator[tuple[str, list[Utterance]]]:
    """Read the JSON layout: train.json and val.json, or train_2020.json, dev_seen_2020.json and so on."""
    for path in copy.find_files("*.json"):
        match = TABLE_NAME.fullmatch(path.stem)
        if match:
            yield match[1], [_read_utterance(entry, path) for entry in read_json(path, "data")["data"]]


def _read_utterance(entry: Any, table: Path) -> Utterance:
    name, audio_name, image_name = read_fields(entry, table, "uttid", "wav", "image")
    return name, audio_name, image_name, str(entry.get("asr_text") or "")


def _read_lists(copy: LocalCopy) -> Iterator[tuple[str, list[Utterance]]]:
    """Read the text layout: one file for each property of utterances, and a list of utterances for each split."""
    paths = {name: copy.find_file(f"metadata/{name}", name) for name in ("utt2wav", "utt2image")}
    audio_names, image_names = (_read_mapping(path) if path else {} for path in paths.values())
    transcript_path = copy.find_file("metadata/utt2ASR", "metadata/utt2ASR_text")
    transcripts = _read_mapping(transcript_path) if transcript_path else {}
    for path in copy.find_files("*_uttids"):
        match = re.search(r"(train|val)_uttids$", path.name)
        if match and audio_names and image_names:
            names = read_lines(path)
            missing_names = [name for name in names if name not in audio_names or name not in image_names]
            if missing_names:
                missing = f"{missing_names[0]} and {len(missing_names) - 1} more"
                raise ManifestError(f"{path}: {missing} are missing from utt2wav or utt2image")
            yield match[1], [(name, audio_names[name], image_names[name], transcripts.get(name, "")) for name in names]


def _read_mapping(path: Path) -> dict[str, str]:
    return {name: rest.strip() for name, _, rest in (line.partition(" ") for line in read_lines(path))}


DATASET = Dataset(
    title="Places Audio Captions: photographs and spoken descriptions",
    modalities="image–speech",
    expected_files=(
        "train.json, val.json (or …_2020.json): data, each with uttid, wav, image",
        "or metadata/utt2wav, utt2image and lists/*_train_uttids, *_val_uttids",
        "audio and images in any folders",
    ),
    licence="speech CC BY-SA 4.0; photographs under the terms of Places",
    read=read,
)
