"""The generated phrases: different, reproducible, and from every list."""

import re

from triptych.media.text import normalise
from triptych.phrases import NUM_PHRASES, generate_phrases, load_word_lists


def test_phrases_are_different_and_reproducible():
    phrases = generate_phrases()
    assert len(phrases) == len(set(phrases)) == NUM_PHRASES
    assert phrases == generate_phrases()
    assert phrases != generate_phrases(seed=1)
    assert all(phrase == normalise(phrase) and phrase for phrase in phrases)
    assert len(generate_phrases(50)) == 50


def test_phrases_use_every_template_and_every_entry():
    tables, phrases = load_word_lists(), generate_phrases()
    used = {name for template in tables["templates"] for name in re.findall(r"\{(\w+)\}", template)}
    assert used == set(tables["lists"])
    text = " ".join(phrases)
    missing = [word for words in tables["lists"].values() for word in words if word not in text]
    assert missing == []
    assert not re.search(r"[{}]|\ba [aeio]|  ", text)
