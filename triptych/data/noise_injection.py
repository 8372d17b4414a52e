"""Inject label noise into a manifest: give a known fraction of rows the captions, audio or image of another row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from triptych.data import label_noise, manifest
from triptych.data.cache import Cache
from triptych.data.datasets.derived import item_from_row, resolve_derived_path, write_derived_manifest
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.datasets.manifest_writer import WrittenManifest
from triptych.data.features import compute_or_load
from triptych.data.label_noise import Swap
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.errors import UsageError, describe_unknown
from triptych.interfaces import Encoder, Modality

NoiseKind = Literal["random", "category", "similar"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
SWAPS_SUFFIX = ".swaps.csv"


def swaps_path(path: Path) -> Path:
    """Return the path of the CSV file that lists the swaps of a noisy manifest."""
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
    """Write a manifest in which a fraction of the rows have the captions, audio or image of another row.

    noise_kind: the donor is any row (random), a row with the same label (category), or a row in the same cluster of
      about `cluster_size` rows whose captions have similar features of `encoder` (similar). A row and its donor are in
      the same split, but not in the same group, because rows of one group match each other.
    modality: text, image or audio. Captions are swapped together with label and group, as in real annotation errors.
    drop: drop the chosen rows instead of swapping. Training on the result is the oracle baseline for noisy training.

    The swaps are listed in NAME.swaps.csv beside the manifest.
    """
    if noise_kind not in NOISE_KINDS:
        raise UsageError(describe_unknown("noise kind", noise_kind, NOISE_KINDS))
    if modality not in label_noise.MODALITY_COLUMNS:
        raise UsageError(describe_unknown("modality", modality, label_noise.MODALITY_COLUMNS))
    table = manifest.read(manifest_path, allow_outside)
    output = resolve_derived_path(output, table)
    candidates = table.split(split).rows if split else table.rows
    # Rows with a video keep their image and audio, because these cannot be swapped separately.
    eligible = [row for row in candidates if modality in row.modalities and (modality == "text" or not row.video)]
    eligible = [row for row in eligible if len(row.modalities) > 1]
    if len(eligible) < 2:
        raise UsageError(
            f"{table.path}: {len(eligible)} rows have {modality} and another modality; at least two rows are needed"
        )
    pool_names = _choose_pools(eligible, noise_kind, encoder, cluster_size, seed, show_progress)
    swaps = _choose_swaps_by_split(eligible, pool_names, noise_rate, noise_kind, seed, modality)
    items = {row.id: item_from_row(row) for row in table.rows}
    swapped_ids = {swap.id for swap in swaps}
    if drop:
        result = [item for item in items.values() if item.id not in swapped_ids]
    else:
        result = label_noise.apply_swaps(items, swaps, _take_content)
    options = {"noise_rate": noise_rate, "noise_kind": noise_kind, "modality": modality, "seed": seed}
    options |= {"split": split} if split else {}
    options |= {"cluster_size": cluster_size} if noise_kind == "similar" else {}
    options |= {"drop": True} if drop else {}
    written = write_derived_manifest(table, result, output, "inject-noise", options)
    label_noise.write_swaps(swaps_path(output), swaps)
    return written


def _choose_swaps_by_split(
    rows: Sequence[Row],
    pool_names: Sequence[str],
    noise_rate: float,
    noise_kind: NoiseKind,
    seed: int,
    modality: Modality,
) -> list[Swap]:
    swaps: list[Swap] = []
    for split in dict.fromkeys(row.split for row in rows):
        indices = [index for index, row in enumerate(rows) if row.split == split]
        ids, groups = [rows[index].id for index in indices], [rows[index].group for index in indices]
        swap_kind = "random" if noise_kind == "random" else "category"
        pools = [pool_names[index] for index in indices]
        swaps += label_noise.choose_swaps(ids, pools, noise_rate, swap_kind, seed, modality, groups)
    return swaps


def _choose_pools(
    rows: Sequence[Row],
    noise_kind: NoiseKind,
    encoder: Encoder | None,
    cluster_size: int,
    seed: int,
    show_progress: bool,
) -> list[str]:
    """Return the pool of each row: its label or, for noise kind "similar", its cluster. Donors come from the pool."""
    for row in rows:
        if noise_kind == "category" and row.label is None:
            raise UsageError(f"row {row.number} has no label; --noise-kind category needs a label per row")
        if noise_kind == "similar" and not row.texts:
            raise UsageError(f"row {row.number} has no caption; --noise-kind similar needs a caption per row")
    if noise_kind != "similar":
        return [row.label or "" for row in rows]
    if encoder is None:
        raise UsageError("--noise-kind similar needs a text encoder to compare captions")
    captions = [sources_of(row, "text") for row in rows]
    title = "reading captions" if show_progress else None
    features = compute_or_load(encoder, [s for texts in captions for s in texts], Cache.default(), progress=title)
    means = [features.pooled[[features.index_of[s] for s in texts], 0].mean(dim=0).numpy() for texts in captions]
    return label_noise.cluster_by_similarity(np.stack(means), seed, cluster_size)


def _take_content(item: DraftItem, donor: DraftItem, modality: Modality) -> DraftItem:
    if modality == "text":
        return replace(item, texts=donor.texts, label=donor.label, group=donor.group)
    files = {**item.files, modality: donor.files[modality]}
    start, end = (donor.start, donor.end) if modality == "audio" else (item.start, item.end)
    return replace(item, files=files, start=start, end=end)
