"""Damage a manifest on purpose: give a known share of its rows the captions, sound or picture of another row."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from triptych.errors import UsageError, unknown

if TYPE_CHECKING:
    from triptych.contracts import Modality  # only for annotations: contracts load torch, damage does not need it

Kind = Literal["random", "category"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# a column belongs to a modality by its first word: caption_2, image_file_name
COLUMNS: dict[Modality, tuple[str, ...]] = {
    "image": ("image",),
    "audio": ("audio",),
    "text": ("caption", "captions", "text"),
}


@dataclass(frozen=True)
class Swap:
    """Row `id` no longer has its own content in one modality, but that of row `taken_from`."""

    id: str
    modality: Modality
    taken_from: str


def swap(
    ids: Sequence[str], labels: Sequence[str], share: float, kind: Kind, seed: int, modality: Modality = "text"
) -> list[Swap]:
    """Choose exactly round(share · n) rows and whose content each one takes; nobody keeps its own.

    random: the chosen rows pass their content around in one ring.
    category: one ring for each label, so the wrong content is still of the right kind. A chosen row that is alone in
    its ring takes a copy from a row that was not chosen: the only case in which content is copied and not passed on.
    """
    if kind not in KINDS:
        raise UsageError(unknown("noise kind", kind, KINDS))
    if modality not in COLUMNS:
        raise UsageError(unknown("modality", modality, COLUMNS))
    if not 0 <= share <= 1:
        raise UsageError(f"noise share is {share}; allowed: 0 to 1")
    if len(ids) != len(labels):
        raise UsageError(f"there are {len(ids)} ids and {len(labels)} labels; give one label for each id")
    if len(set(ids)) != len(ids):
        raise UsageError(f"{len(ids) - len(set(ids))} of {len(ids)} ids occur twice; give each row its own id")
    rng = np.random.default_rng(seed)
    rings = _rings(labels if kind == "category" else [""] * len(ids))
    chosen = _choose(rings, round(share * len(ids)), len(ids), kind, rng)
    donors: dict[int, int] = {}
    for ring in rings:
        members = [row for row in ring if row in chosen]
        if len(members) == 1:
            others = [row for row in ring if row not in chosen]
            donors[members[0]] = others[rng.integers(len(others))]
        else:
            members = [members[place] for place in rng.permutation(len(members))]
            donors |= dict(zip(members, members[1:] + members[:1], strict=True))
    return [Swap(ids[row], modality, ids[donors[row]]) for row in sorted(donors)]


def apply(rows: Sequence[Mapping[str, str]], swaps: Sequence[Swap], key: str = "id") -> list[dict[str, str]]:
    """The rows with their content exchanged as the swaps say; the rows that came in stay as they are."""
    before = {row[key]: row for row in rows}
    after = {name: dict(row) for name, row in before.items()}
    for item in swaps:
        missing = {item.id, item.taken_from} - before.keys()
        if missing:
            raise UsageError(
                f"a swap names row {min(missing)!r}, but the table has no such row; use the table's own swaps"
            )
        columns = [name for name in before[item.id] if name.partition("_")[0] in COLUMNS[item.modality]]
        if not columns:
            raise UsageError(f"the table has no {item.modality} column to swap; found: {', '.join(before[item.id])}")
        after[item.id] |= {name: before[item.taken_from][name] for name in columns}
    return list(after.values())


def write_swaps(path: Path, swaps: Sequence[Swap]) -> None:
    """Save the swaps as CSV: the answer key for everything that looks for wrong pairs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Swap)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(item) for item in swaps)


def read_swaps(path: Path) -> list[Swap]:
    """Read back what write_swaps saved."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    modalities: dict[str, Modality] = {name: name for name in COLUMNS}
    try:
        return [Swap(row["id"], modalities[row["modality"]], row["taken_from"]) for row in rows]
    except KeyError as error:
        raise UsageError(f"{path}: is no list of swaps ({error} is missing or unknown)") from error


def _rings(labels: Sequence[str]) -> list[list[int]]:
    """The rows of each label, where there are two or more: nobody else can give a lone row anything of its kind."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        rows[label].append(row)
    return [members for members in rows.values() if len(members) > 1]


def _choose(rings: Sequence[Sequence[int]], count: int, total: int, kind: Kind, rng: np.random.Generator) -> set[int]:
    able = [row for ring in rings for row in ring]
    if count > len(able):
        reason = " (the others are alone in their category)" if kind == "category" else ""
        raise UsageError(
            f"{count} of {total} rows should be swapped, but only {len(able)} have a partner{reason}; "
            f"lower the noise share to {len(able) / total:.3g} or less"
        )
    return {able[place] for place in rng.permutation(len(able))[:count]}
