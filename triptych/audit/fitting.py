"""Spaces that have not seen what they judge: for each fold one that was trained on the rows of all the others."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.contracts import Modality
from triptych.data.manifest import Row
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.files import write_text
from triptych.progress import tell
from triptych.recipe import Recipe
from triptych.settings import Part
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.run import LAST_FILE

RECIPE = "audit"
STEPS = 100  # fewer are too few, however small the manifest
SMALLEST = 4  # batches in an epoch, where the rows suffice for no more
STAND_INS = {"yamnet": "soundnet"}  # an encoder whose weights may not be at hand, and another for the same


def recipe_for(
    there: Collection[Modality], name: str = RECIPE, changes: Sequence[str] = (), show: bool = True
) -> Recipe:
    """The recipe of the spaces, for the modalities there are, with encoders whose weights are at hand."""
    recipe = Recipe.load(name, changes).only(there)
    encoders: dict[Modality, Part] = {}
    for modality, part in recipe.space.encoders.items():
        lacks, other = ENCODERS[part.name].missing(), STAND_INS.get(part.name)
        if lacks and other and not ENCODERS[other].missing():
            tell(f"{part.name} is not here ({lacks}): {other} takes its place", show)
            part = Part(other)
        elif lacks:
            raise UsageError(f"the audit needs {part.name}: {lacks}")
        encoders[modality] = part
    return replace(recipe, space=replace(recipe.space, encoders=encoders))


def sized(recipe: Recipe, rows: int) -> Recipe:
    """The recipe for so many rows: batches of at most a quarter of them, and epochs enough for some steps."""
    batch = max(2, min(recipe.training.batch, rows // SMALLEST))
    epochs = max(recipe.training.epochs, math.ceil(STEPS / max(1, rows // batch)))
    return replace(recipe, training=replace(recipe.training, batch=batch, epochs=epochs))


def fit(
    recipe: Recipe, some: Sequence[int], rows: Sequence[Row], groups: Mapping[int, str], place: Path, show: bool
) -> Space:
    """A space trained on some of the rows and no others, in a run folder; the manifest of those rows lies beside it.

    Interrupted, it goes on where it was, as any run.
    """
    listed = place.with_name(f"{place.name}.jsonl")
    text = "".join(json.dumps(_cells(rows[i], groups[i]), ensure_ascii=False) + "\n" for i in some)
    if not (listed.is_file() and listed.read_text(encoding="utf-8") == text):
        write_text(listed, text)
    data = replace(recipe.data, manifest=str(listed), allow_outside=True, train="train", also=())
    return train(sized(replace(recipe, data=data), len(some)), place, show=show)


def tidy(place: Path) -> None:
    """Remove what is only needed to go on training."""
    (place / LAST_FILE).unlink(missing_ok=True)


def _cells(row: Row, group: str) -> dict[str, Any]:
    files = {"image": row.image, "audio": row.audio, "video": row.video}
    cells: dict[str, Any] = {"id": row.id, **{name: str(path.absolute()) for name, path in files.items() if path}}
    cells |= {"text": list(row.texts)} if row.texts else {}
    times = {"start": row.start, "end": row.end}
    cells |= {name: value for name, value in times.items() if value is not None}
    return {**cells, "group": group, "split": "train"}
