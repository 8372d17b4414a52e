"""Generate captions of a scene in varied wording, with the factor and objects of every word."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from triptych.data.synthetic.scenes import FACTORS, Scene, SceneObject, choose_uniformly

NOUNS: dict[str, tuple[tuple[str, str], ...]] = {  # (singular, plural)
    "bell": (("bell", "bells"), ("handbell", "handbells")),
    "drum": (("drum", "drums"), ("snare drum", "snare drums")),
    "bird": (("bird", "birds"), ("songbird", "songbirds")),
    "frog": (("frog", "frogs"), ("toad", "toads")),
    "bee": (("bee", "bees"), ("bumblebee", "bumblebees")),
    "clock": (("clock", "clocks"), ("timepiece", "timepieces")),
    "whistle": (("whistle", "whistles"), ("pea whistle", "pea whistles")),
    "horn": (("horn", "horns"), ("trumpet", "trumpets")),
}
VERBS: dict[str, tuple[tuple[str, str, str], ...]] = {  # (singular, plural, participle)
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
    "tempo": {
        "quick": ("quickly", "rapidly", "briskly"),
        "steady": ("steadily", "evenly", "calmly"),
        "slow": ("slowly", "lazily", "sluggishly"),
    },
    "timing": {
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

# The order of phrases in a clause. An omitted factor is dropped, and so are the commas that it leaves behind.
CLAUSE_TEMPLATES: tuple[tuple[str, ...], ...] = (
    ("count", "colour", "noun", "verb", "tempo", "height", "side", "timing"),
    ("count", "colour", "noun", "height", "side", "verb", "tempo", "timing"),
    ("timing", ",", "count", "colour", "noun", "verb", "tempo", "height", "side"),
    ("side", ",", "height", ",", "count", "colour", "noun", "verb", "tempo", "timing"),
    ("height", "side", ",", "count", "colour", "noun", "tempo", "verb", "timing"),
    ("there", "count", "colour", "noun", "side", ",", "height", ",", "doing", "tempo", "timing"),
)
CONJUNCTIONS = (",", "and"), (";",), (".",)


class Phrase(NamedTuple):
    """Consecutive words of a sentence, the factor that the words express, and the objects that they refer to."""

    text: str
    factor: str | None = None
    object_indices: tuple[int, ...] = ()


class WordSpan(NamedTuple):
    """A word of a caption, text[start:end], with its factor (None for function words) and the objects it refers to."""

    start: int
    end: int
    factor: str | None
    object_indices: tuple[int, ...]


class GeneratedCaption(NamedTuple):
    """A caption and the spans of its words."""

    text: str
    words: tuple[WordSpan, ...]


def describe_scene(scene: Scene, count: int, omission_rate: float, rng: np.random.Generator) -> list[GeneratedCaption]:
    """Generate `count` different captions. Each factor is omitted from a caption with probability `omission_rate`."""
    captions: dict[str, GeneratedCaption] = {}
    while len(captions) < count:
        caption = _write_caption(scene, omission_rate, rng)
        captions.setdefault(caption.text, caption)
        omission_rate *= 0.98  # a high rate allows only few different captions: lower the rate, so that the loop ends
    return list(captions.values())


def _write_caption(scene: Scene, omission_rate: float, rng: np.random.Generator) -> GeneratedCaption:
    order = [int(index) for index in rng.permutation(len(scene.objects))]
    mentioned_indices = [order[0], *(index for index in order[1:] if rng.random() >= omission_rate / 2)]
    conjunction = choose_uniformly(CONJUNCTIONS, rng)
    phrases: list[Phrase] = []
    for index in mentioned_indices:
        phrases += [Phrase(text) for text in conjunction] if phrases else []
        phrases += _write_clause(index, scene.objects[index], omission_rate, rng)
    if rng.random() < 0.5:
        occasion = Phrase(choose_uniformly(PHRASES["occasion"][scene.occasion], rng), "occasion")
        phrases = [occasion, Phrase(","), *phrases] if rng.random() < 0.5 else [*phrases, Phrase(","), occasion]
    return _join_phrases([*phrases, Phrase(".")])


def _write_clause(index: int, obj: SceneObject, omission_rate: float, rng: np.random.Generator) -> list[Phrase]:
    noun, verb = choose_uniformly(NOUNS[obj.category], rng), choose_uniformly(VERBS[obj.category], rng)
    is_plural = obj.count > 1
    # A caption without the count still needs a determiner: "a bell", "some bells".
    phrase_by_role = {
        ",": Phrase(","),
        "count": Phrase("some" if is_plural else "a"),
        "noun": Phrase(noun[is_plural], "category", (index,)),
        "verb": Phrase(verb[is_plural], "category", (index,)),
        "doing": Phrase(verb[2], "category", (index,)),
    }
    for name in ("count", "height", "colour", "side", "tempo", "timing"):
        if rng.random() >= omission_rate:
            phrase = choose_uniformly(PHRASES[name][str(getattr(obj, name))], rng)
            phrase_by_role[name] = Phrase(phrase, name, (index,))
    is_singular = not is_plural or phrase_by_role["count"].text.startswith("a ")
    phrase_by_role["there"] = Phrase("there is" if is_singular else "there are")  # "there is a pair of bells"
    return [phrase_by_role[name] for name in choose_uniformly(CLAUSE_TEMPLATES, rng) if name in phrase_by_role]


def _join_phrases(phrases: Sequence[Phrase]) -> GeneratedCaption:
    """Join phrases to a text with correct capitals, articles and commas, and record the span of each word."""
    words = [(word, phrase) for phrase in phrases for word in phrase.text.split()]
    text, spans, is_sentence_start = "", [], True
    for position, (word, phrase) in enumerate(words):
        following = words[position + 1][0] if position + 1 < len(words) else ""
        if word in ",;.":
            is_stray = is_sentence_start or text[-1] in ",;" or (word == "," and following in ",;.")
            text, is_sentence_start = (text if is_stray else text + word), is_sentence_start or word == "."
            continue
        spelling = "an" if word == "a" and following[0] in "aeiou" else word
        spelling = spelling.capitalize() if is_sentence_start else spelling
        start = len(text) + (1 if text else 0)
        text, is_sentence_start = f"{text} {spelling}".strip(), False
        factor, object_indices = (None, ()) if word in FUNCTION_WORDS else (phrase.factor, phrase.object_indices)
        spans.append(WordSpan(start, start + len(spelling), factor, object_indices))
    return GeneratedCaption(text, tuple(spans))


def phrases_for(factor: str, value: str) -> tuple[str, ...]:
    """Return all phrases for a value of a factor, the most common first; () if captions never express the factor."""
    if not FACTORS[factor].is_described:
        return ()
    phrases = (noun for noun, _ in NOUNS[value]) if factor == "category" else PHRASES[factor][value]
    return tuple(dict.fromkeys(phrases))
