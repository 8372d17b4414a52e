"""The answers of the made world: what each scene holds, where and when, and what each word of its captions is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.data.synthetic.audio import TimeSpan
from triptych.data.synthetic.captions import GeneratedCaption
from triptych.data.synthetic.images import Box
from triptych.data.synthetic.scenes import FACTORS, Scene, SceneObject
from triptych.errors import UsageError

ANNOTATIONS_FILE = "annotations.jsonl"


@dataclass(frozen=True)
class ObjectAnnotation:
    """An actor, where it is seen and when it is heard."""

    attributes: SceneObject
    boxes: tuple[Box, ...]  # one a copy
    notes: tuple[TimeSpan, ...]  # one a note

    @property
    def box(self) -> Box:
        """The box around all copies."""
        x0s, y0s, x1s, y1s = zip(*self.boxes, strict=True)
        return min(x0s), min(y0s), max(x1s), max(y1s)

    @property
    def time_span(self) -> TimeSpan:
        """From the first note to the end of the last."""
        return self.notes[0][0], self.notes[-1][1]


@dataclass(frozen=True)
class WordAnnotation:
    """A word of a caption, what it expresses and where that is to be found.

    No boxes: it cannot be seen. No times: it cannot be heard. No factor: a function word, with neither.
    """

    text: str
    start: int  # caption.text[start:end] is the word
    end: int
    factor: str | None
    object_indices: tuple[int, ...]
    boxes: tuple[Box, ...]
    time_spans: tuple[TimeSpan, ...]


@dataclass(frozen=True)
class CaptionAnnotation:
    """A caption and its words."""

    text: str
    words: tuple[WordAnnotation, ...]


@dataclass(frozen=True)
class SceneAnnotation:
    """Everything that is known of a scene."""

    id: str
    split: str
    objects: tuple[ObjectAnnotation, ...]  # in the order they are heard
    occasion: str
    background_colour: str
    background_audio: str
    captions: tuple[CaptionAnnotation, ...]

    @property
    def label(self) -> str:
        """The thing that is heard first."""
        return self.objects[0].attributes.category


def annotation_to_json(
    name: str,
    split: str,
    scene: Scene,
    boxes: list[list[Box]],
    notes: list[list[TimeSpan]],
    captions: list[GeneratedCaption],
) -> str:
    """One scene as a line of JSON; boxes and times of words follow from factor and actors, so they are not repeated."""
    object_records = [
        {**vars(scene_object), "boxes": object_boxes, "notes": object_notes}
        for scene_object, object_boxes, object_notes in zip(scene.objects, boxes, notes, strict=True)
    ]
    caption_records = [{"text": caption.text, "words": caption.words} for caption in captions]
    scene_factors = {
        "occasion": scene.occasion,
        "background_colour": scene.background_colour,
        "background_audio": scene.background_audio,
    }
    return json.dumps(
        {"id": name, "split": split, "objects": object_records, **scene_factors, "captions": caption_records}
    )


def read_annotations(folder: Path) -> list[SceneAnnotation]:
    """The truth of every scene of a made world, in the order of its manifest before any damage."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise UsageError(f"{folder} has no {ANNOTATIONS_FILE}; give the folder of a made world")
    with path.open(encoding="utf-8") as file:
        return [_parse_scene(json.loads(line)) for line in file]


def _parse_scene(record: dict[str, Any]) -> SceneAnnotation:
    objects = tuple(_parse_object(dict(object_record)) for object_record in record["objects"])
    captions = tuple(
        CaptionAnnotation(
            caption["text"], tuple(_parse_word(caption["text"], word, objects) for word in caption["words"])
        )
        for caption in record["captions"]
    )
    return SceneAnnotation(
        record["id"],
        record["split"],
        objects,
        record["occasion"],
        record["background_colour"],
        record["background_audio"],
        captions,
    )


def _parse_object(record: dict[str, Any]) -> ObjectAnnotation:
    boxes, notes = (tuple(tuple(each) for each in record.pop(name)) for name in ("boxes", "notes"))
    return ObjectAnnotation(SceneObject(**record), boxes, notes)


def _parse_word(text: str, record: list[Any], objects: tuple[ObjectAnnotation, ...]) -> WordAnnotation:
    start, end, factor, object_indices = record
    mentioned_objects = [objects[index] for index in object_indices]
    boxes = (
        tuple(box for each in mentioned_objects for box in each.boxes) if factor and FACTORS[factor].is_visible else ()
    )
    time_spans = (
        tuple(note for each in mentioned_objects for note in each.notes)
        if factor and FACTORS[factor].is_audible
        else ()
    )
    return WordAnnotation(text[start:end], start, end, factor, tuple(object_indices), boxes, time_spans)
