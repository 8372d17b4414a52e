"""Retrievals to look at and listen to: some that went well, and those that went worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from triptych.contracts import Modality
from triptych.evaluation.items import Item, Items
from triptych.evaluation.retrieval import Retrieval
from triptych.space import Space

FOUND = 3  # first answers shown
EACH = 2  # good ones and bad ones of a direction


@dataclass(frozen=True)
class Answer:
    """One item that was found."""

    item: Item
    score: float
    right: bool
    rank: int


@dataclass(frozen=True)
class Example:
    """One query, its first answers, and where its best right answer stood."""

    query: Item
    asks: Modality
    finds: Modality
    rank: int
    answers: list[Answer]
    missed: Answer | None  # the best right answer, where it is not among the first


@torch.inference_mode()
def pick(
    space: Space, items: Mapping[Modality, Items], direction: Retrieval, each: int = EACH, found: int = FOUND
) -> tuple[list[Example], list[Example]]:
    """Good ones, drawn from the queries whose first answer is right, and the worst there are; always the same."""
    if direction.each is None:
        return [], []
    rank, place = direction.each.rank, direction.each.item
    group = direction.each.group
    best = np.random.default_rng(0).permutation(np.flatnonzero(rank == 1))
    worst = np.flatnonzero(rank > found)[np.argsort(-rank[rank > found], kind="stable")]
    good, bad = (_distinct(order, group, each) for order in (best, worst))
    show = [_example(space, items, direction, int(place[i]), int(rank[i]), found) for i in (*good, *bad)]
    return show[: len(good)], show[len(good) :]


def _distinct(order: np.ndarray, group: np.ndarray, count: int) -> list[int]:
    """The first `count` of an order that are of different groups: five captions of one clip are one example."""
    chosen: dict[int, int] = {}
    for i in order:
        chosen.setdefault(int(group[i]), int(i))
        if len(chosen) == count:
            break
    return list(chosen.values())


def _example(
    space: Space, items: Mapping[Modality, Items], direction: Retrieval, place: int, rank: int, found: int
) -> Example:
    asks, finds = cast(Modality, direction.query), cast(Modality, direction.gallery)
    ours, theirs = items[asks], items[finds]
    query = ours.take(torch.tensor([place]))
    scores = space.scores(query, asks, theirs.features, finds)[0]
    right = theirs.group == ours.group[place]
    first = scores.topk(min(found, len(theirs))).indices.tolist()
    answers = [
        Answer(theirs.each[j], float(scores[j]), bool(right[j]), number) for number, j in enumerate(first, start=1)
    ]
    best = int(scores.masked_fill(~right, -torch.inf).argmax())
    missed = None if best in first else Answer(theirs.each[best], float(scores[best]), True, rank)
    return Example(ours.each[place], asks, finds, rank, answers, missed)
