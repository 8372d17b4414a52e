"""Collect the pairs of a manifest, split the rows into folds, and train a space for each fold."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from triptych.data.cache import Cache
from triptych.data.datasets.splits import find_connected_groups
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.encoders import ENCODERS
from triptych.errors import ManifestError, MediaError, UsageError
from triptych.files import write_text
from triptych.interfaces import MODALITIES, Modality, Source
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.training.loop import train

MIN_ROWS = 12  # a modality pair is audited if at least this many rows have both modalities
MIN_STEPS = 100  # minimum number of optimiser steps when training on a fold
MIN_BATCHES = 4  # minimum number of batches per epoch; the batch size is reduced for small manifests
FALLBACK_ENCODERS = {"efficientat_mn04": "soundnet"}  # encoder: replacement if its weights are not available

ModalityPair = tuple[Modality, Modality]
MODALITY_PAIRS: dict[str, ModalityPair] = {f"{a}-{b}": (a, b) for a, b in combinations(MODALITIES, 2)}


@dataclass(frozen=True)
class ModalityContents:
    """The distinct contents (files or captions) of one modality in a manifest, and the contents of each row."""

    sources: list[Source]  # one per content
    by_row: list[list[int]]  # indices of the contents of each row, in order; empty if no content is readable
    video_rows: frozenset[int] = frozenset()  # rows whose audio or image comes from a video file

    def distinct_sets(self, rows: Sequence[int]) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """Return the distinct sets of contents of the given rows, and for each row the index of its set."""
        index_of_set: dict[tuple[int, ...], int] = {}
        set_of_row = [index_of_set.setdefault(tuple(self.by_row[row]), len(index_of_set)) for row in rows]
        return list(index_of_set), np.array(set_of_row, int)


Contents = Mapping[Modality, ModalityContents]


def collect_contents(rows: Sequence[Row], modality: Modality, cache: Cache) -> ModalityContents:
    """Collect the contents of a modality. Files with the same bytes count once; unreadable files are omitted."""
    row_sources = [sources_of(row, modality) if modality in row.modalities else [] for row in rows]
    unique_sources = list(dict.fromkeys(source for sources in row_sources for source in sources))
    video_rows = frozenset(i for i, row in enumerate(rows) if row.video and modality != "text")
    first_source: dict[bytes, Source] = {}
    index_of_key: dict[bytes | MediaError, int] = {}
    key_of_source = dict(zip(unique_sources, cache.content_keys(unique_sources), strict=True))
    for source, key in key_of_source.items():
        if not isinstance(key, MediaError):
            index_of_key.setdefault(key, len(index_of_key))
            first_source.setdefault(key, source)
    by_row = [[index_of_key[key_of_source[s]] for s in row if key_of_source[s] in index_of_key] for row in row_sources]
    return ModalityContents(list(first_source.values()), by_row, video_rows)


def find_modality_pairs(contents: Contents, rows: Sequence[int]) -> list[ModalityPair]:
    """Return the modality pairs that at least MIN_ROWS rows have, with two or more distinct contents per modality."""
    modality_pairs = []
    for a, b in MODALITY_PAIRS.values():
        pair_rows = select_rows_with_pair(contents, (a, b), rows) if a in contents and b in contents else []
        has_alternatives = all(len({tuple(contents[m].by_row[row]) for row in pair_rows}) > 1 for m in (a, b))
        if len(pair_rows) >= MIN_ROWS and has_alternatives:
            modality_pairs.append((a, b))
    if not modality_pairs:
        raise ManifestError(
            f"fewer than {MIN_ROWS} of {len(rows)} rows have the same two modalities, or these rows all have the same "
            "file or caption; an audit trains on the rows themselves, so add more rows"
        )
    return modality_pairs


def select_rows_with_pair(contents: Contents, modality_pair: ModalityPair, rows: Sequence[int]) -> list[int]:
    """Return the rows that have both modalities, except rows whose audio and image come from one video."""
    a, b = (contents[m] for m in modality_pair)
    return [row for row in rows if a.by_row[row] and b.by_row[row] and row not in a.video_rows & b.video_rows]


def collect_pairs(contents: Contents, pairs: Sequence[ModalityPair], rows: Sequence[Row]) -> dict[str, list[object]]:
    """Return a dict from row id to the pairs of contents in the row."""
    pairs_by_row: dict[str, list[object]] = {row.id: [] for row in rows}
    for a, b in pairs:
        for i in select_rows_with_pair(contents, (a, b), range(len(rows))):
            pairs_by_row[rows[i].id] += [(a, x, b, y) for x, y in product(contents[a].by_row[i], contents[b].by_row[i])]
    return pairs_by_row


def group_kfold(pairs: Mapping[str, Sequence[object]], num_folds: int, seed: int) -> dict[str, int]:
    """Assign each row to a fold, 0 … num_folds - 1, given the pairs of each row. Folds have about the same size.

    Rows that share a pair are put in the same fold; otherwise a pair could be both trained on and scored.
    """
    members: dict[str, list[str]] = {}
    for name, leader in find_connected_groups(pairs).items():
        members.setdefault(leader, []).append(name)
    order = [list(members)[i] for i in np.random.default_rng(seed).permutation(len(members))]
    sizes = [0] * num_folds
    fold: dict[str, int] = {}
    for leader in sorted(order, key=lambda name: -len(members[name])):  # stable: equal sizes stay in random order
        smallest = sizes.index(min(sizes))
        sizes[smallest] += len(members[leader])
        fold |= dict.fromkeys(members[leader], smallest)
    return fold


def load_fold_recipe(
    modalities: Collection[Modality], name: str, overrides: Sequence[str] = (), show_progress: bool = True
) -> Recipe:
    """Load the recipe for training on folds, with the given modalities and encoders whose weights are available."""
    recipe = Recipe.load(name, overrides).restrict_to(modalities)
    encoders: dict[Modality, Component] = {}
    for modality, component in recipe.space.encoders.items():
        reason, fallback = ENCODERS[component.name].unavailable_reason(), FALLBACK_ENCODERS.get(component.name)
        if reason and fallback and not ENCODERS[fallback].unavailable_reason():
            notify(f"{component.name} is not available ({reason}); using {fallback} instead", show_progress)
            component = Component(fallback)
        elif reason:
            raise UsageError(f"the audit needs {component.name}: {reason}")
        encoders[modality] = component
    return replace(recipe, space=replace(recipe.space, encoders=encoders))


def scale_recipe(recipe: Recipe, num_rows: int) -> Recipe:
    """Adapt a recipe to the number of rows: at least MIN_BATCHES batches per epoch and MIN_STEPS steps in total."""
    batch_size = max(2, min(recipe.training.batch_size, num_rows // MIN_BATCHES))
    epochs = max(recipe.training.epochs, math.ceil(MIN_STEPS / max(1, num_rows // batch_size)))
    return replace(recipe, training=replace(recipe.training, batch_size=batch_size, epochs=epochs))


def train_fold_space(
    recipe: Recipe,
    contents: Contents,
    rows: Sequence[Row],
    held_out: Sequence[int],
    run_folder: Path,
    show_progress: bool,
) -> Space:
    """Train a space on all rows that are not held out, or resume an interrupted training.

    The training rows are written as a manifest next to the run folder.
    """
    excluded = set(held_out)
    train_rows = [i for i in range(len(rows)) if i not in excluded]
    notify(f"{run_folder.name}: training on {len(train_rows)} rows, to score {len(held_out)}", show_progress)
    # Rows that share a group, a file or a caption are positives of each other.
    shared_keys = {
        str(i): [("group", rows[i].group), *((m, c) for m in contents for c in contents[m].by_row[i])]
        for i in train_rows
    }
    group_of_row = find_connected_groups(shared_keys)
    records = (_row_to_record(rows[i], f"group {group_of_row[str(i)]}") for i in train_rows)
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path = run_folder.with_name(f"{run_folder.name}.jsonl")
    if not (path.is_file() and path.read_text(encoding="utf-8") == text):
        write_text(path, text)
    data = replace(recipe.data, manifest=str(path), allow_outside=True, train_split="train", extra_manifests=())
    return train(scale_recipe(replace(recipe, data=data), len(train_rows)), run_folder, show_progress=show_progress)


def _row_to_record(row: Row, group: str) -> dict[str, Any]:
    files = {"image": row.image, "audio": row.audio, "video": row.video}
    record: dict[str, Any] = {"id": row.id, **{name: str(path.absolute()) for name, path in files.items() if path}}
    record |= {"text": list(row.texts)} if row.texts else {}
    segment = {"start": row.start, "end": row.end}
    record |= {name: value for name, value in segment.items() if value is not None}
    return {**record, "group": group, "split": "train"}
