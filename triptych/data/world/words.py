"""Tell a scene: captions of varied wording, and what every word of them is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from triptych.data.world.scenes import FACTORS, Actor, Scene, pick

NOUNS: dict[str, tuple[tuple[str, str], ...]] = {  # (one, several)
    "bell": (("bell", "bells"), ("handbell", "handbells")),
    "drum": (("drum", "drums"), ("snare drum", "snare drums")),
    "bird": (("bird", "birds"), ("songbird", "songbirds")),
    "frog": (("frog", "frogs"), ("toad", "toads")),
    "bee": (("bee", "bees"), ("bumblebee", "bumblebees")),
    "clock": (("clock", "clocks"), ("timepiece", "timepieces")),
    "whistle": (("whistle", "whistles"), ("pea whistle", "pea whistles")),
    "horn": (("horn", "horns"), ("trumpet", "trumpets")),
}
VERBS: dict[str, tuple[tuple[str, str, str], ...]] = {  # (one, several, doing)
    "bell": (("rings", "ring", "ringing"), ("chimes", "chime", "chiming")),
    "drum": (("beats", "beat", "beating"), ("thumps", "thump", "thumping")),
    "bird": (("sings", "sing", "singing"), ("chirps", "chirp", "chirping")),
    "frog": (("croaks", "croak", "croaking"), ("ribbits", "ribbit", "ribbiting")),
    "bee": (("buzzes", "buzz", "buzzing"), ("drones", "drone", "droning")),
    "clock": (("ticks", "tick", "ticking"), ("clicks", "click", "clicking")),
    "whistle": (("shrills", "shrill", "shrilling"), ("trills", "trill", "trilling")),
    "horn": (("toots", "toot", "tooting"), ("blares", "blare", "blaring")),
}
PHRASES: dict[str, dict[str, tuple[str, ...]]] = {
    "count": {
        "1": ("one", "a single", "a lone"),
        "2": ("two", "a pair of", "a couple of"),
        "3": ("three", "a trio of", "a threesome of"),
        "4": ("four", "a quartet of", "a foursome of"),
    },
    "height": {
        "low": ("low", "low down", "down low"),
        "middle": ("at middle height", "at medium height", "at mid-height"),
        "high": ("high", "high up", "up high"),
    },
    "colour": {
        "red": ("red", "red", "crimson", "scarlet"),
        "yellow": ("yellow", "yellow", "golden", "amber"),
        "green": ("green", "green", "emerald", "leafy-green"),
        "blue": ("blue", "blue", "azure", "cobalt"),
        "purple": ("purple", "purple", "violet", "plum-coloured"),
        "black": ("black", "black", "jet-black", "inky"),
    },
    "side": {
        "left": ("on the left", "to the left", "at the left-hand side"),
        "centre": ("in the centre", "at the centre", "centrally"),
        "right": ("on the right", "to the right", "at the right-hand side"),
    },
    "rhythm": {
        "quick": ("quickly", "rapidly", "briskly"),
        "steady": ("steadily", "evenly", "calmly"),
        "slow": ("slowly", "lazily", "sluggishly"),
    },
    "moment": {
        "early": ("early", "at the start", "at the beginning"),
        "midway": ("midway", "halfway through", "partway through"),
        "late": ("late", "at the end", "towards the end"),
    },
    "occasion": {
        "morning": ("this morning", "in the morning"),
        "river": ("by the river", "at the riverside"),
        "market": ("on market day", "at the market"),
        "rain": ("after the rain", "after a shower"),
        "town": ("in the old town", "back in town"),
        "supper": ("before supper", "shortly before dinner"),
        "holiday": ("on a holiday", "during the holidays"),
        "harbour": ("down at the harbour", "along the quay"),
    },
}
FUNCTION_WORDS = frozenset({"a", "an", "the", "of", "on", "in", "at", "to", "by", "some", "and", "there", "is", "are"})

# The order in which a clause says things. What a caption leaves out falls away, and so do the commas it leaves behind.
CLAUSES: tuple[tuple[str, ...], ...] = (
    ("count", "colour", "noun", "verb", "rhythm", "height", "side", "moment"),
    ("count", "colour", "noun", "height", "side", "verb", "rhythm", "moment"),
    ("moment", ",", "count", "colour", "noun", "verb", "rhythm", "height", "side"),
    ("side", ",", "height", ",", "count", "colour", "noun", "verb", "rhythm", "moment"),
    ("height", "side", ",", "count", "colour", "noun", "rhythm", "verb", "moment"),
    ("there", "count", "colour", "noun", "side", ",", "height", ",", "doing", "rhythm", "moment"),
)
LINKS = (",", "and"), (";",), (".",)


class Piece(NamedTuple):
    """A few words before they are put into a sentence: the factor they express, and of which actors."""

    text: str
    factor: str | None = None
    actors: tuple[int, ...] = ()


class Mention(NamedTuple):
    """One word of a caption: text[start:end], the factor it expresses (None: a function word), and of which actors."""

    start: int
    end: int
    factor: str | None
    actors: tuple[int, ...]


class Telling(NamedTuple):
    """A caption and its words."""

    text: str
    words: tuple[Mention, ...]


def describe(scene: Scene, captions: int, vagueness: float, rng: np.random.Generator) -> list[Telling]:
    """So many different captions; each factor is left out of a caption with probability `vagueness`."""
    told: dict[str, Telling] = {}
    while len(told) < captions:
        telling = _tell(scene, vagueness, rng)
        told.setdefault(telling.text, telling)
        vagueness *= 0.98  # there are few vague ways to tell a scene: saying more makes sure that this ends
    return list(told.values())


def _tell(scene: Scene, vagueness: float, rng: np.random.Generator) -> Telling:
    order = [int(place) for place in rng.permutation(len(scene.actors))]
    spoken_of = [order[0], *(place for place in order[1:] if rng.random() >= vagueness / 2)]
    link = pick(LINKS, rng)
    pieces: list[Piece] = []
    for place in spoken_of:
        pieces += [Piece(text) for text in link] if pieces else []
        pieces += _clause(place, scene.actors[place], vagueness, rng)
    if rng.random() < 0.5:
        occasion = Piece(pick(PHRASES["occasion"][scene.occasion], rng), "occasion")
        pieces = [occasion, Piece(","), *pieces] if rng.random() < 0.5 else [*pieces, Piece(","), occasion]
    return _join([*pieces, Piece(".")])


def _clause(place: int, actor: Actor, vagueness: float, rng: np.random.Generator) -> list[Piece]:
    noun, verb = pick(NOUNS[actor.thing], rng), pick(VERBS[actor.thing], rng)
    several = actor.count > 1
    # without a number, "a bell" and "some bells" still have to be right
    saying = {
        ",": Piece(","),
        "count": Piece("some" if several else "a"),
        "noun": Piece(noun[several], "thing", (place,)),
        "verb": Piece(verb[several], "thing", (place,)),
        "doing": Piece(verb[2], "thing", (place,)),
    }
    for name in ("count", "height", "colour", "side", "rhythm", "moment"):
        if rng.random() >= vagueness:
            phrase = pick(PHRASES[name][str(getattr(actor, name))], rng)
            saying[name] = Piece(phrase, name, (place,))
    is_one = not several or saying["count"].text.startswith("a ")
    saying["there"] = Piece("there is" if is_one else "there are")  # there is a pair of bells
    return [saying[name] for name in pick(CLAUSES, rng) if name in saying]


def _join(pieces: Sequence[Piece]) -> Telling:
    """Pieces to a text with capitals, articles and commas set right, and where each word of it stands."""
    words = [(word, piece) for piece in pieces for word in piece.text.split()]
    text, mentions, new_sentence = "", [], True
    for place, (word, piece) in enumerate(words):
        following = words[place + 1][0] if place + 1 < len(words) else ""
        if word in ",;.":
            is_stray = new_sentence or text[-1] in ",;" or (word == "," and following in ",;.")
            text, new_sentence = (text if is_stray else text + word), new_sentence or word == "."
            continue
        spelled = "an" if word == "a" and following[0] in "aeiou" else word
        spelled = spelled.capitalize() if new_sentence else spelled
        start = len(text) + (1 if text else 0)
        text, new_sentence = f"{text} {spelled}".strip(), False
        factor, actors = (None, ()) if word in FUNCTION_WORDS else (piece.factor, piece.actors)
        mentions.append(Mention(start, start + len(spelled), factor, actors))
    return Telling(text, tuple(mentions))


def nouns(thing: str) -> tuple[str, ...]:
    """Every singular noun for a thing, the plain one first: what zero-shot prompts are made of."""
    return tuple(one for one, _ in NOUNS[thing])


def phrases(factor: str, value: str) -> tuple[str, ...]:
    """Every way captions say one value of a factor, the plain one first; none where it is never said."""
    if not FACTORS[factor].said:
        return ()
    return nouns(value) if factor == "thing" else tuple(dict.fromkeys(PHRASES[factor][value]))
