"""Decode audio files to mono samples, and convert samples to log-mel spectrograms."""

from __future__ import annotations

import math
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import soundfile
import soxr

from triptych.errors import InputError, MediaError
from triptych.media import limits, sandbox

if TYPE_CHECKING:  # importing torch takes seconds, and decoding does not need it
    from torch import Tensor

    from triptych.interfaces import Source, Waveform

MAX_AMPLITUDE = 1e6  # unscaled float files reach 32,768; larger values mean damage
BLOCK_SAMPLES = 1 << 20  # samples of all channels decoded between two checks of the deadline
# Seconds decoded before and after a segment, so that the resampled segment equals a slice of the resampled file.
RESAMPLING_MARGIN = 0.05
SUPPORTED_FORMATS = "wav, flac, ogg, opus, mp3, aiff, m4a, aac, wma, or a video with audio"

# First bytes of the formats that libsndfile reads. Not mp3: libsndfile's mp3 decoder writes to stderr.
SNDFILE_SIGNATURES = frozenset({b"RIFF", b"RIFX", b"RF64", b"FORM", b"fLaC", b"OggS", b".snd", b"caff", b"riff"})
# libsndfile logs a line of this form if the size in the header differs from the actual size.
SIZE_MISMATCH = re.compile(r": (\d+) \(should be (\d+)\)")
UNKNOWN_SIZE = 0x7FFF_0000  # streaming programs write this size or a larger one if the size is unknown
SNDFILE_MALFORMED = 3  # libsndfile's error code for malformed files
MAX_OGG_PAGE_BYTES = 65_307
MPEG_FORMAT_TAGS = frozenset({b"\x50\x00", b"\x55\x00"})  # in a WAV's `fmt ` chunk: MPEG layers I and II, layer III
MAX_CHUNKS = 100  # chunks of a WAV file searched for the `fmt ` chunk


@sandbox.decoder(sandbox.validate_seconds)
def read_duration(path: Path) -> float:
    """Return the duration of a file's audio in seconds, from the file's header if possible."""
    limits.check_file(path, "audio")
    file = _open_sndfile(path)
    if file is None:
        from triptych.media import audio_stream

        seconds = audio_stream.read_duration(path, SUPPORTED_FORMATS)
    else:
        with file:
            seconds = file.frames / file.samplerate
    limits.check_duration(path, seconds)
    return seconds


@sandbox.decoder(sandbox.validate_samples)
def read(path: Path, rate: int, start: float | None = None, end: float | None = None) -> np.ndarray:
    """Return mono float32 samples at `rate` (Hz) from `start` to `end` (seconds): a slice of the resampled file."""
    limits.check_file(path, "audio")
    begin, stop = max(0.0, start or 0.0), math.inf if end is None else end
    decode_start = math.floor(max(0.0, begin - RESAMPLING_MARGIN))  # whole seconds are whole samples at any rate
    samples, file_rate = np.zeros(0, np.float32), rate
    if stop > begin:
        samples, file_rate = _decode(path, decode_start, stop + RESAMPLING_MARGIN)
    if len(samples):
        _check_samples(path, samples)
    segment = _resample(samples, file_rate, rate, decode_start, begin, stop)
    if not len(segment):
        span = f"{begin:g} s and {'the end' if end is None else f'{end:g} s'}"
        raise MediaError(f"{path}: no audio between {span}; the file is {read_duration(path):g} s long")
    return segment


def read_source(source: Source, rate: int, max_seconds: float) -> np.ndarray:
    """Return mono float32 samples at `rate` (Hz) of a source's segment: at most the first `max_seconds` seconds."""
    start = source.start or 0.0
    end = start + max_seconds if source.end is None else min(source.end, start + max_seconds)
    if isinstance(source.content, str | Path):
        return read(Path(source.content), rate, start, end)
    waveform = cast("Waveform", source.content)
    first = math.floor(max(0.0, start - RESAMPLING_MARGIN))
    last = None if math.isinf(end) else round((end + RESAMPLING_MARGIN) * waveform.rate)
    segment = _resample(waveform.samples[first * waveform.rate : last], waveform.rate, rate, first, start, end)
    if not len(segment):
        raise MediaError(f"{waveform}: no audio between {start:g} s and {end:g} s")
    return segment


