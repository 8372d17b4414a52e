"""The factors of the made world, and the scenes drawn from them.

factor     picture               sound                  words
thing      silhouette            timbre                 noun and verb
count      copies                notes                  number
height     vertical place        register of pitch      "low", "high up"
colour     fill                  –                      "red", "crimson"
side       horizontal place      –                      "on the left"
rhythm     –                     tempo of the notes     "quickly"
moment     –                     third of the clip      "at the start"
shade      background            –                      –
backdrop   –                     hush, hiss or hum      –
occasion   –                     –                      "this morning"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Factor:
    """The values one factor can take, and the modalities that show it."""

    values: tuple[str, ...]
    is_visible: bool = False
    is_audible: bool = False
    is_described: bool = False


# Rhythm is tempo, not a pattern, because one note alone must already show it: notes are shorter as well as closer.
FACTORS: dict[str, Factor] = {
    "category": Factor(
        ("bell", "drum", "bird", "frog", "bee", "clock", "whistle", "horn"),
        is_visible=True,
        is_audible=True,
        is_described=True,
    ),
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
CATEGORIES = FACTORS["category"].values


@dataclass(frozen=True)
class SceneObject:
    """One kind of thing that is seen, heard and spoken of."""

    category: str
    count: int
    height: str
    colour: str
    side: str
    tempo: str
    timing: str


@dataclass(frozen=True)
class Scene:
    """What happens, before anyone draws, plays or tells it; the actors come in the order they are heard."""

    objects: tuple[SceneObject, ...]
    occasion: str
    background_colour: str
    background_audio: str


@dataclass(frozen=True)
class HeldOutCombinations:
    """Combinations that no scene outside the novel split may have."""

    colours: tuple[tuple[str, str], ...]  # (thing, colour)
    heights: tuple[tuple[str, str], ...]  # (thing, height)

    def includes(self, scene_object: SceneObject) -> bool:
        """Whether the actor has one of the combinations."""
        return (scene_object.category, scene_object.colour) in self.colours or (
            scene_object.category,
            scene_object.height,
        ) in self.heights


def choose_held_out(categories: Sequence[str], fraction: float, rng: np.random.Generator) -> HeldOutCombinations:
    """Choose a share of the (thing, colour) and of the (thing, height) combinations to be kept for the novel split."""
    colours, heights = FACTORS["colour"].values, FACTORS["height"].values
    return HeldOutCombinations(
        _choose_held_out_pairs(categories, colours, fraction, rng),
        _choose_held_out_pairs(categories, heights, fraction, rng),
    )


def _choose_held_out_pairs(
    categories: Sequence[str], values: Sequence[str], fraction: float, rng: np.random.Generator
) -> tuple[tuple[str, str], ...]:
    pairs = [(category, value) for category in categories for value in values]
    target_count, remaining, held_out_pairs = round(fraction * len(pairs)), set(pairs), []
    for position in rng.permutation(len(pairs)):
        thing, value = pairs[position]
        rest = remaining - {pairs[position]}
        # each thing and each value must remain to be learned from, in some other combination
        if len(held_out_pairs) < target_count and thing in {a for a, _ in rest} and value in {b for _, b in rest}:
            remaining = rest
            held_out_pairs.append(pairs[position])
    return tuple(sorted(held_out_pairs))


def sample_scene(
    categories: Sequence[str], max_objects: int, held_out: HeldOutCombinations, is_novel: bool, rng: np.random.Generator
) -> Scene:
    """A scene of independent factors; a novel one has a held-out combination in one of its actors, others in none."""
    count = int(rng.integers(1, max_objects + 1))
    chosen_categories = _sample_without_replacement(categories, count, rng)
    sides = _sample_without_replacement(FACTORS["side"].values, count, rng)
    timings = sorted(
        _sample_without_replacement(FACTORS["timing"].values, count, rng), key=FACTORS["timing"].values.index
    )
    objects = [
        _sample_object(category, side, timing, held_out, rng)
        for category, side, timing in zip(chosen_categories, sides, timings, strict=True)
    ]
    if is_novel:
        position = int(rng.integers(count))
        other_categories = {scene_object.category for index, scene_object in enumerate(objects) if index != position}
        if not {thing for thing, _ in (*held_out.colours, *held_out.heights)} - other_categories:
            objects, position, other_categories = (
                [objects[position]],
                0,
                set(),
            )  # only the others' things have held-out combinations
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
    """The actor with one held-out combination in place of its own, of a thing that the scene does not have yet."""
    options = [("colour", *pair) for pair in held_out.colours] + [("height", *pair) for pair in held_out.heights]
    available = [option for option in options if option[1] not in other_categories]
    factor, category, value = choose_uniformly(available, rng)
    resampled = _sample_object(category, scene_object.side, scene_object.timing, held_out, rng)
    return SceneObject(**{**vars(resampled), factor: value})


def assign_splits(counts: dict[str, int], rng: np.random.Generator) -> list[str]:
    """The split of each scene: exact counts in random order."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return [names[position] for position in rng.permutation(len(names))]


def _sample_without_replacement(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[int(position)] for position in rng.permutation(len(values))[:count]]


def choose_uniformly(values: Sequence[T], rng: np.random.Generator) -> T:
    """One of the values, each as likely as the others."""
    return values[int(rng.random() * len(values))]  # ten times as fast as rng.integers, and called most of all
