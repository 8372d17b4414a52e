"""A manifest with a known share of wrong pairs, made from a right one: what everything that bears noise is tried on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from triptych.data import label_noise, manifest
from triptych.data.cache import Cache
from triptych.data.features import compute_or_load
from triptych.data.label_noise import Swap
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.data.row_parser import MediaType
from triptych.data.sources.draft import DraftItem, ManifestDraft
from triptych.data.sources.manifest_writer import (
    Origin,
    WrittenManifest,
    read_licence,
    resolve_output_path,
    write_manifest,
)
from triptych.errors import UsageError, describe_unknown
from triptych.interfaces import Encoder, Modality

NoiseKind = Literal["random", "category", "similar"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
SWAPS_SUFFIX = ".swaps.csv"


def swaps_path(path: Path) -> Path:
    """Where the answer key of a damaged manifest lies."""
    return path.with_name(path.stem + SWAPS_SUFFIX)


def inject_noise(
    manifest_path: Path,
    output: Path,
    noise_rate: float,
    noise_kind: NoiseKind = "random",
    modality: Modality = "text",
    split: str | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
    cluster_size: int = label_noise.CLUSTER_SIZE,
    drop: bool = False,
    allow_outside: bool = False,
    show_progress: bool = True,
) -> tuple[WrittenManifest, ManifestDraft]:
    """Write a manifest in which a share of the rows have another row's captions, sound or picture, and its answer key.

    random: of any row; category: of a row with the same label; similar: of a row whose captions are close to its own
    by an encoder of texts, in one cluster of about `size` rows. Never of a row of the same group, which would be right;
    never of another split. Captions take their label and their group with them, as whoever mislabels a sound mislabels
    it in every column. With `drop` those rows are left out in place of damaged: what is left for one who knew them.
    """
    if noise_kind not in NOISE_KINDS:
        raise UsageError(describe_unknown("noise kind", noise_kind, NOISE_KINDS))
    if modality not in label_noise.MODALITY_COLUMNS:
        raise UsageError(describe_unknown("modality", modality, label_noise.MODALITY_COLUMNS))
    output = resolve_output_path(output)
    table = manifest.read(manifest_path, allow_outside)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    candidates = table.split(split).rows if split else table.rows
    # What is heard and seen in a film cannot be exchanged one without the other.
    eligible = [row for row in candidates if modality in row.modalities and (modality == "text" or not row.video)]
    eligible = [row for row in eligible if len(row.modalities) > 1]
    if len(eligible) < 2:
        raise UsageError(f"{table.path}: {len(eligible)} rows have {modality} beside something else; need at least two")
    labels = _swap_labels(eligible, noise_kind, encoder, cluster_size, seed, show_progress)
    swaps: list[Swap] = []
    for split_name in dict.fromkeys(row.split for row in eligible):
        indices = [i for i, row in enumerate(eligible) if row.split == split_name]
        ids, groups = [eligible[i].id for i in indices], [eligible[i].group for i in indices]
        swap_kind = "random" if noise_kind == "random" else "category"
        swaps += label_noise.choose_swaps(
            ids, [labels[i] for i in indices], noise_rate, swap_kind, seed, modality, groups
        )
    swapped_ids = {swap.id for swap in swaps}
    items = (
        [item_from_row(r) for r in table.rows if r.id not in swapped_ids] if drop else _apply_swaps(table.rows, swaps)
    )
    draft = ManifestDraft(items, Counter({"rows with an error": table.counts.unusable}))
    options = {
        "manifest": table.path.name,
        "noise_rate": noise_rate,
        "noise_kind": noise_kind,
        "modality": modality,
        "seed": seed,
    }
    options |= {"split": split} if split else {}
    options |= {"cluster_size": cluster_size} if noise_kind == "similar" else {}
    options |= {"drop": True} if drop else {}
    written = write_manifest(draft, output, Origin("inject-noise", options, read_licence(table.path)))
    label_noise.write_swaps(swaps_path(output), swaps)
    return written, draft


def item_from_row(row: Row) -> DraftItem:
    """A row, ready to be written again. A group that only names the row is left out."""
    paths = {"image": row.image, "audio": row.audio, "video": row.video}
    files: dict[MediaType, Path] = {column: path for column, path in paths.items() if path}  # pyright: ignore[reportAssignmentType]
    group = None if row.group == f"(row-{row.number})" else row.group
    return DraftItem(row.id, files, row.texts, group, row.split, row.label, row.start, row.end)


def _swap_labels(
    rows: Sequence[Row],
    noise_kind: NoiseKind,
    encoder: Encoder | None,
    cluster_size: int,
    seed: int,
    show_progress: bool,
) -> list[str]:
    """What rows must share to exchange their content."""
    if noise_kind == "category":
        incomplete_row = next((row for row in rows if row.label is None), None)
        if incomplete_row:
            raise UsageError(f"row {incomplete_row.number} has no label; --noise-kind category needs one in every row")
    if noise_kind != "similar":
        return [row.label or "" for row in rows]
    incomplete_row = next((row for row in rows if not row.texts), None)
    if incomplete_row:
        raise UsageError(f"row {incomplete_row.number} has no caption; --noise-kind similar needs one in every row")
    if encoder is None:
        raise UsageError("--noise-kind similar needs an encoder of texts to tell which captions are alike")
    sources = [source for row in rows for source in sources_of(row, "text")]
    title = "reading captions" if show_progress else None
    features = compute_or_load(encoder, sources, Cache.default(), progress=title)
    means = [
        features.pooled[[features.index_of[s] for s in sources_of(row, "text")], 0].mean(dim=0).numpy() for row in rows
    ]
    return label_noise.cluster_by_similarity(np.stack(means), seed, cluster_size)


def _apply_swaps(rows: Sequence[Row], swaps: Sequence[Swap]) -> list[DraftItem]:
    before = {row.id: item_from_row(row) for row in rows}
    after = dict(before)
    for swap in swaps:
        item, donor = before[swap.id], before[swap.taken_from]
        if swap.modality == "text":
            after[swap.id] = replace(item, texts=donor.texts, label=donor.label, group=donor.group)
        else:
            files = {**item.files, swap.modality: donor.files[swap.modality]}
            start, end = (donor.start, donor.end) if swap.modality == "audio" else (item.start, item.end)
            after[swap.id] = replace(item, files=files, start=start, end=end)
    return list(after.values())