def _resample(samples: np.ndarray, from_rate: int, rate: int, first: int, start: float, end: float) -> np.ndarray:
    """Resample samples that begin at second `first`; return the samples from `start` to `end` (seconds)."""
    if len(samples) and from_rate != rate:
        samples = soxr.resample(samples, from_rate, rate)
    begin = round(start * rate) - first * rate
    return samples[begin:] if math.isinf(end) else samples[begin : max(begin, round(end * rate) - first * rate)]


def sliding_windows(duration: float, length: float, hop: float) -> list[tuple[float, float]]:
    """Return (start, end) of windows of equal length that start `hop` apart; the last window ends at `duration`."""
    if not (length > 0 and hop > 0 and math.isfinite(duration)):
        raise InputError(f"duration {duration}, length {length}, hop {hop}: length and hop must be above 0")
    if duration <= length:
        return [(0.0, duration)]
    count = math.ceil((duration - length) / hop - 1e-6) + 1  # tolerate rounding errors
    starts = [min(i * hop, duration - length) for i in range(count)]
    return [(start, start + length) for start in starts]


def log_mel_spectrogram(samples: np.ndarray, rate: int, n_mels: int, n_fft: int, hop_length: int) -> Tensor:
    """Return the log-mel power in dB, 10·log10(max(mel · |STFT|², 1e-10)): centred Hann windows, Slaney's mel scale."""
    import torch

    wave = torch.from_numpy(np.ascontiguousarray(samples))
    hann = _hann_window(n_fft)
    spectrum = torch.stft(wave, n_fft, hop_length, window=hann, center=True, pad_mode="constant", return_complex=True)
    power = spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)  # (bins, frames)
    mel = mel_filters(rate, n_fft, n_mels) @ power
    return mel.clamp_min_(1e-10).log10_().mul_(10).T  # (frames, mels)


@lru_cache(maxsize=8)
def mel_filters(rate: int, n_fft: int, n_mels: int) -> Tensor:
    """Return triangular mel filters (n_mels, n_fft // 2 + 1). A filter's height is 2 / its width in Hz (Slaney)."""
    import torch

    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(rate / 2), n_mels + 2))
    bins = np.linspace(0.0, rate / 2, n_fft // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


@lru_cache(maxsize=8)
def _hann_window(n_fft: int) -> Tensor:
    import torch

    return torch.hann_window(n_fft)


# Slaney's mel scale: linear up to 1 kHz (15 mels), then 27 mels for each factor of 6.4.
def _hz_to_mel(hz: float) -> float:
    return 3 * hz / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(np.log(6.4) * (mel - 15) / 27))


def _decode(path: Path, start: float, end: float) -> tuple[np.ndarray, int]:
    """Return the mono float32 samples from `start` to `end` (seconds) and the file's sample rate in Hz."""
    file = _open_sndfile(path)
    if file is None:
        from triptych.media import audio_stream

        return audio_stream.read(path, start, end, SUPPORTED_FORMATS)
    with file:
        rate, last = file.samplerate, file.frames
        limits.check_duration(path, last / rate)
        _check_not_truncated(path, file)
        first = round(start * rate)
        last = last if math.isinf(end) else min(last, round(end * rate))
        limits.check_samples(path, last - first)
        return (_decode_blocks(path, file, first, last) if first < last else np.zeros(0, np.float32)), rate


