"""Damage on purpose: give a known share of rows the captions, sound or picture of another row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from triptych.csv_files import read_rows, write_rows
from triptych.errors import UsageError, describe_unknown

if TYPE_CHECKING:
    from triptych.interfaces import Modality  # only for annotations: contracts load torch, damage does not need it

SwapKind = Literal["random", "category"]
SWAP_KINDS: tuple[SwapKind, ...] = get_args(SwapKind)
CLUSTER_SIZE = 50  # rows to a cluster of similar ones, about
MAX_ITERATIONS = 100  # of k-means, and of exchanges
# a column belongs to a modality by its first word: caption_2, image_file_name
MODALITY_COLUMNS: dict[Modality, tuple[str, ...]] = {
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


def choose_swaps(
    ids: Sequence[str],
    labels: Sequence[str],
    noise_rate: float,
    noise_kind: SwapKind,
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
    if noise_kind not in SWAP_KINDS:
        raise UsageError(describe_unknown("noise kind", noise_kind, SWAP_KINDS))
    if modality not in MODALITY_COLUMNS:
        raise UsageError(describe_unknown("modality", modality, MODALITY_COLUMNS))
    if not 0 <= noise_rate <= 1:
        raise UsageError(f"noise rate is {noise_rate}; allowed: 0 to 1")
    if len(ids) != len(labels):
        raise UsageError(f"there are {len(ids)} ids and {len(labels)} labels; give one label for each id")
    if len(set(ids)) != len(ids):
        raise UsageError(f"{len(ids) - len(set(ids))} of {len(ids)} ids occur twice; give each row its own id")
    rng = np.random.default_rng(seed)
    pools = _group_into_pools(labels if noise_kind == "category" else [""] * len(ids))
    chosen_rows = _choose_rows(pools, round(noise_rate * len(ids)), len(ids), noise_kind, rng)
    donors: dict[int, int] = {}
    for pool in pools:
        members = [row for row in pool if row in chosen_rows]
        if len(members) == 1:
            candidates = [
                row for row in pool if row != members[0] and (not groups or groups[row] != groups[members[0]])
            ]
            if not candidates:
                raise UsageError(_single_group_message(groups or labels, pool))
            donors[members[0]] = candidates[rng.integers(len(candidates))]
        else:
            members = [members[position] for position in rng.permutation(len(members))]
            pool_donors = members[1:] + members[:1]
            donors |= dict(
                zip(
                    members,
                    _avoid_same_group(members, pool_donors, groups, rng) if groups else pool_donors,
                    strict=True,
                )
            )
    return [Swap(ids[row], modality, ids[donors[row]]) for row in sorted(donors)]


def cluster_by_similarity(vectors: np.ndarray, seed: int, cluster_size: int = CLUSTER_SIZE) -> list[str]:
    """A label for each row, shared by rows whose vectors (N, D) point the same way: clusters of about `size` rows.

    Spherical k-means with n / size means, the first ones chosen far apart (k-means++). As labels of kind "category"
    they make damage that is hard to see.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    centroids = _init_centroids(unit, max(1, round(len(unit) / cluster_size)), np.random.default_rng(seed))
    assignment = np.full(len(unit), -1)
    for _ in range(MAX_ITERATIONS):
        previous, assignment = assignment, (unit @ centroids.T).argmax(axis=1)
        if (previous == assignment).all():
            break
        sums = np.zeros_like(centroids)
        np.add.at(sums, assignment, unit)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(
            lengths > 0, sums / np.maximum(lengths, 1e-12), centroids
        )  # a mean that nobody is near stays
    return [f"cluster {cluster}" for cluster in assignment]


def apply_swaps(rows: Sequence[Mapping[str, str]], swaps: Sequence[Swap], key: str = "id") -> list[dict[str, str]]:
    """The rows with their content exchanged as the swaps say; the rows that came in stay as they are."""
    before = {row[key]: row for row in rows}
    after = {name: dict(row) for name, row in before.items()}
    for swap in swaps:
        missing = {swap.id, swap.taken_from} - before.keys()
        if missing:
            raise UsageError(
                f"a swap names row {min(missing)!r}, but the table has no such row; use the table's own swaps"
            )
        columns = [name for name in before[swap.id] if name.partition("_")[0] in MODALITY_COLUMNS[swap.modality]]
        if not columns:
            raise UsageError(f"the table has no {swap.modality} column to swap; found: {', '.join(before[swap.id])}")
        after[swap.id] |= {name: before[swap.taken_from][name] for name in columns}
    return list(after.values())


def write_swaps(path: Path, swaps: Sequence[Swap]) -> None:
    """Save the swaps as CSV: the answer key for everything that looks for wrong pairs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [field.name for field in fields(Swap)], (asdict(item) for item in swaps))


def read_swaps(path: Path) -> list[Swap]:
    """Read back what write_swaps saved."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = read_rows(file)
    modalities: dict[str, Modality] = {name: name for name in MODALITY_COLUMNS}
    try:
        return [Swap(row["id"], modalities[row["modality"]], row["taken_from"]) for row in rows]
    except KeyError as error:
        raise UsageError(f"{path}: is no list of swaps ({error} is missing or unknown)") from error


def _group_into_pools(labels: Sequence[str]) -> list[list[int]]:
    """The rows of each label, where there are two or more: nobody else can give a lone row anything of its kind."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        rows[label].append(row)
    return [members for members in rows.values() if len(members) > 1]


def _init_centroids(unit: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Up to so many rows, each drawn by how far it is from the nearest of those before."""
    chosen_rows, distances = [int(rng.integers(len(unit)))], np.full(len(unit), np.inf)
    while len(chosen_rows) < count:
        distances = np.minimum(distances, np.clip(1 - unit @ unit[chosen_rows[-1]], 0, None))
        if distances.sum() < 1e-9:
            break  # every row is one of them already
        chosen_rows.append(int(rng.choice(len(unit), p=distances / distances.sum())))
    return unit[chosen_rows]


def _avoid_same_group(
    members: Sequence[int], donors: Sequence[int], groups: Sequence[str], rng: np.random.Generator
) -> list[int]:
    """What the members are passed, exchanged between some of them until nobody has anything of its own group."""
    donors = list(donors)
    for _ in range(MAX_ITERATIONS):
        conflicts = [i for i, row in enumerate(members) if groups[row] == groups[donors[i]]]
        if not conflicts:
            return donors
        for i in conflicts:
            other = int(rng.integers(len(members)))
            donors[i], donors[other] = donors[other], donors[i]
    raise UsageError(_single_group_message(groups, members))


def _single_group_message(groups: Sequence[str], rows: Sequence[int]) -> str:
    largest, count = Counter(groups[row] for row in rows).most_common(1)[0]
    return (
        f"{count} of {len(rows)} rows to be swapped with each other are of one group ({largest!r}), whose content is "
        "right for all of them; choose another kind or a lower noise rate"
    )


def _choose_rows(
    pools: Sequence[Sequence[int]], count: int, total: int, noise_kind: SwapKind, rng: np.random.Generator
) -> set[int]:
    eligible = [row for pool in pools for row in pool]
    if count > len(eligible):
        reason = " (the others are alone in their category)" if noise_kind == "category" else ""
        raise UsageError(
            f"{count} of {total} rows should be swapped, but only {len(eligible)} have a partner{reason}; "
            f"lower the noise rate to {len(eligible) / total:.3g} or less"
        )
    return {eligible[position] for position in rng.permutation(len(eligible))[:count]}
