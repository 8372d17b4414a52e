"""Retrievals to look at and listen to: some that went well, and those that went worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from triptych.evaluation.items import EvalItem, EvalItems
from triptych.evaluation.retrieval import RetrievalResult
from triptych.interfaces import Modality
from triptych.space import Space

NUM_ANSWERS = 3  # first answers shown
NUM_EXAMPLES = 2  # good ones and bad ones of a direction


@dataclass(frozen=True)
class RetrievedItem:
    """One item that was found."""

    item: EvalItem
    score: float
    is_positive: bool
    rank: int


@dataclass(frozen=True)
class RetrievalExample:
    """One query, its first answers, and where its best right answer stood."""

    query: EvalItem
    query_modality: Modality
    gallery_modality: Modality
    rank: int
    answers: list[RetrievedItem]
    missed_positive: RetrievedItem | None  # the best right answer, where it is not among the first


@torch.inference_mode()
def pick_examples(
    space: Space,
    items: Mapping[Modality, EvalItems],
    direction: RetrievalResult,
    num_examples: int = NUM_EXAMPLES,
    num_answers: int = NUM_ANSWERS,
) -> tuple[list[RetrievalExample], list[RetrievalExample]]:
    """Good ones, drawn from the queries whose first answer is right, and the worst there are; always the same."""
    if direction.per_query is None:
        return [], []
    rank, item_index = direction.per_query.best_rank, direction.per_query.item_index
    group = direction.per_query.group
    best = np.random.default_rng(0).permutation(np.flatnonzero(rank == 1))
    worst = np.flatnonzero(rank > num_answers)[np.argsort(-rank[rank > num_answers], kind="stable")]
    good, bad = (_select_distinct_groups(order, group, num_examples) for order in (best, worst))
    examples = [
        _make_example(space, items, direction, int(item_index[i]), int(rank[i]), num_answers) for i in (*good, *bad)
    ]
    return examples[: len(good)], examples[len(good) :]


def _select_distinct_groups(order: np.ndarray, group: np.ndarray, count: int) -> list[int]:
    """The first `count` of an order that are of different groups: five captions of one clip are one example."""
    chosen: dict[int, int] = {}
    for i in order:
        chosen.setdefault(int(group[i]), int(i))
        if len(chosen) == count:
            break
    return list(chosen.values())


def _make_example(
    space: Space,
    items: Mapping[Modality, EvalItems],
    direction: RetrievalResult,
    item_index: int,
    rank: int,
    num_answers: int,
) -> RetrievalExample:
    query_modality, gallery_modality = cast(Modality, direction.query), cast(Modality, direction.gallery)
    query_items, gallery_items = items[query_modality], items[gallery_modality]
    query = query_items.take(torch.tensor([item_index]))
    scores = space.scores(query, gallery_items.features)[0]
    positive_mask = gallery_items.group_ids == query_items.group_ids[item_index]
    first = scores.topk(min(num_answers, len(gallery_items))).indices.tolist()
    answers = [
        RetrievedItem(gallery_items.entries[j], float(scores[j]), bool(positive_mask[j]), position)
        for position, j in enumerate(first, start=1)
    ]
    best = int(scores.masked_fill(~positive_mask, -torch.inf).argmax())
    missed_positive = (
        None if best in first else RetrievedItem(gallery_items.entries[best], float(scores[best]), True, rank)
    )
    return RetrievalExample(
        query_items.entries[item_index], query_modality, gallery_modality, rank, answers, missed_positive
    )
