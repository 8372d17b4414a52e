"""How much one file may ask of us, and the sentences that say so."""

from __future__ import annotations

import time
from pathlib import Path

from triptych.errors import MediaError

MAX_FILE_BYTES = 16_000_000_000
MAX_IMAGE_BYTES = 1_000_000_000
MAX_PIXELS = 64_000_000
MAX_SIDE = 65_535  # pixels
MAX_ASPECT_RATIO = 500  # longer side / shorter side: encoders that keep it scale the shorter side up to theirs
MAX_DURATION = 24 * 3600.0  # of one file
MAX_SAMPLES = 500_000_000  # decoded at once: 2 GB, almost three hours at 48 kHz
MAX_CHANNELS = 64
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1_000, 768_000
MAX_CPU_SECONDS = 120.0  # seconds of processor time for one call
MAX_WALL_SECONDS = 600.0  # seconds for one call by the clock: a busy machine is not the file's fault, a dead disk is
MAX_MISSING_SECONDS, MAX_MISSING_FRACTION = 1.0, 0.05  # seconds, and share of the whole


class Deadline:
    """The moment at which decoding one file has taken too long; checked between blocks, packets or frames.

    A decoder is not interrupted within a block: only a worker process (`media/sandbox.py`) can be stopped there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cpu_deadline = time.thread_time() + MAX_CPU_SECONDS  # files are decoded on the thread that asks
        self.wall_deadline = time.monotonic() + MAX_WALL_SECONDS

    def check(self) -> None:
        """Raise once the time is over."""
        if time.thread_time() > self.cpu_deadline or time.monotonic() > self.wall_deadline:
            raise MediaError(
                f"{self.path}: not decoded within {MAX_CPU_SECONDS:g} s of processor time and {MAX_WALL_SECONDS:g} s by the "
                "clock; replace the file, or read shorter moments of it"
            )


def check_file(path: Path, media_type: str) -> None:
    """Refuse what is not there, is no file, is empty or is too large, before any decoder sees it."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise MediaError(f"{path}: no such {media_type} file ({error.strerror})") from error
    if not path.is_file():
        raise MediaError(f"{path}: is not a file")
    if size == 0:
        raise MediaError(f"{path}: the file is empty (0 bytes)")
    if size > MAX_FILE_BYTES:
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; at most {MAX_FILE_BYTES / 1e9:g} GB in one file: cut it")


def check_image_bytes(path: Path, size: int) -> None:
    """Refuse a picture file larger than memory is for: some are read whole."""
    if size > MAX_IMAGE_BYTES:
        limit = f"at most {MAX_IMAGE_BYTES / 1e9:g} GB in one picture"
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; {limit}: scale it down")


def check_pixels(path: Path, width: int, height: int) -> None:
    """Refuse a picture larger than memory is for, before it is unpacked."""
    if width * height > MAX_PIXELS:
        raise MediaError(
            f"{path}: {width} × {height} pixels; at most {MAX_PIXELS / 1e6:g} million pixels: scale it down"
        )
    if max(width, height) > min(MAX_SIDE, MAX_ASPECT_RATIO * min(width, height)):
        raise MediaError(
            f"{path}: {width} × {height} pixels; the longer side may have {MAX_SIDE:,} pixels, "
            f"and {MAX_ASPECT_RATIO} times those of the shorter one: cut it into pieces"
        )


def check_audio_format(path: Path, rate: int, channels: int) -> None:
    """Refuse rates and channel counts that no recording has."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE or not 1 <= channels <= MAX_CHANNELS:
        raise MediaError(
            f"{path}: {rate} Hz and {channels} channels; at most {MAX_SAMPLE_RATE} Hz and {MAX_CHANNELS} channels"
        )


def check_duration(path: Path, seconds: float) -> None:
    """Refuse a file longer than any recording."""
    if seconds > MAX_DURATION:
        limit = f"at most {MAX_DURATION / 3600:g} hours in one file"
        raise MediaError(f"{path}: {seconds / 3600:.1f} hours by its header; {limit}: cut it")


def check_samples(path: Path, samples: float) -> None:
    """Refuse to hold more of a sound at once than memory is for."""
    if samples > MAX_SAMPLES:
        raise MediaError(f"{path}: {samples:,.0f} samples at once; at most {MAX_SAMPLES:,}: read moments of it")


def is_too_much_missing(missing_seconds: float, total_seconds: float, tolerance: float = 0.0) -> bool:
    """Whether so many seconds are missing from a whole that it would be another sound: over 5 %, or over a second."""
    return missing_seconds > min(MAX_MISSING_SECONDS, max(MAX_MISSING_FRACTION * total_seconds, tolerance))


def check_not_truncated(path: Path, actual_seconds: float, header_seconds: float, tolerance: float = 0.0) -> None:
    """Refuse a file that ends well before its header says it does: it must not pass for a shorter one."""
    if is_too_much_missing(header_seconds - actual_seconds, header_seconds, tolerance):
        raise MediaError(
            f"{path}: cut short: ends after {actual_seconds:.2f} s, its header says {header_seconds:.2f} s; fetch the file again"
        )
