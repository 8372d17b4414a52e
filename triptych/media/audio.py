"""Sound files to mono samples, and samples to log-mel frames."""

from __future__ import annotations

import math
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import soundfile
import soxr

from triptych.errors import InputError, MediaError
from triptych.media import limits, sandbox

if TYPE_CHECKING:  # takes seconds, and decoding does without
    from torch import Tensor

LOUDEST = 1e6  # float files that were never scaled reach 32,768; beyond this it is no sound
BLOCK = 1 << 20  # samples of all channels decoded before the clock is looked at
MARGIN = 0.05  # seconds beside a moment, so that resampling it gives what resampling the whole file gives there
READABLE = "wav, flac, ogg, opus, mp3, aiff, m4a, aac, wma, or a film with sound"

# What libsndfile reads best, by its first bytes. Not mp3: its decoder there writes to stderr what it dislikes.
PLAIN = frozenset({b"RIFF", b"RIFX", b"RF64", b"FORM", b"fLaC", b"OggS", b".snd", b"caff", b"riff"})
SIZE = re.compile(r": (\d+) \(should be (\d+)\)")  # libsndfile's note of a header that promises other than there is
OPEN_END = 0x7FFF_0000  # sizes from here on are how programs write "not known yet"
MALFORMED = 3  # libsndfile's code for it
OGG_PAGE = 65_307  # bytes of the largest
MPEG = frozenset({b"\x50\x00", b"\x55\x00"})  # layers I and II, layer III: what a WAV's `fmt ` chunk calls them
MOST_CHUNKS = 100  # of a WAV before its `fmt ` chunk


@sandbox.decoder(sandbox.seconds)
def duration(path: Path) -> float:
    """Seconds of sound in a file, by its header."""
    limits.check_file(path, "sound")
    file = _opened(path)
    if file is None:
        from triptych.media import soundtrack  # loads PyAV, which most sounds do without

        seconds = soundtrack.duration(path, READABLE)
    else:
        with file:
            seconds = file.frames / file.samplerate
    limits.check_duration(path, seconds)
    return seconds


@sandbox.decoder(sandbox.samples)
def read(path: Path, rate: int, start: float | None = None, end: float | None = None) -> np.ndarray:
    """Mono float32 samples at `rate`, between start and end (seconds) where given: the whole, sliced to the sample."""
    limits.check_file(path, "sound")
    begin, stop = max(0.0, start or 0.0), math.inf if end is None else end
    origin = math.floor(max(0.0, begin - MARGIN))  # a whole second is a whole sample at either rate
    samples, found_rate = _decode(path, origin, stop + MARGIN) if stop > begin else (np.zeros(0, np.float32), rate)
    if len(samples):
        _check_samples(path, samples)
    if len(samples) and found_rate != rate:
        samples = soxr.resample(samples, found_rate, rate)
    first = round(begin * rate) - origin * rate
    piece = samples[first:] if math.isinf(stop) else samples[first : max(first, round(stop * rate) - origin * rate)]
    if not len(piece):
        until = "the end" if end is None else f"{end:g} s"
        raise MediaError(f"{path}: no sound between {begin:g} s and {until}; the file is {duration(path):g} s long")
    return piece


def windows(duration: float, length: float, hop: float) -> list[tuple[float, float]]:
    """A long recording as (start, end) of windows, one each hop; the last ends with it, as long as the others."""
    if not (length > 0 and hop > 0 and math.isfinite(duration)):
        raise InputError(f"duration {duration}, length {length}, hop {hop}: length and hop must be above 0")
    if duration <= length:
        return [(0.0, duration)]
    count = math.ceil((duration - length) / hop - 1e-6) + 1  # no window more for a rounding error
    starts = [min(i * hop, duration - length) for i in range(count)]
    return [(start, start + length) for start in starts]


def log_mel(samples: np.ndarray, rate: int, mels: int, window: int, hop: int) -> Tensor:
    """Log-mel power in dB, 10·log10(max(mel · |STFT|², 1e-10)): Hann window, centred, Slaney's mel scale and areas."""
    import torch

    wave = torch.from_numpy(np.ascontiguousarray(samples))
    hann = _hann(window)
    spectrum = torch.stft(wave, window, hop, window=hann, center=True, pad_mode="constant", return_complex=True)
    power = spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)  # (bins, frames)
    mel = mel_filters(rate, window, mels) @ power
    return mel.clamp_min_(1e-10).log10_().mul_(10).T  # (frames, mels)


