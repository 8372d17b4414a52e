"""A folder of media files that are named by a hash of their content, so that each content is written once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triptych.data.datasets.archive import expansion_error, max_unpacked_bytes
from triptych.data.row_parser import MediaType, is_missing
from triptych.errors import InputError
from triptych.files import atomic_write

if TYPE_CHECKING:  # importing torch takes seconds, and datasets with embedded bytes do not need it
    import numpy as np

    from triptych.interfaces import Source, Waveform

MEDIA_FILE_NAME = re.compile(r"[0-9a-f]{32}(\.\w+)?")
MAGIC_BYTES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"GIF8", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"WAVE", 8, ".wav"),
    (b"AIFF", 8, ".aiff"),
    (b"fLaC", 0, ".flac"),
    (b"OggS", 0, ".ogg"),
    (b"ID3", 0, ".mp3"),
    (b"\xff\xfb", 0, ".mp3"),
    (b"ftyp", 4, ".mp4"),
    (b"\x1aE\xdf\xa3", 0, ".mkv"),
    (b"II*\0", 0, ".tif"),
    (b"BM", 0, ".bmp"),
)


class MediaFolder:
    """Writes media that are bytes or Python objects as files, and records the files in `written`.

    If `table` is the path of a table that contains the media, the total size of the files is limited in proportion to
    the size of the table (decompression bombs).
    """

    def __init__(self, folder: Path, table: Path | None = None) -> None:
        self.folder, self.table = folder, table
        self.written: list[Path] = []
        self._bytes_left = max_unpacked_bytes(table) if table else None

    def add_cell(self, cell: Any, media_type: MediaType | None) -> Path | None:
        """Return the file of a table cell: the path in the cell, or a new file with the content of the cell.

        Args:
            cell: A path; bytes; a dictionary with "bytes" or "path", or with "array" and "sampling_rate"; a PIL image;
                an image array; a tuple (samples, rate); or None.
            media_type: The media type of the column; None if the file extension decides.

        Returns:
            The path of the file; None if the cell is empty.

        Raises:
            InputError: The cell has another type, dtype, shape or sampling rate, or bytes of an unknown format.
        """
        if isinstance(cell, bytes | bytearray | memoryview):
            cell = {"bytes": bytes(cell)}
        if isinstance(cell, Mapping) and "array" not in cell and {"bytes", "path"} & cell.keys():
            if content := cell.get("bytes"):
                name = str(cell.get("path") or "")
                if not find_suffix(content, name):
                    raise InputError('bytes of an unknown format; give {"bytes": …, "path": "name.wav"}')
                return self.add_bytes(content, name)
            cell = cell.get("path")
        if is_missing(cell) or (isinstance(cell, str) and not cell.strip()):
            return None
        if media_type in ("audio", "image"):
            return self._add_object(cell, media_type)
        if isinstance(cell, str | PathLike):
            return Path(cell).expanduser().absolute()
        raise InputError(f"{type(cell).__name__} is not a file; give a path or bytes")

    def add_bytes(self, content: bytes, name: str = "") -> Path:
        """Write the bytes of a file with the extension that `find_suffix` returns."""
        file_name = f"{hashlib.sha256(content).hexdigest()[:32]}{find_suffix(content, name)}"
        return self._write(file_name, lambda path: path.write_bytes(content), len(content))

    def _add_object(self, cell: Any, modality: Literal["audio", "image"]) -> Path:
        """Write audio or an image in memory without loss; return the path if the cell is a path."""
        from triptych.inputs import to_source
        from triptych.interfaces import Waveform

        source = to_source(cell, modality)
        if source.start is not None or source.end is not None:
            raise InputError("the source is a segment; give start and end as columns of the table")
        if isinstance(source.content, str | Path):
            return Path(source.content).absolute()
        if isinstance(source.content, Waveform):
            return self._add_waveform(source.content)
        return self._add_image(source)

    def _add_waveform(self, waveform: Waveform) -> Path:
        from scipy.io import wavfile  # unlike libsndfile, scipy writes no time stamp

        name = f"{_hash_array(waveform.samples, waveform.rate)}.wav"
        return self._write(name, lambda path: wavfile.write(path, waveform.rate, waveform.samples))

    def _add_image(self, source: Source) -> Path:
        import numpy as np

        from triptych.media.image import load_source

        image = load_source(source)
        return self._write(f"{_hash_array(np.asarray(image))}.png", lambda path: image.save(path, "PNG"))

    def _write(self, name: str, write: Callable[[Path], object], size: int | None = None) -> Path:
        """Write a file unless it exists. `size` is the number of bytes, if it is known."""
        path = self.folder / name
        existing_size = path.stat().st_size if path.is_file() else 0  # 0 after a power failure: files are not synced
        if existing_size and size in (None, existing_size):
            return path
        if self.table and self._bytes_left is not None:
            self._bytes_left -= size or 0
            if self._bytes_left < 0:
                raise expansion_error(self.table)
        with atomic_write(path, durable=False) as temporary:
            write(temporary)
        self.written.append(path)
        return path


def find_suffix(content: bytes, name: str = "") -> str:
    """Return the file extension that the first bytes imply, or else the extension of `name`, which may be empty."""
    suffixes = (suffix for magic, offset, suffix in MAGIC_BYTES if content[offset : offset + len(magic)] == magic)
    return next(suffixes, Path(name).suffix.lower())


def _hash_array(array: np.ndarray, *settings: int) -> str:
    header = f"{array.dtype} {array.shape} {settings}".encode()
    return hashlib.sha256(header + array.tobytes()).hexdigest()[:32]
