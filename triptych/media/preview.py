"""What a person sees of a file before opening it: a small picture, the outline of a sound, its spectrogram."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.media import audio, image

PEAK_RATE = 32_000  # what people hear of high tones counts in an outline, too
SOUND_RATE, WINDOW, MELS = 16_000, 1024, 96
LOUDEST_SHARE, RANGE = 99.9, 60.0  # the percentile that is drawn brightest, and the dB below it that are drawn at all
LONGEST = 600.0  # seconds that are drawn at once
# From black over violet and orange to a pale yellow: lightness grows evenly, which grey prints and every eye keep.
COLOURS = ((0, 0, 4), (40, 11, 84), (101, 21, 110), (159, 42, 99), (212, 72, 66), (245, 125, 21), (250, 193, 39))
PALEST = (252, 255, 164)


def thumbnail(path: Path, size: int, at: float | None = None) -> bytes:
    """A picture, or a film's frame at a second, as a JPEG of at most size × size."""
    picture = image.load(path, size, at)
    picture.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=3.0)
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85)
    return data.getvalue()


def peaks(path: Path, count: int, start: float | None = None, end: float | None = None) -> np.ndarray:
    """The lowest and highest sample of each of `count` equal pieces of a sound: (count, 2), within ±1."""
    samples = audio.read(path, PEAK_RATE, start, _until(start, end))
    edges = np.linspace(0, len(samples), count + 1).round().astype(int)
    found = np.zeros((count, 2), np.float32)
    for place, (first, last) in enumerate(pairwise(edges)):
        piece = samples[first : max(last, first + 1)]
        if len(piece):
            found[place] = piece.min(), piece.max()
    return found.clip(-1, 1)


def spectrogram(path: Path, width: int, start: float | None = None, end: float | None = None) -> bytes:
    """Log-mel power of a sound as a PNG, low tones below: `width` columns, or as many as there are."""
    samples = audio.read(path, SOUND_RATE, start, _until(start, end))
    hop = max(WINDOW // 8, len(samples) // width)
    decibels = audio.log_mel(samples, SOUND_RATE, MELS, WINDOW, hop).numpy()  # (frames, mels)
    top = max(float(np.percentile(decibels, LOUDEST_SHARE)), RANGE - 100.0)  # 1e-10 is -100 dB: silence stays black
    shade = ((decibels - top + RANGE) / RANGE).clip(0, 1) * 255
    picture = Image.fromarray(shade.round().astype(np.uint8)[:width].T[::-1])
    picture.putpalette(_palette())
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return data.getvalue()


def _until(start: float | None, end: float | None) -> float:
    """No more than the longest that is drawn."""
    most = (start or 0.0) + LONGEST
    return most if end is None else min(end, most)


def _palette() -> list[int]:
    anchors = np.array([*COLOURS, PALEST], float)
    place = np.linspace(0, len(anchors) - 1, 256)
    return (
        np.stack([np.interp(place, range(len(anchors)), anchors[:, c]) for c in range(3)], 1)
        .round()
        .astype(int)
        .flatten()
        .tolist()
    )
