"""Annotations of synthetic scenes: factors, boxes and times of each object, and the referent of each caption word."""

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
    """The attributes of an object, its boxes in the image and its notes in the audio."""

    attributes: SceneObject
    boxes: tuple[Box, ...]  # one for each copy
    notes: tuple[TimeSpan, ...]  # start and end of each note

    @property
    def box(self) -> Box:
        """The bounding box of all copies."""
        x0s, y0s, x1s, y1s = zip(*self.boxes, strict=True)
        return min(x0s), min(y0s), max(x1s), max(y1s)

    @property
    def time_span(self) -> TimeSpan:
        """The time from the start of the first note to the end of the last."""
        return self.notes[0][0], self.notes[-1][1]


@dataclass(frozen=True)
class WordAnnotation:
    """A word of a caption, the factor that the word expresses, and the boxes and times of the objects it refers to.

    Words of factors that are not visible have no boxes. Words of factors that are not audible have no time spans.
    Function words have no factor, no boxes and no time spans.
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
    """A caption and its annotated words."""

    text: str
    words: tuple[WordAnnotation, ...]


@dataclass(frozen=True)
class SceneAnnotation:
    """All annotations of a scene."""

    id: str
    split: str
    objects: tuple[ObjectAnnotation, ...]  # by time of the first note
    occasion: str
    background_colour: str
    background_audio: str
    captions: tuple[CaptionAnnotation, ...]

    @property
    def label(self) -> str:
        """The category of the first object."""
        return self.objects[0].attributes.category


def annotation_to_json(
    name: str,
    split: str,
    scene: Scene,
    boxes: list[list[Box]],
    notes: list[list[TimeSpan]],
    captions: list[GeneratedCaption],
) -> str:
    """Serialise a scene to one line of JSON. `read_annotations` derives the boxes and times of words."""
    objects = [
        {**vars(obj), "boxes": obj_boxes, "notes": obj_notes}
        for obj, obj_boxes, obj_notes in zip(scene.objects, boxes, notes, strict=True)
    ]
    texts = [caption._asdict() for caption in captions]
    return json.dumps({"id": name, "split": split, **vars(scene), "objects": objects, "captions": texts})


def read_annotations(folder: Path) -> list[SceneAnnotation]:
    """Read the annotations of all scenes, in manifest order. Annotations describe the data before noise injection."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {ANNOTATIONS_FILE}; give a folder of synthetic data (triptych data synthetic FOLDER)"
        )
    with path.open(encoding="utf-8") as file:
        return [_parse_scene(json.loads(line)) for line in file]


def _parse_scene(record: dict[str, Any]) -> SceneAnnotation:
    objects = tuple(_parse_object(**obj) for obj in record["objects"])
    captions = tuple(
        CaptionAnnotation(
            caption["text"], tuple(_parse_word(caption["text"], objects, *word) for word in caption["words"])
        )
        for caption in record["captions"]
    )
    return SceneAnnotation(**{**record, "objects": objects, "captions": captions})


def _parse_object(boxes: list[Any], notes: list[Any], **attributes: Any) -> ObjectAnnotation:
    return ObjectAnnotation(SceneObject(**attributes), tuple(map(tuple, boxes)), tuple(map(tuple, notes)))


def _parse_word(
    text: str, objects: tuple[ObjectAnnotation, ...], start: int, end: int, factor: str | None, indices: list[int]
) -> WordAnnotation:
    is_visible, is_audible = (factor and FACTORS[factor].is_visible, factor and FACTORS[factor].is_audible)
    boxes = tuple(box for index in indices for box in objects[index].boxes if is_visible)
    time_spans = tuple(note for index in indices for note in objects[index].notes if is_audible)
    return WordAnnotation(text[start:end], start, end, factor, tuple(indices), boxes, time_spans)
