"""Label noise: choose, apply, save and load swaps. A swap gives a row the captions, audio or image of another row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np

from triptych.csv_files import format_csv, read_rows
from triptych.errors import UsageError, describe_unknown
from triptych.files import write_text

if TYPE_CHECKING:
    from triptych.interfaces import Modality  # an import at run time would load torch

Content = TypeVar("Content")
SwapKind = Literal["random", "category"]
SWAP_KINDS: tuple[SwapKind, ...] = get_args(SwapKind)
CLUSTER_SIZE = 50  # mean number of rows per cluster
MAX_ITERATIONS = 100  # maximum number of iterations of k-means, and of the search for donors from other groups
# The first word of a column name, such as caption_2 or image_file_name, gives its modality.
MODALITY_COLUMNS: dict[Modality, tuple[str, ...]] = {
    "image": ("image",),
    "audio": ("audio",),
    "text": ("caption", "captions", "text"),
}


@dataclass(frozen=True)
class Swap:
    """A swap: row `id` gets the captions, audio or image (by `modality`) of row `taken_from`."""

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
    """Choose exactly round(noise_rate · n) of the n rows, and a donor for each chosen row.

    A chosen row gets the captions, audio or image (by `modality`) of its donor. The noise kinds are:
    random: the donors are a cyclic shift of the chosen rows in random order, so that no row is its own donor.
    category: the donors are a cyclic shift within each label, so that a row and its donor have the same label. If only
      one row of a label is chosen, its donor is a row with this label that was not chosen.
    If `groups` is given, a row and its donor are of different groups, because rows of one group match each other.
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
        raise UsageError(f"{len(ids) - len(set(ids))} of {len(ids)} ids repeat an earlier id; ids must be unique")
    rng = np.random.default_rng(seed)
    pools = _group_into_pools(labels if noise_kind == "category" else [""] * len(ids))
    chosen_rows = _choose_rows(pools, round(noise_rate * len(ids)), len(ids), noise_kind, rng)
    donors: dict[int, int] = {}
    for pool in pools:
        members = [row for row in pool if row in chosen_rows]
        if len(members) == 1:
            first = members[0]
            candidates = [row for row in pool if row != first and (not groups or groups[row] != groups[first])]
            if not candidates:
                raise UsageError(_single_group_message(groups or labels, pool))
            donors[first] = candidates[rng.integers(len(candidates))]
        else:
            members = [members[position] for position in rng.permutation(len(members))]
            pool_donors = members[1:] + members[:1]
            if groups:
                pool_donors = _avoid_same_group(members, pool_donors, groups, rng)
            donors |= dict(zip(members, pool_donors, strict=True))
    return [Swap(ids[row], modality, ids[donors[row]]) for row in sorted(donors)]


def cluster_by_similarity(vectors: np.ndarray, seed: int, cluster_size: int = CLUSTER_SIZE) -> list[str]:
    """Cluster the rows of `vectors` (N, D) by cosine similarity. Return the name of each row's cluster.

    The algorithm is spherical k-means with N / cluster_size centroids and k-means++ initialisation. If the clusters
    are passed to `choose_swaps` as labels with kind "category", the noise is hard to detect.
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
        # The centroid of an empty cluster is not changed.
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids)
    return [f"cluster {cluster}" for cluster in assignment]


def apply_swaps(
    items: Mapping[str, Content], swaps: Sequence[Swap], take_content: Callable[[Content, Content, Modality], Content]
) -> list[Content]:
    """Return the items (id -> item) after the swaps. The items passed in are not changed.

    `take_content(item, donor, modality)` returns a copy of the item with the donor's captions, audio or image.
    """
    result = dict(items)
    for swap in swaps:
        missing = {swap.id, swap.taken_from} - items.keys()
        if missing:
            row = f"row {min(missing)!r}"
            raise UsageError(f"a swap names {row}, but the table has no such row; use the swaps of this table")
        result[swap.id] = take_content(result[swap.id], items[swap.taken_from], swap.modality)
    return list(result.values())


def take_columns(row: Mapping[str, str], donor: Mapping[str, str], modality: Modality) -> dict[str, str]:
    """Return a table row with the donor's cells in all columns of a modality. This is `take_content` for table rows."""
    columns = [name for name in row if name.partition("_")[0] in MODALITY_COLUMNS[modality]]
    if not columns:
        raise UsageError(f"the table has no {modality} column to swap; found: {', '.join(row)}")
    return {**row, **{name: donor[name] for name in columns}}


def write_swaps(path: Path, swaps: Sequence[Swap]) -> None:
    """Save swaps as CSV. The list is the ground truth for methods that detect mismatched pairs."""
    write_text(path, format_csv([field.name for field in fields(Swap)], (asdict(swap) for swap in swaps)))


def read_swaps(path: Path) -> list[Swap]:
    """Read swaps that `write_swaps` saved."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = read_rows(file)
    modalities: dict[str, Modality] = {name: name for name in MODALITY_COLUMNS}
    try:
        return [Swap(row["id"], modalities[row["modality"]], row["taken_from"]) for row in rows]
    except KeyError as error:
        raise UsageError(f"{path}: is not a list of swaps ({error} is missing or unknown)") from error


def _group_into_pools(labels: Sequence[str]) -> list[list[int]]:
    """Group row indices by label. Drop labels with a single row, for which there is no donor."""
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return [members for members in rows.values() if len(members) > 1]


def _init_centroids(unit: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose up to `count` rows of `unit` by k-means++.

    The probability of a row is proportional to its cosine distance (1 − cosine) to the nearest row chosen so far.
    """
    chosen_rows, distances = [int(rng.integers(len(unit)))], np.full(len(unit), np.inf)
    while len(chosen_rows) < count:
        distances = np.minimum(distances, np.clip(1 - unit @ unit[chosen_rows[-1]], 0, None))
        if distances.sum() < 1e-9:
            break  # every row equals a chosen row
        chosen_rows.append(int(rng.choice(len(unit), p=distances / distances.sum())))
    return unit[chosen_rows]


def _avoid_same_group(
    members: Sequence[int], donors: Sequence[int], groups: Sequence[str], rng: np.random.Generator
) -> list[int]:
    """Exchange donors at random until no member has a donor of its own group."""
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
        f"{count} of {len(rows)} rows that could be swapped with each other are of one group ({largest!r}), but rows "
        "of one group match each other; choose another noise kind or a lower noise rate"
    )


def _choose_rows(
    pools: Sequence[Sequence[int]], count: int, total: int, noise_kind: SwapKind, rng: np.random.Generator
) -> set[int]:
    eligible = [row for pool in pools for row in pool]
    if count > len(eligible):
        reason = " (each other row is the only row of its category)" if noise_kind == "category" else ""
        raise UsageError(
            f"{count} of {total} rows should be swapped, but only {len(eligible)} rows have a donor{reason}; "
            f"lower the noise rate to {len(eligible) / total:.3g} or less"
        )
    return {eligible[position] for position in rng.permutation(len(eligible))[:count]}
