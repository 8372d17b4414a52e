"""Text: one form for one text, and bad files named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import MediaError
from triptych.media import text


@given(st.text())
def test_normalising_twice_changes_nothing_more(words):
    once = text.normalise(words)
    assert text.normalise(once) == once
    assert once == once.strip()
    assert "\n" not in once


def test_composed_and_decomposed_letters_are_one():
    assert text.normalise("cafe\u0301  noir\n") == "caf\u00e9 noir"


@pytest.mark.parametrize(
    "words",
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
def test_every_language_comes_through_a_file(words, tmp_path):
    path = tmp_path / "words.txt"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(f"  {words}\r\n", encoding=encoding)
        assert text.read(path) == text.normalise(words) == words


def test_a_text_too_long_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "long.txt"
    path.write_text("word " * 300)
    monkeypatch.setattr(text, "MOST_BYTES", 1000)
    with pytest.raises(MediaError, match=r"long.txt: .* MB of text; at most .* MB: cut it"):
        text.read(path)


def test_bad_texts_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "blank.txt").write_text(" \n\t")
    for name, message in {"latin.txt": "not UTF-8", "blank.txt": "no words", "missing.txt": "no such text"}.items():
        with pytest.raises(MediaError, match=message) as caught:
            text.read(tmp_path / name)
        assert name in str(caught.value)
