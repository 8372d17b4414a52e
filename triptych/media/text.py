"""Text files and captions to one clean line."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.errors import MediaError

if TYPE_CHECKING:  # contracts loads torch
    from triptych.contracts import Source

MOST_BYTES = 1_000_000


def normalise(text: str) -> str:
    """The same text in one form: Unicode NFC, control characters and runs of white space as one space."""
    composed = unicodedata.normalize("NFC", text)
    printable = "".join(" " if unicodedata.category(c) in {"Cc", "Cs"} else c for c in composed)
    return " ".join(printable.split())


def words(source: Source) -> str:
    """The words of a source, be it a text or a file of one."""
    content = source.content
    found = read(content) if isinstance(content, Path) else normalise(content)
    if not found:
        raise MediaError(f"the text {str(content)!r} holds no words")
    return found


def read(path: Path) -> str:
    """The words of a text file."""
    try:
        if path.exists() and not path.is_file():
            raise MediaError(f"{path}: is not a file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise MediaError(f"{path}: {size / 1e6:.1f} MB of text; at most {MOST_BYTES / 1e6:g} MB: cut it")
        text = normalise(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise MediaError(f"{path}: no such text file") from error
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MediaError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if not text:
        raise MediaError(f"{path}: holds no words")
    return text
