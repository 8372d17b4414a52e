"""Compute previews of media files: JPEG thumbnails, waveform peaks and PNG spectrograms."""

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.media import audio, image

PEAK_RATE = 32_000  # Hz, high enough for all audible frequencies
SPECTROGRAM_RATE, N_FFT, N_MELS = 16_000, 1024, 96
TOP_PERCENTILE, DYNAMIC_RANGE_DB = 99.9, 60.0  # the percentile gets the last colour, 60 dB below is black
MAX_RENDERED_SECONDS = 600.0  # a preview shows at most the first 600 s of a segment
# Colours from black through violet and orange to pale yellow; lightness increases evenly.
COLOURS = ((0, 0, 4), (40, 11, 84), (101, 21, 110), (159, 42, 99), (212, 72, 66), (245, 125, 21), (250, 193, 39))
BRIGHTEST_COLOUR = (252, 255, 164)


def render_thumbnail(path: Path, size: int, time: float | None = None) -> bytes:
    """Return an image, or a video's frame at `time`, as a JPEG of at most size × size pixels."""
    pil_image = image.load(path, size, time)
    pil_image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=3.0)
    data = io.BytesIO()
    pil_image.save(data, "JPEG", quality=85)
    return data.getvalue()


def compute_peaks(path: Path, count: int, start: float | None = None, end: float | None = None) -> np.ndarray:
    """Split an audio segment into `count` equal pieces; return the minimum and maximum of each: (count, 2), in ±1."""
    samples = audio.read(path, PEAK_RATE, start, _clip_end(start, end))
    edges = np.linspace(0, len(samples), count + 1).round().astype(int)
    extremes = np.zeros((count, 2), np.float32)
    for index, (first, last) in enumerate(pairwise(edges)):
        piece = samples[first : max(last, first + 1)]
        if len(piece):
            extremes[index] = piece.min(), piece.max()
    return extremes.clip(-1, 1)


def render_spectrogram(path: Path, width: int, start: float | None = None, end: float | None = None) -> bytes:
    """Return a segment's log-mel spectrogram as a PNG, at most `width` pixels wide, low frequencies at the bottom."""
    samples = audio.read(path, SPECTROGRAM_RATE, start, _clip_end(start, end))
    hop_length = max(N_FFT // 8, len(samples) // width)
    decibels = audio.log_mel_spectrogram(samples, SPECTROGRAM_RATE, N_MELS, N_FFT, hop_length).numpy()  # (frames, mels)
    # Silence is at -100 dB (1e-10) and stays black.
    top = max(float(np.percentile(decibels, TOP_PERCENTILE)), DYNAMIC_RANGE_DB - 100.0)
    shade = ((decibels - top + DYNAMIC_RANGE_DB) / DYNAMIC_RANGE_DB).clip(0, 1) * 255
    pil_image = Image.fromarray(shade.round().astype(np.uint8)[:width].T[::-1])
    pil_image.putpalette(_build_palette())
    data = io.BytesIO()
    pil_image.save(data, "PNG", optimize=True)
    return data.getvalue()


def _clip_end(start: float | None, end: float | None) -> float:
    """Return the end of the segment, limited to MAX_RENDERED_SECONDS."""
    latest_end = (start or 0.0) + MAX_RENDERED_SECONDS
    return latest_end if end is None else min(end, latest_end)


def _build_palette() -> list[int]:
    anchors = np.array([*COLOURS, BRIGHTEST_COLOUR], float)
    positions = np.linspace(0, len(anchors) - 1, 256)
    colours = np.stack([np.interp(positions, range(len(anchors)), anchors[:, c]) for c in range(3)], 1)
    return colours.round().astype(int).flatten().tolist()
