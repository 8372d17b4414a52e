"""The answers of the made world: what each scene holds, where and when, and what each word of its captions is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.data.world.pictures import Box
from triptych.data.world.scenes import FACTORS, Actor, Scene
from triptych.data.world.sounds import Span
from triptych.data.world.words import Telling
from triptych.errors import UsageError

FILE = "truth.jsonl"


@dataclass(frozen=True)
class Performer:
    """An actor, where it is seen and when it is heard."""

    actor: Actor
    boxes: tuple[Box, ...]  # one a copy
    notes: tuple[Span, ...]  # one a note

    @property
    def box(self) -> Box:
        """The box around all copies."""
        x0s, y0s, x1s, y1s = zip(*self.boxes, strict=True)
        return min(x0s), min(y0s), max(x1s), max(y1s)

    @property
    def time(self) -> Span:
        """From the first note to the end of the last."""
        return self.notes[0][0], self.notes[-1][1]


@dataclass(frozen=True)
class Word:
    """A word of a caption, what it expresses and where that is to be found.

    No boxes: it cannot be seen. No times: it cannot be heard. No factor: a function word, with neither.
    """

    text: str
    start: int  # caption.text[start:end] is the word
    end: int
    factor: str | None
    actors: tuple[int, ...]
    boxes: tuple[Box, ...]
    times: tuple[Span, ...]


@dataclass(frozen=True)
class Caption:
    """A caption and its words."""

    text: str
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Truth:
    """Everything that is known of a scene."""

    id: str
    split: str
    performers: tuple[Performer, ...]  # in the order they are heard
    occasion: str
    shade: str
    backdrop: str
    captions: tuple[Caption, ...]

    @property
    def label(self) -> str:
        """The thing that is heard first."""
        return self.performers[0].actor.thing


def truth_line(
    name: str, split: str, scene: Scene, boxes: list[list[Box]], notes: list[list[Span]], told: list[Telling]
) -> str:
    """One scene as a line of JSON; boxes and times of words follow from factor and actors, so they are not repeated."""
    actors = [
        {**vars(actor), "boxes": seen, "notes": heard}
        for actor, seen, heard in zip(scene.actors, boxes, notes, strict=True)
    ]
    captions = [{"text": each.text, "words": each.words} for each in told]
    about = {"occasion": scene.occasion, "shade": scene.shade, "backdrop": scene.backdrop}
    return json.dumps({"id": name, "split": split, "actors": actors, **about, "captions": captions})


def read_truth(folder: Path) -> list[Truth]:
    """The truth of every scene of a made world, in the order of its manifest before any damage."""
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"{folder} has no {FILE}; give the folder of a made world")
    with path.open(encoding="utf-8") as file:
        return [_read_line(json.loads(line)) for line in file]


def _read_line(line: dict[str, Any]) -> Truth:
    performers = tuple(_read_performer(dict(actor)) for actor in line["actors"])
    captions = tuple(
        Caption(each["text"], tuple(_read_word(each["text"], word, performers) for word in each["words"]))
        for each in line["captions"]
    )
    return Truth(line["id"], line["split"], performers, line["occasion"], line["shade"], line["backdrop"], captions)


def _read_performer(actor: dict[str, Any]) -> Performer:
    boxes, notes = (tuple(tuple(each) for each in actor.pop(name)) for name in ("boxes", "notes"))
    return Performer(Actor(**actor), boxes, notes)


def _read_word(text: str, word: list[Any], performers: tuple[Performer, ...]) -> Word:
    start, end, name, actors = word
    meant = [performers[place] for place in actors]
    boxes = tuple(box for each in meant for box in each.boxes) if name and FACTORS[name].seen else ()
    times = tuple(note for each in meant for note in each.notes) if name and FACTORS[name].heard else ()
    return Word(text[start:end], start, end, name, tuple(actors), boxes, times)
