"""Ranks in a gallery of a million items: our tiles beside sorting every row of scores, seconds and peak memory."""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import Work, compare, peak_over_baseline
from triptych.evaluation.retrieval import average_precision, gain, measure, places

ITEMS, WIDTH, CAPTIONS = 1_000_000, 128, 5
QUERIES = 1000  # measured whole
FEW, AT_ONCE = 64, 16  # beside the peer: queries in all, and rows of scores it holds at a time
NOISE = 2.0
REACH = 1024  # megabytes


def made(queries: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clips, each with five captions somewhere in the gallery: vectors and groups of both."""
    rng = torch.Generator().manual_seed(0)
    clips = torch.randn(ITEMS // CAPTIONS, WIDTH, generator=rng)
    owner = torch.arange(ITEMS).remainder_(len(clips))
    gallery = torch.empty(ITEMS, WIDTH)
    for rows in torch.arange(ITEMS).split(100_000):
        gallery[rows] = F.normalize(clips[owner[rows]] + NOISE * torch.randn(len(rows), WIDTH, generator=rng), dim=1)
    chosen = torch.randperm(len(clips), generator=rng)[:queries]
    return F.normalize(clips[chosen], dim=1), gallery, chosen, owner


def sides(queries: int) -> tuple[Work, Work]:
    """Ranks, mAP@10 and nDCG@10 by tiles; and by sorting whole rows, as evaluation scripts do."""
    query, gallery, query_group, gallery_group = made(queries)

    def ours() -> object:
        found = places(lambda rows, columns: query[rows] @ gallery[columns].T, query_group, gallery_group)
        return average_precision(found, 10).mean(), gain(found, 10).mean()

    def theirs() -> object:
        found = []
        for first in range(0, len(query), AT_ONCE):
            order = (query[first : first + AT_ONCE] @ gallery.T).argsort(dim=1, descending=True)
            right = gallery_group[order] == query_group[first : first + AT_ONCE, None]
            rank, top = right.int().argmax(dim=1), right[:, :10].double()
            precision = (top * top.cumsum(dim=1) / torch.arange(1, 11)).sum(dim=1) / CAPTIONS
            found.append((rank, precision, (top / torch.arange(2, 12).log2()).sum(dim=1)))
        return found

    return ours, theirs


def main(names: list[str] | None = None) -> None:
    """Both sides on a few queries, alternately; then a thousand queries and every metric, by ourselves."""
    torch.set_grad_enabled(False)
    print(f"{ITEMS:,} items of {WIDTH} numbers, {torch.get_num_threads()} threads")
    if names != ["whole"]:
        ours, theirs = sides(FEW)
        memory = [peak_over_baseline(work) for work in (ours, theirs)]  # first: later, freed memory is there already
        times = compare(ours, theirs, repeats=3)
        low, high = times.spread
        print(
            f"{FEW} queries: {statistics.median(times.ours):.1f} s, sorting {statistics.median(times.theirs):.1f} s: "
            f"{times.ratio:.2f}× ({low:.2f}–{high:.2f}); memory {memory[0]:.0f} MB, sorting {memory[1]:.0f} MB"
        )
    query, gallery, query_group, gallery_group = made(QUERIES)
    results = []

    def work() -> None:
        found = places(lambda rows, columns: query[rows] @ gallery[columns].T, query_group, gallery_group)
        results.append(measure("clip", "caption", found, query_group, ITEMS))

    started = time.perf_counter()
    peak = peak_over_baseline(work)
    took = time.perf_counter() - started
    print(f"{QUERIES:,} queries, every metric with intervals: {took:.0f} s, {peak:.0f} MB over the vectors themselves")
    if peak > REACH:
        sys.exit(f"needs {peak:.0f} MB; reach is {REACH}")
