"""Flickr 8k Audio Caption Corpus: the captions of Flickr8k, read aloud by 183 speakers."""

from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.flickr8k import read_captions, read_splits
from triptych.data.datasets.local_copy import LocalCopy, read_lines
from triptych.data.row_parser import MediaType
from triptych.errors import ManifestError


def read(copy: LocalCopy) -> ManifestDraft:
    """Read one row for each recording. The five recordings of an image share a group. Captions are optional."""
    table = copy.require_file("wav2capt.txt")
    recordings = [line.split() for line in read_lines(table)]
    if any(len(parts) != 3 for parts in recordings):
        raise ManifestError(f"{table}: each line should be WAV IMAGE #NUMBER, such as 1000_0.wav 1000.jpg #0")
    splits = read_splits(copy)
    has_captions = copy.find_file("Flickr8k.token.txt", "captions.txt") is not None
    texts = read_captions(copy) if has_captions else {}
    image_folder = copy.find_base_folder(splits, "images of Flickr8k")
    audio_folder = copy.find_base_folder((wav for wav, _, _ in recordings), "audio files")
    draft = ManifestDraft()
    for wav, image_name, number in recordings:
        if image_name not in splits:
            draft.skip_counts["recordings of images in no official list"] += 1
            continue
        caption_index = number.lstrip("#")
        text = texts.get(image_name, {}).get(int(caption_index)) if caption_index.isdigit() else None
        name, group = wav.removesuffix(".wav"), image_name.removesuffix(".jpg")
        files: dict[MediaType, Path] = {"audio": audio_folder / wav, "image": image_folder / image_name}
        draft.items.append(DraftItem(name, files, clean_captions(text), group, splits[image_name]))
    if not has_captions:
        draft.notes.append("Flickr8k.token.txt is missing: rows have images and speech, but no captions")
    return draft


DATASET = Dataset(
    title="Flickr 8k Audio Captions: photographs and spoken captions",
    modalities="image–speech–text",
    expected_files=(
        "flickr_audio/wav2capt.txt and flickr_audio/wavs/*.wav",
        "images and split lists of Flickr8k (see flickr8k); optionally its captions",
    ),
    licence="speech CC BY-SA 4.0; photographs for research only",
    read=read,
)
