"""The factors of synthetic scenes, and random scenes sampled from them.

factor              image                 audio                  text
category            silhouette            timbre                 noun and verb
count               number of copies      number of notes        number
height              vertical position     pitch register         "low", "high up"
colour              fill colour           –                      "red", "crimson"
side                horizontal position   –                      "on the left"
tempo               –                     tempo of the notes     "quickly"
timing              –                     third of the clip      "at the start"
background_colour   background            –                      –
background_audio    –                     hush, hiss or hum      –
occasion            –                     –                      "this morning"
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Factor:
    """The values of a factor, and the modalities that express it."""

    values: tuple[str, ...]
    is_visible: bool = False
    is_audible: bool = False
    is_described: bool = False


CATEGORIES = ("bell", "drum", "bird", "frog", "bee", "clock", "whistle", "horn")
# At a quick tempo, notes are not only closer together but also shorter, so that a single note shows the tempo.
FACTORS: dict[str, Factor] = {
    "category": Factor(CATEGORIES, is_visible=True, is_audible=True, is_described=True),
    "count": Factor(("1", "2", "3", "4"), is_visible=True, is_audible=True, is_described=True),
    "height": Factor(("low", "middle", "high"), is_visible=True, is_audible=True, is_described=True),
    "colour": Factor(("red", "yellow", "green", "blue", "purple", "black"), is_visible=True, is_described=True),
    "side": Factor(("left", "centre", "right"), is_visible=True, is_described=True),
    "tempo": Factor(("quick", "steady", "slow"), is_audible=True, is_described=True),
    "timing": Factor(("early", "midway", "late"), is_audible=True, is_described=True),
    "background_colour": Factor(("cream", "mist", "rose", "mint", "stone"), is_visible=True),
    "background_audio": Factor(("hush", "hiss", "hum"), is_audible=True),
    "occasion": Factor(
        ("morning", "river", "market", "rain", "town", "supper", "holiday", "harbour"), is_described=True
    ),
}


@dataclass(frozen=True)
class SceneObject:
    """An object of a scene: `count` copies of one category, with the same attributes."""

    category: str
    count: int
    height: str
    colour: str
    side: str
    tempo: str
    timing: str


@dataclass(frozen=True)
class Scene:
    """The factors from which the image, the audio and the captions are rendered. Objects are sorted by timing."""

    objects: tuple[SceneObject, ...]
    occasion: str
    background_colour: str
    background_audio: str


@dataclass(frozen=True)
class HeldOutCombinations:
    """The combinations that occur only in the novel split."""

    colours: tuple[tuple[str, str], ...]  # (category, colour)
    heights: tuple[tuple[str, str], ...]  # (category, height)


def choose_held_out(categories: Sequence[str], fraction: float, rng: np.random.Generator) -> HeldOutCombinations:
    """Choose a fraction of the (category, colour) and of the (category, height) combinations for the novel split."""
    colours, heights = (_choose_pairs(categories, FACTORS[name].values, fraction, rng) for name in ("colour", "height"))
    return HeldOutCombinations(colours, heights)


def _choose_pairs(
    categories: Sequence[str], values: Sequence[str], fraction: float, rng: np.random.Generator
) -> tuple[tuple[str, str], ...]:
    pairs = [(category, value) for category in categories for value in values]
    target_count, remaining = round(fraction * len(pairs)), set(pairs)
    for position in rng.permutation(len(pairs)):
        category, value = pairs[position]
        rest = remaining - {pairs[position]}
        # A model can learn a category or a value only if another combination with it remains.
        if (
            len(pairs) - len(rest) <= target_count
            and category in {a for a, _ in rest}
            and value in {b for _, b in rest}
        ):
            remaining = rest
    return tuple(sorted(set(pairs) - remaining))


def sample_scene(
    categories: Sequence[str], max_objects: int, held_out: HeldOutCombinations, is_novel: bool, rng: np.random.Generator
) -> Scene:
    """Sample a scene of independent factors. Only one object of a novel scene has a held-out combination."""
    count = int(rng.integers(1, max_objects + 1))
    chosen_categories = _sample_distinct(categories, count, rng)
    sides = _sample_distinct(FACTORS["side"].values, count, rng)
    timings = sorted(_sample_distinct(FACTORS["timing"].values, count, rng), key=FACTORS["timing"].values.index)
    attributes = zip(chosen_categories, sides, timings, strict=True)
    objects = [_sample_object(category, side, timing, held_out, rng) for category, side, timing in attributes]
    if is_novel:
        position = int(rng.integers(count))
        other_categories = {obj.category for index, obj in enumerate(objects) if index != position}
        if not {category for category, _ in (*held_out.colours, *held_out.heights)} - other_categories:
            # Only categories of the other objects have held-out combinations: drop these objects.
            objects, position, other_categories = [objects[position]], 0, set()
        objects[position] = _make_novel(objects[position], other_categories, held_out, rng)
    occasion, background_colour, background_audio = (
        choose_uniformly(FACTORS[name].values, rng) for name in ("occasion", "background_colour", "background_audio")
    )
    return Scene(tuple(objects), occasion, background_colour, background_audio)


def _sample_object(
    category: str, side: str, timing: str, held_out: HeldOutCombinations, rng: np.random.Generator
) -> SceneObject:
    return SceneObject(
        category,
        count=int(choose_uniformly(FACTORS["count"].values, rng)),
        height=choose_uniformly([v for v in FACTORS["height"].values if (category, v) not in held_out.heights], rng),
        colour=choose_uniformly([v for v in FACTORS["colour"].values if (category, v) not in held_out.colours], rng),
        side=side,
        tempo=choose_uniformly(FACTORS["tempo"].values, rng),
        timing=timing,
    )


def _make_novel(
    scene_object: SceneObject, other_categories: set[str], held_out: HeldOutCombinations, rng: np.random.Generator
) -> SceneObject:
    """Resample an object so that it has a held-out combination and a category that the scene does not have yet."""
    options = [("colour", *pair) for pair in held_out.colours] + [("height", *pair) for pair in held_out.heights]
    available = [option for option in options if option[1] not in other_categories]
    factor, category, value = choose_uniformly(available, rng)
    resampled = _sample_object(category, scene_object.side, scene_object.timing, held_out, rng)
    return replace(resampled, **{factor: value})


def assign_splits(counts: dict[str, int], rng: np.random.Generator) -> list[str]:
    """Return the split of each scene: exact counts in random order."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return [names[position] for position in rng.permutation(len(names))]


def _sample_distinct(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[int(position)] for position in rng.permutation(len(values))[:count]]


def choose_uniformly(values: Sequence[T], rng: np.random.Generator) -> T:
    """Return one of the values at random. All values are equally likely."""
    return values[int(rng.random() * len(values))]  # ten times faster than rng.integers
