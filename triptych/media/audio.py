"""Sound files to mono samples, and samples to log-mel frames."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile
import soxr
import torch
from torch import Tensor

from triptych.errors import MediaError

MOST_SECONDS = 4 * 3600.0
MOST_CHANNELS = 64
LOUDEST = 1e6  # float files that were never scaled reach 32,768; beyond this it is no sound
LEAST_RATE, MOST_RATE = 1_000, 768_000
READABLE = "wav, flac, ogg, opus, mp3 or aiff"


def duration(path: Path) -> float:
    """Seconds of sound in a file, by its header."""
    with _open(path) as file:
        return file.frames / file.samplerate


def read(path: Path, rate: int, start: float | None = None, end: float | None = None) -> np.ndarray:
    """Mono float32 samples at `rate`, between start and end (seconds) where given."""
    with _open(path) as file:
        first = round((start or 0.0) * file.samplerate)
        last = file.frames if end is None else min(round(end * file.samplerate), file.frames)
        if first >= last:
            raise MediaError(
                f"{path}: no sound between {start or 0:g} s and {'the end' if end is None else f'{end:g} s'}; "
                f"the file is {file.frames / file.samplerate:g} s long"
            )
        try:
            file.seek(first)
            samples = file.read(last - first, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise MediaError(f"{path}: broken sound data ({error}); replace the file or leave it out") from error
        found_rate = file.samplerate
    if len(samples) == 0:
        raise MediaError(f"{path}: no sound could be decoded; replace the file or leave it out")
    if not np.isfinite(samples).all():
        raise MediaError(f"{path}: the samples hold NaN or infinity; export the file again")
    mono = samples.mean(axis=1)
    if not np.abs(mono).max() <= LOUDEST:
        raise MediaError(f"{path}: samples of {np.abs(mono).max():.0e}; sound lies within ±1: export the file again")
    return mono if found_rate == rate else soxr.resample(mono, found_rate, rate)


def log_mel(samples: np.ndarray, rate: int, mels: int, window: int, hop: int) -> Tensor:
    """Log-mel power in dB, 10·log10(max(mel · |STFT|², 1e-10)): Hann window, centred, Slaney's mel scale and areas."""
    wave = torch.from_numpy(np.ascontiguousarray(samples))
    hann = torch.hann_window(window)
    spectrum = torch.stft(wave, window, hop, window=hann, center=True, pad_mode="constant", return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()  # (bins, frames)
    return 10 * torch.log10((mel_filters(rate, window, mels) @ power).clamp_min(1e-10)).T  # (frames, mels)


@lru_cache(maxsize=8)
def mel_filters(rate: int, window: int, mels: int) -> Tensor:
    """Triangles on the mel scale, each of area 2 / its width in Hz: (mels, window // 2 + 1)."""
    edges = _hertz(np.linspace(0.0, _mel(rate / 2), mels + 2))
    bins = np.linspace(0.0, rate / 2, window // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


# Slaney's scale: linear to 1 kHz (15 mels), then 27 mels for each factor of 6.4.
def _mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(np.log(6.4) * (mel - 15) / 27))


def _open(path: Path) -> soundfile.SoundFile:
    if not path.is_file():
        raise MediaError(f"{path}: no such sound file")
    if path.stat().st_size == 0:
        raise MediaError(f"{path}: the file is empty (0 bytes)")
    try:
        file = soundfile.SoundFile(str(path))
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise MediaError(f"{path}: cannot be read as sound ({error}); give {READABLE}") from error
    if not LEAST_RATE <= file.samplerate <= MOST_RATE or file.channels > MOST_CHANNELS:
        file.close()
        raise MediaError(
            f"{path}: {file.samplerate} Hz and {file.channels} channels; at most {MOST_RATE} Hz and {MOST_CHANNELS}"
        )
    if file.frames / file.samplerate > MOST_SECONDS:
        file.close()
        raise MediaError(
            f"{path}: {file.frames / file.samplerate / 3600:.1f} hours of sound; at most "
            f"{MOST_SECONDS / 3600:g} hours in one file: cut it"
        )
    return file
