"""Formats that triptych does not read, told by the first bytes of a file, so that a message can name them."""

from __future__ import annotations

import codecs
from pathlib import Path

from triptych.errors import MediaError

HEAD_BYTES = 4096  # bytes of a file that are looked at
# Where in the file, which bytes, what that is. The first that fits counts.
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"%PDF-", "a PDF document"),
    (0, b"%!PS", "a PostScript document"),
    (0, b"{\\rtf", "an RTF document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (doc, xls, ppt)"),
    (0, b"PK\x03\x04", "a ZIP archive, or a document that is one (docx, xlsx, odt, epub)"),
    (0, b"PK\x05\x06", "an empty ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"MZ", "a Windows program"),
    (0, b"\x7fELF", "a Linux program or library"),
    (0, b"\xcf\xfa\xed\xfe", "a macOS program or library"),
    (0, b"\xca\xfe\xba\xbe", "a macOS program, or a Java class"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"PAR1", "a Parquet table"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (0, b"MThd", "a MIDI file, which has notes and no sound"),
    (0, b"8BPS", "a Photoshop picture"),
    (0, b"gimp xcf", "a GIMP picture"),
    (4, b"ftypheic", "a HEIC picture"),
    (4, b"ftypheix", "a HEIC picture"),
    (4, b"ftypmif1", "a HEIF picture"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftypcrx ", "a raw photograph (CR3)"),
    (0, b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (0, b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, b"wOFF", "a font"),
    (0, b"wOF2", "a font"),
    (0, b"OTTO", "a font"),
    (0, b"\x00\x01\x00\x00\x00", "a font"),
)
UNSUPPORTED_TEXT = "text, which is read from .txt and .md files alone"
MARKUP_TAGS = ((b"<svg", "an SVG drawing"), (b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"))


def detect_unsupported_format(path: Path) -> str | None:
    """What a file is, where it is of a format that triptych does not read; None where its first bytes do not tell.

    Ask it of files that could not be read: a text may begin like anything.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    for offset, signature, name in SIGNATURES:
        if head[offset : offset + len(signature)] == signature:
            return name
    if not _is_text(head):
        return None
    lowered = head.lower()
    return next((name for tag, name in MARKUP_TAGS if tag in lowered), UNSUPPORTED_TEXT)


def _is_text(head: bytes) -> bool:
    """Whether these are the first bytes of a text in UTF-8; the last character may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and not any(c < " " and c not in "\t\n\r\f" for c in text)
