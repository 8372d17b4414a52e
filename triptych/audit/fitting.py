"""Spaces that have not seen what they judge: for each fold one that was trained on the rows of all the others."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.data.manifest import Row
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.files import write_text
from triptych.interfaces import Modality
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.run_directory import LAST_FILE

DEFAULT_RECIPE = "audit"
MIN_STEPS = 100  # fewer are too few, however small the manifest
MIN_BATCHES = 4  # batches in an epoch, where the rows suffice for no more
FALLBACK_ENCODERS = {"yamnet": "soundnet"}  # an encoder whose weights may not be at hand, and another for the same


def load_fold_recipe(
    modalities: Collection[Modality],
    name: str = DEFAULT_RECIPE,
    overrides: Sequence[str] = (),
    show_progress: bool = True,
) -> Recipe:
    """The recipe of the spaces, for the modalities there are, with encoders whose weights are at hand."""
    recipe = Recipe.load(name, overrides).restrict_to(modalities)
    encoders: dict[Modality, Component] = {}
    for modality, component in recipe.space.encoders.items():
        unavailable_reason, fallback = (
            ENCODERS[component.name].unavailable_reason(),
            FALLBACK_ENCODERS.get(component.name),
        )
        if unavailable_reason and fallback and not ENCODERS[fallback].unavailable_reason():
            notify(f"{component.name} is not here ({unavailable_reason}): {fallback} takes its place", show_progress)
            component = Component(fallback)
        elif unavailable_reason:
            raise UsageError(f"the audit needs {component.name}: {unavailable_reason}")
        encoders[modality] = component
    return replace(recipe, space=replace(recipe.space, encoders=encoders))


def scale_recipe(recipe: Recipe, num_rows: int) -> Recipe:
    """The recipe for so many rows: batches of at most a quarter of them, and epochs enough for some steps."""
    batch_size = max(2, min(recipe.training.batch_size, num_rows // MIN_BATCHES))
    epochs = max(recipe.training.epochs, math.ceil(MIN_STEPS / max(1, num_rows // batch_size)))
    return replace(recipe, training=replace(recipe.training, batch_size=batch_size, epochs=epochs))


def train_fold_space(
    recipe: Recipe,
    train_rows: Sequence[int],
    rows: Sequence[Row],
    groups: Mapping[int, str],
    run_folder: Path,
    show_progress: bool,
) -> Space:
    """A space trained on some of the rows and no others, in a run folder; the manifest of those rows lies beside it.

    Interrupted, it goes on where it was, as any run.
    """
    manifest_path = run_folder.with_name(f"{run_folder.name}.jsonl")
    text = "".join(json.dumps(_row_to_record(rows[i], groups[i]), ensure_ascii=False) + "\n" for i in train_rows)
    if not (manifest_path.is_file() and manifest_path.read_text(encoding="utf-8") == text):
        write_text(manifest_path, text)
    data = replace(
        recipe.data, manifest=str(manifest_path), allow_outside=True, train_split="train", extra_manifests=()
    )
    return train(scale_recipe(replace(recipe, data=data), len(train_rows)), run_folder, show_progress=show_progress)


def remove_resume_state(run_folder: Path) -> None:
    """Remove what is only needed to go on training."""
    (run_folder / LAST_FILE).unlink(missing_ok=True)


def _row_to_record(row: Row, group: str) -> dict[str, Any]:
    files = {"image": row.image, "audio": row.audio, "video": row.video}
    record: dict[str, Any] = {"id": row.id, **{name: str(path.absolute()) for name, path in files.items() if path}}
    record |= {"text": list(row.texts)} if row.texts else {}
    segment = {"start": row.start, "end": row.end}
    record |= {name: value for name, value in segment.items() if value is not None}
    return {**record, "group": group, "split": "train"}