@lru_cache(maxsize=8)
def mel_filters(rate: int, window: int, mels: int) -> Tensor:
    """Triangles on the mel scale, each of area 2 / its width in Hz: (mels, window // 2 + 1)."""
    import torch

    edges = _hertz(np.linspace(0.0, _mel(rate / 2), mels + 2))
    bins = np.linspace(0.0, rate / 2, window // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


@lru_cache(maxsize=8)
def _hann(window: int) -> Tensor:
    import torch

    return torch.hann_window(window)


# Slaney's scale: linear to 1 kHz (15 mels), then 27 mels for each factor of 6.4.
def _mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(np.log(6.4) * (mel - 15) / 27))


def _decode(path: Path, start: float, end: float) -> tuple[np.ndarray, int]:
    """Mono float32 at the file's own rate, and that rate; empty past the end of the file."""
    file = _opened(path)
    if file is None:
        from triptych.media import soundtrack  # loads PyAV, which most sounds do without

        return soundtrack.read(path, start, end, READABLE)
    with file:
        rate, last = file.samplerate, file.frames
        limits.check_duration(path, last / rate)
        _check_size(path, file)
        first = round(start * rate)
        last = last if math.isinf(end) else min(last, round(end * rate))
        limits.check_samples(path, last - first)
        return (_blocks(path, file, first, last) if first < last else np.zeros(0, np.float32)), rate


def _blocks(path: Path, file: soundfile.SoundFile, first: int, last: int) -> np.ndarray:
    """The mean of the channels between two samples, decoded block by block."""
    share = np.full(file.channels, 1 / file.channels, np.float32)
    deadline, pieces, place = limits.Deadline(path), [], first
    try:
        if first:
            file.seek(first)
        while place < last:
            block = file.read(min(max(1, BLOCK // file.channels), last - place), dtype="float32", always_2d=True)
            if not len(block):
                break
            with np.errstate(invalid="ignore", over="ignore"):  # judged once the whole is there
                pieces.append(block[:, 0] if file.channels == 1 else block @ share)
            place += len(block)
            deadline.check()
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise MediaError(f"{path}: broken sound data ({error}); replace the file or leave it out") from error
    limits.check_whole(path, place / file.samplerate, last / file.samplerate)
    return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]


def _check_samples(path: Path, samples: np.ndarray) -> None:
    peak = max(samples.max(), -samples.min())  # NaN wins every maximum
    if not math.isfinite(peak):
        raise MediaError(f"{path}: the samples hold NaN or infinity; export the file again")
    if peak > LOUDEST:
        raise MediaError(f"{path}: samples of {peak:.0e}; sound lies within ±1: export the file again")


def _opened(path: Path) -> soundfile.SoundFile | None:
    """The file as libsndfile opens it; None where it is no such file, whatever its ending says."""
    head = b""
    try:
        with path.open("rb") as data:
            head = data.read(4)
            if head not in PLAIN or _holds_mpeg(head, data):
                return None
        # As bytes, names that are not UTF-8 are opened too; Windows has no such names.
        name = os.fsencode(path) if os.name == "posix" else str(path)
        file = soundfile.SoundFile(name)  # pyright: ignore[reportArgumentType] - it takes bytes, too
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        if head == b"caff" and getattr(error, "code", None) == MALFORMED:  # FFmpeg would take what is left for it all
            raise MediaError(f"{path}: cut short or damaged ({error}); fetch the file again") from error
        return None  # a film in RIFF or Ogg, a rare codec, or damage: FFmpeg has the last word
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        limits.check_sound(path, file.samplerate, file.channels)
    except MediaError:
        file.close()
        raise
    return file


def _holds_mpeg(head: bytes, data: BinaryIO) -> bool:
    """Whether a WAV, read up to `head`, holds mp3 or the like: libsndfile's decoder for it writes to stderr."""
    if head not in {b"RIFF", b"RF64"}:
        return False
    data.seek(12)
    for _ in range(MOST_CHUNKS):
        chunk = data.read(10)
        if len(chunk) < 10:
            return False
        if chunk[:4] == b"fmt ":
            return chunk[8:] in MPEG
        length = int.from_bytes(chunk[4:8], "little")
        data.seek(length + length % 2 - 2, 1)
    return False


def _check_size(path: Path, file: soundfile.SoundFile) -> None:
    """Refuse files that are cut short where libsndfile takes what is left for the whole."""
    seconds = file.frames / file.samplerate
    for promised, there in SIZE.findall(file.extra_info):
        if int(there) < int(promised) < OPEN_END:
            limits.check_whole(path, seconds, seconds * int(promised) / max(1, int(there)))
    if file.format == "OGG" and not _ends_with_a_page(path):
        raise MediaError(f"{path}: cut short: ends within a page after {seconds:.2f} s; fetch the file again")


def _ends_with_a_page(path: Path) -> bool:
    """Whether the last page of an Ogg file is whole: Ogg headers tell no length."""
    with path.open("rb") as data:
        data.seek(max(0, path.stat().st_size - OGG_PAGE))
        tail = data.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return False
    return len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
