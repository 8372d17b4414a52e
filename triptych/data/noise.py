"""Damage on purpose: give a known share of rows the captions, sound or picture of another row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from triptych.csv_files import read_rows, write_rows
from triptych.errors import UsageError, unknown

if TYPE_CHECKING:
    from triptych.contracts import Modality  # only for annotations: contracts load torch, damage does not need it

Kind = Literal["random", "category"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NEIGHBOURS = 50  # rows to a cluster of similar ones, about
ROUNDS = 100  # of k-means, and of exchanges
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
    ids: Sequence[str],
    labels: Sequence[str],
    share: float,
    kind: Kind,
    seed: int,
    modality: Modality = "text",
    groups: Sequence[str] | None = None,
) -> list[Swap]:
    """Choose exactly round(share · n) rows and whose content each one takes; nobody keeps its own.

    random: the chosen rows pass their content around in one ring.
    category: one ring for each label, so the wrong content is still of the right kind. A chosen row that is alone in
    its ring takes a copy from a row that was not chosen: the only case in which content is copied and not passed on.
    groups: rows of one group are right answers to each other, so none takes its content from its own group.
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
            others = [row for row in ring if row != members[0] and (not groups or groups[row] != groups[members[0]])]
            if not others:
                raise UsageError(_one_group(groups or labels, ring))
            donors[members[0]] = others[rng.integers(len(others))]
        else:
            members = [members[place] for place in rng.permutation(len(members))]
            passed = members[1:] + members[:1]
            donors |= dict(zip(members, _part(members, passed, groups, rng) if groups else passed, strict=True))
    return [Swap(ids[row], modality, ids[donors[row]]) for row in sorted(donors)]


def similar(vectors: np.ndarray, seed: int, size: int = NEIGHBOURS) -> list[str]:
    """A label for each row, shared by rows whose vectors (N, D) point the same way: clusters of about `size` rows.

    Spherical k-means with n / size means, the first ones chosen far apart (k-means++). As labels of kind "category"
    they make damage that is hard to see.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    means = _far_apart(unit, max(1, round(len(unit) / size)), np.random.default_rng(seed))
    nearest = np.full(len(unit), -1)
    for _ in range(ROUNDS):
        before, nearest = nearest, (unit @ means.T).argmax(axis=1)
        if (before == nearest).all():
            break
        sums = np.zeros_like(means)
        np.add.at(sums, nearest, unit)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        means = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), means)  # a mean that nobody is near stays
    return [f"cluster {number}" for number in nearest]


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
        write_rows(file, [field.name for field in fields(Swap)], (asdict(item) for item in swaps))


def read_swaps(path: Path) -> list[Swap]:
    """Read back what write_swaps saved."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = read_rows(file)
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


def _far_apart(unit: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Up to so many rows, each drawn by how far it is from the nearest of those before."""
    chosen, far = [int(rng.integers(len(unit)))], np.full(len(unit), np.inf)
    while len(chosen) < count:
        far = np.minimum(far, np.clip(1 - unit @ unit[chosen[-1]], 0, None))
        if far.sum() < 1e-9:
            break  # every row is one of them already
        chosen.append(int(rng.choice(len(unit), p=far / far.sum())))
    return unit[chosen]


def _part(members: Sequence[int], passed: Sequence[int], groups: Sequence[str], rng: np.random.Generator) -> list[int]:
    """What the members are passed, exchanged between some of them until nobody has anything of its own group."""
    passed = list(passed)
    for _ in range(ROUNDS):
        own = [i for i, row in enumerate(members) if groups[row] == groups[passed[i]]]
        if not own:
            return passed
        for i in own:
            other = int(rng.integers(len(members)))
            passed[i], passed[other] = passed[other], passed[i]
    raise UsageError(_one_group(groups, members))


def _one_group(groups: Sequence[str], rows: Sequence[int]) -> str:
    largest, count = Counter(groups[row] for row in rows).most_common(1)[0]
    return (
        f"{count} of {len(rows)} rows to be swapped with each other are of one group ({largest!r}), whose content is "
        "right for all of them; choose another kind or a lower share"
    )


def _choose(rings: Sequence[Sequence[int]], count: int, total: int, kind: Kind, rng: np.random.Generator) -> set[int]:
    able = [row for ring in rings for row in ring]
    if count > len(able):
        reason = " (the others are alone in their category)" if kind == "category" else ""
        raise UsageError(
            f"{count} of {total} rows should be swapped, but only {len(able)} have a partner{reason}; "
            f"lower the noise share to {len(able) / total:.3g} or less"
        )
    return {able[place] for place in rng.permutation(len(able))[:count]}
