"""Read text files and captions, and normalise them to one line."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.errors import MediaError
from triptych.media import sandbox

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Source

MAX_TEXT_BYTES = 1_000_000
MAX_COMBINING_MARKS = 30  # consecutive marks: the limit of Unicode's Stream-Safe Text Format (UAX #15)
SPLIT_MARKS = frozenset("\u0f73\u0f75\u0f81")  # combining class 0, but NFC decomposes them into combining marks


def normalise(text: str) -> str:
    """Normalise a text to Unicode NFC, and replace control characters and runs of white space with one space.

    Of more than 30 consecutive combining marks, the first 30 are kept, because sorting n marks takes O(n²) time.
    """
    # The limit is applied twice, because NFC decomposes U+0344 into two marks.
    composed = _limit_combining_marks(unicodedata.normalize("NFC", _limit_combining_marks(text)))
    printable = "".join(" " if unicodedata.category(c) in {"Cc", "Cs"} else c for c in composed)
    return " ".join(printable.split())


def _limit_combining_marks(text: str) -> str:
    """Keep the first MAX_COMBINING_MARKS of consecutive combining marks."""
    if text.isascii():
        return text
    characters: list[str] = []
    run_length = 0
    for character in text:
        run_length = run_length + 1 if unicodedata.combining(character) or character in SPLIT_MARKS else 0
        if run_length <= MAX_COMBINING_MARKS:
            characters.append(character)
    return "".join(characters)


def read_source(source: Source) -> str:
    """Return the normalised text of a source: the text itself, or the text of a file."""
    content = source.content
    text = read(content) if isinstance(content, Path) else normalise(str(content))
    if not text:
        raise MediaError(f"the text {str(content)!r} is empty")
    return text


@sandbox.decoder(sandbox.validate_text)
def read(path: Path) -> str:
    """Return the normalised text of a UTF-8 file."""
    try:
        if path.exists() and not path.is_file():
            raise MediaError(f"{path}: is not a file")
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            limit = f"at most {MAX_TEXT_BYTES / 1e6:g} MB"
            raise MediaError(f"{path}: {size / 1e6:.1f} MB of text; {limit}: split the file")
        text = normalise(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise MediaError(f"{path}: no such text file") from error
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MediaError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from error
    if not text:
        raise MediaError(f"{path}: the text is empty")
    return text
