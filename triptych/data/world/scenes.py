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
    seen: bool = False
    heard: bool = False
    said: bool = False


# Rhythm is tempo, not a pattern, because one note alone must already show it: notes are shorter as well as closer.
FACTORS: dict[str, Factor] = {
    "thing": Factor(
        ("bell", "drum", "bird", "frog", "bee", "clock", "whistle", "horn"), seen=True, heard=True, said=True
    ),
    "count": Factor(("1", "2", "3", "4"), seen=True, heard=True, said=True),
    "height": Factor(("low", "middle", "high"), seen=True, heard=True, said=True),
    "colour": Factor(("red", "yellow", "green", "blue", "purple", "black"), seen=True, said=True),
    "side": Factor(("left", "centre", "right"), seen=True, said=True),
    "rhythm": Factor(("quick", "steady", "slow"), heard=True, said=True),
    "moment": Factor(("early", "midway", "late"), heard=True, said=True),
    "shade": Factor(("cream", "mist", "rose", "mint", "stone"), seen=True),
    "backdrop": Factor(("hush", "hiss", "hum"), heard=True),
    "occasion": Factor(("morning", "river", "market", "rain", "town", "supper", "holiday", "harbour"), said=True),
}
THINGS = FACTORS["thing"].values


@dataclass(frozen=True)
class Actor:
    """One kind of thing that is seen, heard and spoken of."""

    thing: str
    count: int
    height: str
    colour: str
    side: str
    rhythm: str
    moment: str


@dataclass(frozen=True)
class Scene:
    """What happens, before anyone draws, plays or tells it; the actors come in the order they are heard."""

    actors: tuple[Actor, ...]
    occasion: str
    shade: str
    backdrop: str


@dataclass(frozen=True)
class HeldOut:
    """Combinations that no scene outside the novel split may have."""

    colours: tuple[tuple[str, str], ...]  # (thing, colour)
    heights: tuple[tuple[str, str], ...]  # (thing, height)

    def includes(self, actor: Actor) -> bool:
        """Whether the actor has one of the combinations."""
        return (actor.thing, actor.colour) in self.colours or (actor.thing, actor.height) in self.heights


def hold_out(things: Sequence[str], share: float, rng: np.random.Generator) -> HeldOut:
    """Choose a share of the (thing, colour) and of the (thing, height) combinations to be kept for the novel split."""
    colours, heights = FACTORS["colour"].values, FACTORS["height"].values
    return HeldOut(_hold_out_pairs(things, colours, share, rng), _hold_out_pairs(things, heights, share, rng))


def _hold_out_pairs(
    things: Sequence[str], values: Sequence[str], share: float, rng: np.random.Generator
) -> tuple[tuple[str, str], ...]:
    pairs = [(thing, value) for thing in things for value in values]
    wanted, kept, chosen = round(share * len(pairs)), set(pairs), []
    for place in rng.permutation(len(pairs)):
        thing, value = pairs[place]
        left = kept - {pairs[place]}
        # each thing and each value must remain to be learned from, in some other combination
        if len(chosen) < wanted and thing in {a for a, _ in left} and value in {b for _, b in left}:
            kept = left
            chosen.append(pairs[place])
    return tuple(sorted(chosen))


def sample_scene(
    things: Sequence[str], most_actors: int, held_out: HeldOut, novel: bool, rng: np.random.Generator
) -> Scene:
    """A scene of independent factors; a novel one has a held-out combination in one of its actors, others in none."""
    count = int(rng.integers(1, most_actors + 1))
    kinds = _sample(things, count, rng)
    sides = _sample(FACTORS["side"].values, count, rng)
    moments = sorted(_sample(FACTORS["moment"].values, count, rng), key=FACTORS["moment"].values.index)
    actors = [
        _sample_actor(kind, side, moment, held_out, rng)
        for kind, side, moment in zip(kinds, sides, moments, strict=True)
    ]
    if novel:
        place = int(rng.integers(count))
        others = {actor.thing for index, actor in enumerate(actors) if index != place}
        if not {thing for thing, _ in (*held_out.colours, *held_out.heights)} - others:
            actors, place, others = [actors[place]], 0, set()  # only the others' things have held-out combinations
        actors[place] = _make_novel(actors[place], others, held_out, rng)
    occasion, shade, backdrop = (pick(FACTORS[name].values, rng) for name in ("occasion", "shade", "backdrop"))
    return Scene(tuple(actors), occasion, shade, backdrop)


def _sample_actor(thing: str, side: str, moment: str, held_out: HeldOut, rng: np.random.Generator) -> Actor:
    return Actor(
        thing,
        count=int(pick(FACTORS["count"].values, rng)),
        height=pick([v for v in FACTORS["height"].values if (thing, v) not in held_out.heights], rng),
        colour=pick([v for v in FACTORS["colour"].values if (thing, v) not in held_out.colours], rng),
        side=side,
        rhythm=pick(FACTORS["rhythm"].values, rng),
        moment=moment,
    )


def _make_novel(actor: Actor, others: set[str], held_out: HeldOut, rng: np.random.Generator) -> Actor:
    """The actor with one held-out combination in place of its own, of a thing that the scene does not have yet."""
    options = [("colour", *pair) for pair in held_out.colours] + [("height", *pair) for pair in held_out.heights]
    free = [option for option in options if option[1] not in others]
    name, thing, value = pick(free, rng)
    renewed = _sample_actor(thing, actor.side, actor.moment, held_out, rng)
    return Actor(**{**vars(renewed), name: value})


def assign_splits(counts: dict[str, int], rng: np.random.Generator) -> list[str]:
    """The split of each scene: exact counts in random order."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return [names[place] for place in rng.permutation(len(names))]


def _sample(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[int(place)] for place in rng.permutation(len(values))[:count]]


def pick(values: Sequence[T], rng: np.random.Generator) -> T:
    """One of the values, each as likely as the others."""
    return values[int(rng.random() * len(values))]  # ten times as fast as rng.integers, and called most of all
