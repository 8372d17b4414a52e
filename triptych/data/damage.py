"""A manifest with a known share of wrong pairs, made from a right one: what everything that bears noise is tried on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from triptych.contracts import Encoder, Modality
from triptych.data import manifest, noise
from triptych.data.cache import Cache
from triptych.data.columns import FileKind
from triptych.data.features import remember
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.data.noise import Swap
from triptych.data.sources.draft import Draft, Item
from triptych.data.sources.output import Made, Origin, check_output, licence_of, write
from triptych.errors import UsageError, unknown
from triptych.progress import progress

Kind = Literal["random", "category", "similar"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDING = ".swaps.csv"


def swaps_of(path: Path) -> Path:
    """Where the answer key of a damaged manifest lies."""
    return path.with_name(path.stem + ENDING)


def damage(
    source: Path,
    output: Path,
    share: float,
    kind: Kind = "random",
    modality: Modality = "text",
    split: str | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
    size: int = noise.NEIGHBOURS,
    drop: bool = False,
    allow_outside: bool = False,
    show: bool = True,
) -> tuple[Made, Draft]:
    """Write a manifest in which a share of the rows have another row's captions, sound or picture, and its answer key.

    random: of any row; category: of a row with the same label; similar: of a row whose captions are close to its own
    by an encoder of texts, in one cluster of about `size` rows. Never of a row of the same group, which would be right;
    never of another split. Captions take their label and their group with them, as whoever mislabels a sound mislabels
    it in every column. With `drop` those rows are left out in place of damaged: what is left for one who knew them.
    """
    if kind not in KINDS:
        raise UsageError(unknown("noise kind", kind, KINDS))
    if modality not in noise.COLUMNS:
        raise UsageError(unknown("modality", modality, noise.COLUMNS))
    output = check_output(output)
    table = manifest.read(source, allow_outside)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    chosen = table.split(split).rows if split else table.rows
    # What is heard and seen in a film cannot be exchanged one without the other.
    able = [row for row in chosen if modality in row.modalities and (modality == "text" or not row.video)]
    able = [row for row in able if len(row.modalities) > 1]
    if len(able) < 2:
        raise UsageError(f"{table.path}: {len(able)} rows have {modality} beside something else; need at least two")
    labels = _labels(able, kind, encoder, size, seed, show)
    swaps: list[Swap] = []
    for part in dict.fromkeys(row.split for row in able):
        some = [i for i, row in enumerate(able) if row.split == part]
        ids, groups = [able[i].id for i in some], [able[i].group for i in some]
        how = "random" if kind == "random" else "category"
        swaps += noise.swap(ids, [labels[i] for i in some], share, how, seed, modality, groups)
    wrong = {one.id for one in swaps}
    items = [item_of(r) for r in table.rows if r.id not in wrong] if drop else _exchanged(table.rows, swaps)
    draft = Draft(items, Counter({"rows with an error": table.counts.unusable}))
    options = {"manifest": table.path.name, "share": share, "kind": kind, "modality": modality, "seed": seed}
    options |= {"split": split} if split else {}
    options |= {"size": size} if kind == "similar" else {}
    options |= {"drop": True} if drop else {}
    made = write(draft, output, Origin("damage", options, licence_of(table.path)))
    noise.write_swaps(swaps_of(output), swaps)
    return made, draft


def item_of(row: Row) -> Item:
    """A row, ready to be written again. A group that only names the row is left out."""
    found = {"image": row.image, "audio": row.audio, "video": row.video}
    files: dict[FileKind, Path] = {kind: path for kind, path in found.items() if path}  # pyright: ignore[reportAssignmentType]
    group = None if row.group == f"(row-{row.number})" else row.group
    return Item(row.id, files, row.texts, group, row.split, row.label, row.start, row.end)


def _labels(rows: Sequence[Row], kind: Kind, encoder: Encoder | None, size: int, seed: int, show: bool) -> list[str]:
    """What rows must share to exchange their content."""
    if kind == "category":
        bare = next((row for row in rows if row.label is None), None)
        if bare:
            raise UsageError(f"row {bare.number} has no label; --kind category needs one in every row")
    if kind != "similar":
        return [row.label or "" for row in rows]
    bare = next((row for row in rows if not row.texts), None)
    if bare:
        raise UsageError(f"row {bare.number} has no caption; --kind similar needs one in every row")
    if encoder is None:
        raise UsageError("--kind similar needs an encoder of texts to tell which captions are alike")
    sources = [source for row in rows for source in sources_of(row, "text")]
    with progress("reading captions", len(set(sources)), show) as bar:
        known = remember(encoder, sources, Cache.default(), bar=bar)
    means = [known.pooled[[known.place[s] for s in sources_of(row, "text")], 0].mean(dim=0).numpy() for row in rows]
    return noise.similar(np.stack(means), seed, size)


def _exchanged(rows: Sequence[Row], swaps: Sequence[Swap]) -> list[Item]:
    before = {row.id: item_of(row) for row in rows}
    after = dict(before)
    for one in swaps:
        own, other = before[one.id], before[one.taken_from]
        if one.modality == "text":
            after[one.id] = replace(own, texts=other.texts, label=other.label, group=other.group)
        else:
            files = {**own.files, one.modality: other.files[one.modality]}
            start, end = (other.start, other.end) if one.modality == "audio" else (own.start, own.end)
            after[one.id] = replace(own, files=files, start=start, end=end)
    return list(after.values())
