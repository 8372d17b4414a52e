"""Text: normalisation, and errors for bad files."""

import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import MediaError
from triptych.media import text


@given(st.text())
def test_normalise_is_idempotent(raw):
    once = text.normalise(raw)
    assert text.normalise(once) == once
    assert once == once.strip()
    assert "\n" not in once


def test_composed_and_decomposed_letters_are_one():
    assert text.normalise("cafe\u0301  noir\n") == "caf\u00e9 noir"


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0f75", "\u0344", "\u0301"])
def test_many_combining_marks_are_normalised_in_linear_time(marks):
    """Sorting n marks takes O(n²) time: hours for these."""
    started = time.process_time()
    once = text.normalise("a" + marks * 300_000)
    assert time.process_time() - started < 30
    assert len(once) <= 1 + text.MAX_COMBINING_MARKS
    assert text.normalise(once) == once
    assert text.normalise(f"x{once}y") == f"x{once}y"


def test_every_character_that_becomes_a_mark_is_counted_as_one():
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        becomes_mark = unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0
        assert becomes_mark == (unicodedata.combining(character) > 0 or character in text.SPLIT_MARKS), hex(number)


def test_ordinary_combining_marks_are_kept():
    raw = "Tiếng Việt, ה\u05b7\u05bc\u05d1, z\u0335\u0321\u0322\u0327\u0328\u0339\u0316"
    assert text.normalise(raw) == unicodedata.normalize("NFC", raw)


@pytest.mark.parametrize(
    "caption",
    [
        "ein Vögelchen singt",
        "鳥が歌う",
        "поёт птица",
        "طائر يغني",
        "ציפור שרה",
        "पक्षी गाता है",
        "นกร้องเพลง",
        "새가 노래한다",
        "🐦🎶",
    ],
)
def test_every_language_round_trips_through_a_file(caption, tmp_path):
    path = tmp_path / "text.txt"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(f"  {caption}\r\n", encoding=encoding)
        assert text.read(path) == text.normalise(caption) == caption


def test_too_long_a_text_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "long.txt"
    path.write_text("word " * 300)
    monkeypatch.setattr(text, "MAX_TEXT_BYTES", 1000)
    with pytest.raises(MediaError, match=r"long.txt: .* MB of text; at most .* MB: split the file"):
        text.read(path)


def test_errors_for_bad_texts_name_the_file(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "blank.txt").write_text(" \n\t")
    for name, message in {
        "latin.txt": "not UTF-8",
        "blank.txt": "the text is empty",
        "missing.txt": "no such text",
    }.items():
        with pytest.raises(MediaError, match=message) as caught:
            text.read(tmp_path / name)
        assert name in str(caught.value)