def _decode_blocks(path: Path, file: soundfile.SoundFile, first: int, last: int) -> np.ndarray:
    """Decode the samples from position `first` to `last`, block by block, and return the mean of the channels."""
    channel_weights = np.full(file.channels, 1 / file.channels, np.float32)
    block_size = max(1, BLOCK_SAMPLES // file.channels)
    deadline, chunks, position = limits.Deadline(path), [], first
    try:
        if first:
            file.seek(first)
        while position < last:
            block = file.read(min(block_size, last - position), dtype="float32", always_2d=True)
            if not len(block):
                break
            with np.errstate(invalid="ignore", over="ignore"):  # _check_samples raises for NaN and infinity
                chunks.append(block[:, 0] if file.channels == 1 else block @ channel_weights)
            position += len(block)
            deadline.check()
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise MediaError(f"{path}: broken audio data ({error}); replace or remove the file") from error
    limits.check_not_truncated(path, position / file.samplerate, last / file.samplerate)
    return np.concatenate(chunks) if len(chunks) != 1 else chunks[0]


def _check_samples(path: Path, samples: np.ndarray) -> None:
    peak = max(samples.max(), -samples.min())  # NaN propagates through max()
    if not math.isfinite(peak):
        raise MediaError(f"{path}: the samples contain NaN or infinity; export the file again")
    if peak > MAX_AMPLITUDE:
        raise MediaError(f"{path}: a sample is {peak:.0e}; samples must lie within ±1: export the file again")


def _open_sndfile(path: Path) -> soundfile.SoundFile | None:
    """Open a file with libsndfile; return None if libsndfile cannot read the file. The extension is ignored."""
    head = b""
    try:
        with path.open("rb") as data:
            head = data.read(4)
            if head not in SNDFILE_SIGNATURES or _is_mpeg_wav(head, data):
                return None
        # The path is passed as bytes, because POSIX file names need not be UTF-8.
        name = os.fsencode(path) if os.name == "posix" else str(path)
        file = soundfile.SoundFile(name)  # pyright: ignore[reportArgumentType] - accepts bytes
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        # FFmpeg would read a truncated CAF file without an error.
        if head == b"caff" and getattr(error, "code", None) == SNDFILE_MALFORMED:
            raise MediaError(f"{path}: truncated or damaged ({error}); fetch the file again") from error
        return None  # FFmpeg is tried next: the file may be a video in RIFF or Ogg, have a rare codec or be damaged
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        limits.check_audio_format(path, file.samplerate, file.channels)
    except MediaError:
        file.close()
        raise
    return file


def _is_mpeg_wav(head: bytes, data: BinaryIO) -> bool:
    """Return whether `data`, a file whose first four bytes are `head`, is a WAV file with MPEG audio."""
    if head not in {b"RIFF", b"RF64"}:
        return False
    data.seek(12)
    for _ in range(MAX_CHUNKS):
        chunk = data.read(10)
        if len(chunk) < 10:
            return False
        if chunk[:4] == b"fmt ":
            return chunk[8:] in MPEG_FORMAT_TAGS
        length = int.from_bytes(chunk[4:8], "little")
        data.seek(length + length % 2 - 2, 1)
    return False


def _check_not_truncated(path: Path, file: soundfile.SoundFile) -> None:
    """Raise a MediaError for a truncated file that libsndfile would read without an error."""
    seconds = file.frames / file.samplerate
    for header_size, actual_size in SIZE_MISMATCH.findall(file.extra_info):
        if int(actual_size) < int(header_size) < UNKNOWN_SIZE:
            limits.check_not_truncated(path, seconds, seconds * int(header_size) / max(1, int(actual_size)))
    if file.format == "OGG" and not _has_complete_last_page(path):
        problem = f"the last Ogg page, after {seconds:.2f} s, is incomplete"
        raise MediaError(f"{path}: truncated: {problem}; fetch the file again")


def _has_complete_last_page(path: Path) -> bool:
    """Return whether the last page of an Ogg file is complete. An Ogg header has no duration to check instead."""
    with path.open("rb") as data:
        data.seek(max(0, path.stat().st_size - MAX_OGG_PAGE_BYTES))
        tail = data.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return False
    return len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
