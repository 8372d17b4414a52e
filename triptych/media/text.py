"""Text files and captions to one clean line."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.errors import MediaError
from triptych.media import sandbox

if TYPE_CHECKING:  # interfaces loads torch
    from triptych.interfaces import Source

MAX_TEXT_BYTES = 1_000_000
MAX_COMBINING_MARKS = (
    30  # combining marks in a row; Unicode's own bound for text that is processed as a stream (UAX #15)
)
SPLIT_MARKS = frozenset("\u0f73\u0f75\u0f81")  # of no combining class, but normalised into marks that have one


def normalise(text: str) -> str:
    """The same text in one form: Unicode NFC, control characters and runs of white space as one space.

    Of more than 30 combining marks in a row the first 30 are kept: putting n of them in order takes n² steps.
    """
    # Twice: NFC splits one mark (U+0344) into two.
    composed = _limit_combining_marks(unicodedata.normalize("NFC", _limit_combining_marks(text)))
    printable = "".join(" " if unicodedata.category(c) in {"Cc", "Cs"} else c for c in composed)
    return " ".join(printable.split())


def _limit_combining_marks(text: str) -> str:
    """The text without what exceeds MOST_MARKS combining marks in a row."""
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
    """The words of a source, be it a text or a file of one."""
    content = source.content
    text = read(content) if isinstance(content, Path) else normalise(content)
    if not text:
        raise MediaError(f"the text {str(content)!r} holds no words")
    return text


@sandbox.decoder(sandbox.validate_text)
def read(path: Path) -> str:
    """The words of a text file."""
    try:
        if path.exists() and not path.is_file():
            raise MediaError(f"{path}: is not a file")
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise MediaError(f"{path}: {size / 1e6:.1f} MB of text; at most {MAX_TEXT_BYTES / 1e6:g} MB: cut it")
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
