"""How much one file may ask of us, and the sentences that say so."""

from __future__ import annotations

import time
from pathlib import Path

from triptych.errors import MediaError

MOST_BYTES = 16_000_000_000
MOST_PICTURE_BYTES = 1_000_000_000
MOST_PIXELS = 64_000_000
MOST_SIDE = 65_535  # pixels
MOST_STRETCH = 500  # longer side / shorter side: encoders that keep it scale the shorter side up to theirs
MOST_SECONDS = 24 * 3600.0  # of one file
MOST_SAMPLES = 500_000_000  # decoded at once: 2 GB, almost three hours at 48 kHz
MOST_CHANNELS = 64
LEAST_RATE, MOST_RATE = 1_000, 768_000
MOST_DECODING = 120.0  # seconds of processor time for one call
MOST_WAITING = 600.0  # seconds for one call by the clock: a busy machine is not the file's fault, a dead disk is
MOST_LOSS, LOST_SHARE = 1.0, 0.05  # seconds, and share of the whole


class Deadline:
    """The moment at which decoding one file has taken too long; checked between blocks, packets or frames.

    A decoder is not interrupted within a block: only a worker process (`media/sandbox.py`) can be stopped there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processor_end = time.thread_time() + MOST_DECODING  # files are decoded on the thread that asks
        self.clock_end = time.monotonic() + MOST_WAITING

    def check(self) -> None:
        """Raise once the time is over."""
        if time.thread_time() > self.processor_end or time.monotonic() > self.clock_end:
            raise MediaError(
                f"{self.path}: not decoded within {MOST_DECODING:g} s of processor time and {MOST_WAITING:g} s by the "
                "clock; replace the file, or read shorter moments of it"
            )


def check_file(path: Path, kind: str) -> None:
    """Refuse what is not there, is no file, is empty or is too large, before any decoder sees it."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise MediaError(f"{path}: no such {kind} file ({error.strerror})") from error
    if not path.is_file():
        raise MediaError(f"{path}: is not a file")
    if size == 0:
        raise MediaError(f"{path}: the file is empty (0 bytes)")
    if size > MOST_BYTES:
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; at most {MOST_BYTES / 1e9:g} GB in one file: cut it")


def check_picture_bytes(path: Path, size: int) -> None:
    """Refuse a picture file larger than memory is for: some are read whole."""
    if size > MOST_PICTURE_BYTES:
        most = f"at most {MOST_PICTURE_BYTES / 1e9:g} GB in one picture"
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; {most}: scale it down")


def check_pixels(path: Path, width: int, height: int) -> None:
    """Refuse a picture larger than memory is for, before it is unpacked."""
    if width * height > MOST_PIXELS:
        raise MediaError(
            f"{path}: {width} × {height} pixels; at most {MOST_PIXELS / 1e6:g} million pixels: scale it down"
        )
    if max(width, height) > min(MOST_SIDE, MOST_STRETCH * min(width, height)):
        raise MediaError(
            f"{path}: {width} × {height} pixels; the longer side may have {MOST_SIDE:,} pixels, "
            f"and {MOST_STRETCH} times those of the shorter one: cut it into pieces"
        )


def check_sound(path: Path, rate: int, channels: int) -> None:
    """Refuse rates and channel counts that no recording has."""
    if not LEAST_RATE <= rate <= MOST_RATE or not 1 <= channels <= MOST_CHANNELS:
        raise MediaError(
            f"{path}: {rate} Hz and {channels} channels; at most {MOST_RATE} Hz and {MOST_CHANNELS} channels"
        )


def check_duration(path: Path, seconds: float) -> None:
    """Refuse a file longer than any recording."""
    if seconds > MOST_SECONDS:
        most = f"at most {MOST_SECONDS / 3600:g} hours in one file"
        raise MediaError(f"{path}: {seconds / 3600:.1f} hours by its header; {most}: cut it")


def check_samples(path: Path, samples: float) -> None:
    """Refuse to hold more of a sound at once than memory is for."""
    if samples > MOST_SAMPLES:
        raise MediaError(f"{path}: {samples:,.0f} samples at once; at most {MOST_SAMPLES:,}: read moments of it")


def is_lost(missing: float, whole: float, grace: float = 0.0) -> bool:
    """Whether so many seconds are missing from a whole that it would be another sound: over 5 %, or over a second."""
    return missing > min(MOST_LOSS, max(LOST_SHARE * whole, grace))


def check_whole(path: Path, found: float, claimed: float, grace: float = 0.0) -> None:
    """Refuse a file that ends well before its header says it does: it must not pass for a shorter one."""
    if is_lost(claimed - found, claimed, grace):
        raise MediaError(
            f"{path}: cut short: ends after {found:.2f} s, its header says {claimed:.2f} s; fetch the file again"
        )
