"""Limits on the size, the duration and the decoding time of one file."""

import time
from pathlib import Path

from triptych.errors import MediaError

MAX_FILE_BYTES = 16_000_000_000
MAX_IMAGE_BYTES = 1_000_000_000
MAX_PIXELS = 64_000_000
MAX_SIDE = 65_535  # pixels
MAX_ASPECT_RATIO = 500  # longer side / shorter side, because some encoders scale the shorter side to a fixed size
MAX_DURATION = 24 * 3600.0  # seconds
MAX_SAMPLES = 500_000_000  # samples decoded in one call: 2 GB in float32, almost three hours at 48 kHz
MAX_CHANNELS = 64
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1_000, 768_000  # Hz
MAX_CPU_SECONDS = 120.0  # CPU time of one call
MAX_WALL_SECONDS = 600.0  # wall-clock time of one call: generous, because the machine may be busy
MAX_MISSING_SECONDS, MAX_MISSING_FRACTION = 1.0, 0.05  # a file with more missing audio counts as damaged


class Deadline:
    """The time limit for decoding one file, checked between blocks, packets or frames.

    A decoder is not interrupted within a block. A worker process (`media/sandbox.py`) can be stopped at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cpu_deadline = time.thread_time() + MAX_CPU_SECONDS  # files are decoded on the calling thread
        self.wall_deadline = time.monotonic() + MAX_WALL_SECONDS

    def check(self) -> None:
        """Raise a MediaError after the deadline."""
        if time.thread_time() > self.cpu_deadline or time.monotonic() > self.wall_deadline:
            raise MediaError(
                f"{self.path}: not decoded within {MAX_CPU_SECONDS:g} s of CPU time and {MAX_WALL_SECONDS:g} s of "
                "wall-clock time; replace the file, or read shorter segments of it"
            )


def check_file(path: Path, media_type: str) -> None:
    """Raise a MediaError if a path does not exist, is not a file, is empty or is too large."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise MediaError(f"{path}: no such {media_type} file ({error.strerror})") from error
    if not path.is_file():
        raise MediaError(f"{path}: is not a file")
    if size == 0:
        raise MediaError(f"{path}: the file is empty (0 bytes)")
    if size > MAX_FILE_BYTES:
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; at most {MAX_FILE_BYTES / 1e9:g} GB per file: split the file")


def check_image_bytes(path: Path, size: int) -> None:
    """Raise a MediaError for an image file that is too large: some formats are read into memory completely."""
    if size > MAX_IMAGE_BYTES:
        limit = f"at most {MAX_IMAGE_BYTES / 1e9:g} GB per image"
        raise MediaError(f"{path}: {size / 1e9:.1f} GB; {limit}: scale the image down")


def check_pixels(path: Path, width: int, height: int) -> None:
    """Raise a MediaError for an image with too many pixels, before it is decoded."""
    if width * height > MAX_PIXELS:
        limit = f"at most {MAX_PIXELS / 1e6:g} million pixels"
        raise MediaError(f"{path}: {width} × {height} pixels; {limit}: scale the image down")
    if max(width, height) > min(MAX_SIDE, MAX_ASPECT_RATIO * min(width, height)):
        raise MediaError(
            f"{path}: {width} × {height} pixels; the longer side may have at most {MAX_SIDE:,} pixels "
            f"and at most {MAX_ASPECT_RATIO} times the pixels of the shorter side: crop the image"
        )


def check_audio_format(path: Path, rate: int, channels: int) -> None:
    """Raise a MediaError for implausible sample rates and channel counts."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE or not 1 <= channels <= MAX_CHANNELS:
        need = f"need {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz and at most {MAX_CHANNELS} channels"
        raise MediaError(f"{path}: {rate} Hz and {channels} channels; {need}")


def check_duration(path: Path, seconds: float) -> None:
    """Raise a MediaError for a file that is too long."""
    if seconds > MAX_DURATION:
        limit = f"at most {MAX_DURATION / 3600:g} hours per file"
        raise MediaError(f"{path}: {seconds / 3600:.1f} hours according to the header; {limit}: split the file")


def check_samples(path: Path, samples: float) -> None:
    """Raise a MediaError if too many samples are requested at once."""
    if samples > MAX_SAMPLES:
        raise MediaError(f"{path}: {samples:,.0f} samples at once; at most {MAX_SAMPLES:,}: read segments of the file")


def is_too_much_missing(missing_seconds: float, total_seconds: float, tolerance: float = 0.0) -> bool:
    """Return whether more than 5 % of the duration or more than one second is missing."""
    return missing_seconds > min(MAX_MISSING_SECONDS, max(MAX_MISSING_FRACTION * total_seconds, tolerance))


def check_not_truncated(path: Path, actual_seconds: float, header_seconds: float, tolerance: float = 0.0) -> None:
    """Raise a MediaError for a file that is truncated: far shorter than the duration in its header."""
    if is_too_much_missing(header_seconds - actual_seconds, header_seconds, tolerance):
        durations = f"ends after {actual_seconds:.2f} s, but the header says {header_seconds:.2f} s"
        raise MediaError(f"{path}: truncated: {durations}; fetch the file again")
