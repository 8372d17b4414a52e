"""Flickr 8k Audio Caption Corpus: the captions of Flickr8k, read aloud by 183 people."""

from __future__ import annotations

from collections import Counter

from triptych.data.sources.draft import Dataset, Draft, Item, captions
from triptych.data.sources.flickr8k import read_captions, read_splits
from triptych.data.sources.local import Copy, read_lines
from triptych.errors import ManifestError


def read(copy: Copy) -> Draft:
    """Rows are readings; the five readings of one photograph share its group. Words where Flickr8k's are there."""
    table = copy.file("wav2capt.txt")
    readings = [line.split() for line in read_lines(table)]
    if any(len(parts) != 3 for parts in readings):
        raise ManifestError(f"{table}: a line should be WAV PICTURE #NUMBER, such as 1000_0.wav 1000.jpg #0")
    splits = read_splits(copy)
    has_words = copy.seek("Flickr8k.token.txt", "captions.txt") is not None
    texts = read_captions(copy) if has_words else {}
    pictures = copy.base(splits, "photographs of Flickr8k")
    sounds = copy.base((wav for wav, _, _ in readings), "sound files")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for wav, picture, number in readings:
        if picture not in splits:
            left_out["readings of photographs in no official list"] += 1
            continue
        place = number.lstrip("#")
        text = texts.get(picture, {}).get(int(place)) if place.isdigit() else None
        items.append(
            Item(
                wav.removesuffix(".wav"),
                files={"audio": sounds / wav, "image": pictures / picture},
                texts=captions(text),
                group=picture.removesuffix(".jpg"),
                split=splits[picture],
            )
        )
    notes = [] if has_words else ["Flickr8k.token.txt is not here: rows are pictures and speech, without words"]
    return Draft(items, left_out, notes)


SOURCE = Dataset(
    title="Flickr 8k Audio Captions, photographs and read captions",
    pairs="image–speech–text",
    expects=(
        "flickr_audio/wav2capt.txt and flickr_audio/wavs/*.wav",
        "the photographs and lists of Flickr8k (see flickr8k); its captions, if words are wanted",
    ),
    licence="speech CC BY-SA 4.0; photographs for research only",
    read=read,
)
