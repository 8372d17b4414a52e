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


def test_bad_texts_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "blank.txt").write_text(" \n\t")
    for name, message in {"latin.txt": "not UTF-8", "blank.txt": "no words", "missing.txt": "no such text"}.items():
        with pytest.raises(MediaError, match=message) as caught:
            text.read(tmp_path / name)
        assert name in str(caught.value)
