"""Flickr 8k Audio Caption Corpus: the captions of Flickr8k, read aloud by 183 people."""

from __future__ import annotations

from collections import Counter

from triptych.data.sources.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.sources.flickr8k import read_captions, read_splits
from triptych.data.sources.local_copy import LocalCopy, read_lines
from triptych.errors import ManifestError


def read(copy: LocalCopy) -> ManifestDraft:
    """Rows are readings; the five readings of one photograph share its group. Words where Flickr8k's are there."""
    table = copy.require_file("wav2capt.txt")
    readings = [line.split() for line in read_lines(table)]
    if any(len(parts) != 3 for parts in readings):
        raise ManifestError(f"{table}: a line should be WAV PICTURE #NUMBER, such as 1000_0.wav 1000.jpg #0")
    splits = read_splits(copy)
    has_captions = copy.find_file("Flickr8k.token.txt", "captions.txt") is not None
    texts = read_captions(copy) if has_captions else {}
    image_folder = copy.find_base_folder(splits, "photographs of Flickr8k")
    audio_folder = copy.find_base_folder((wav for wav, _, _ in readings), "sound files")
    items: list[DraftItem] = []
    skip_counts: Counter[str] = Counter()
    for wav, image_name, number in readings:
        if image_name not in splits:
            skip_counts["readings of photographs in no official list"] += 1
            continue
        caption_index = number.lstrip("#")
        text = texts.get(image_name, {}).get(int(caption_index)) if caption_index.isdigit() else None
        items.append(
            DraftItem(
                wav.removesuffix(".wav"),
                files={"audio": audio_folder / wav, "image": image_folder / image_name},
                texts=clean_captions(text),
                group=image_name.removesuffix(".jpg"),
                split=splits[image_name],
            )
        )
    notes = [] if has_captions else ["Flickr8k.token.txt is not here: rows are pictures and speech, without words"]
    return ManifestDraft(items, skip_counts, notes)


SOURCE = Dataset(
    title="Flickr 8k Audio Captions, photographs and read captions",
    modalities="image–speech–text",
    expected_files=(
        "flickr_audio/wav2capt.txt and flickr_audio/wavs/*.wav",
        "the photographs and lists of Flickr8k (see flickr8k); its captions, if words are wanted",
    ),
    licence="speech CC BY-SA 4.0; photographs for research only",
    read=read,
)
