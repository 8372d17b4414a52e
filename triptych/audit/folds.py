"""Which rows are judged together, by a space that has seen none of their pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triptych.data.sources.draft import find_connected_groups


def group_kfold(pairs: Mapping[str, Sequence[object]], num_folds: int, seed: int) -> dict[str, int]:
    """Each row's fold of 0 … count - 1, given the pairs that a row holds: rows that share a pair share a fold.

    A pair that stands in two rows would else be learned in one and judged in the other. Folds differ by little in size.
    """
    leaders = find_connected_groups(pairs)
    members: dict[str, list[str]] = {}
    for name, leader in leaders.items():
        members.setdefault(leader, []).append(name)
    order = [list(members)[place] for place in np.random.default_rng(seed).permutation(len(members))]
    sizes = [0] * num_folds
    fold: dict[str, int] = {}
    for leader in sorted(order, key=lambda name: -len(members[name])):  # stable: equal sizes stay in random order
        smallest = sizes.index(min(sizes))
        sizes[smallest] += len(members[leader])
        fold |= dict.fromkeys(members[leader], smallest)
    return fold
