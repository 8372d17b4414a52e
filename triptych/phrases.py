"""Phrases about what can be seen and heard, generated from word lists: texts for fitting a bridge without a corpus."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

PHRASES_FILE = "phrases.toml"
NUM_PHRASES = 8000
PLACEHOLDER = re.compile(r"\{(\w+)\}")
ARTICLE = re.compile(r"\ba (?=[aeio])")


@cache
def load_word_lists() -> dict[str, Any]:
    """Return the templates and the word lists."""
    return tomllib.loads(files("triptych").joinpath(PHRASES_FILE).read_text("utf-8"))


def generate_phrases(count: int = NUM_PHRASES, seed: int = 0) -> list[str]:
    """Return different phrases in random order. The phrases depend only on `count` and `seed`.

    Example:
        >>> from triptych.phrases import generate_phrases
        >>> len(generate_phrases(100))
        100
    """
    tables, rng = load_word_lists(), np.random.default_rng(seed)
    templates, lists = tables["templates"], tables["lists"]
    phrases: dict[str, None] = {}
    # Every entry of a list that is a template of its own, then one random phrase of each template in turn.
    for template in templates:
        if name := PLACEHOLDER.fullmatch(template):
            phrases |= dict.fromkeys(lists[name.group(1)])
    while len(phrases) < count:
        for template in templates:
            phrases[_fill(template, lists, rng)] = None
    ordered = list(phrases)[:count]
    return [ordered[i] for i in rng.permutation(count)]


def _fill(template: str, lists: dict[str, list[str]], rng: np.random.Generator) -> str:
    def draw(match: re.Match[str]) -> str:
        words = lists[match.group(1)]
        return words[int(rng.integers(len(words)))]

    return ARTICLE.sub("an ", PLACEHOLDER.sub(draw, template))
