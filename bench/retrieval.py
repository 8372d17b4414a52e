"""Time and memory to rank a gallery of a million items: by tiles, and by sorting all scores."""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import Work, compare, peak_over_baseline
from triptych.evaluation.retrieval import average_precision, compute_retrieval_metrics, ndcg, rank_positives

ITEMS, DIM, CAPTIONS = 1_000_000, 128, 5
QUERIES = 1000  # number of queries of the full measurement
NUM_COMPARED_QUERIES, PEER_BATCH = (
    64,
    16,
)  # queries for the comparison, and rows of scores that the peer sorts at a time
NOISE = 2.0
MAX_MEGABYTES = 1024


def make_vectors(queries: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make clips with five captions each in the gallery; return vectors and groups of both."""
    rng = torch.Generator().manual_seed(0)
    clips = torch.randn(ITEMS // CAPTIONS, DIM, generator=rng)
    clip_of_item = torch.arange(ITEMS).remainder_(len(clips))
    gallery = torch.empty(ITEMS, DIM)
    for rows in torch.arange(ITEMS).split(100_000):
        gallery[rows] = F.normalize(
            clips[clip_of_item[rows]] + NOISE * torch.randn(len(rows), DIM, generator=rng), dim=1
        )
    chosen = torch.randperm(len(clips), generator=rng)[:queries]
    return F.normalize(clips[chosen], dim=1), gallery, chosen, clip_of_item


def build_sides(queries: int) -> tuple[Work, Work]:
    """Build ranks, mAP@10 and nDCG@10 by tiles, and by sorting whole rows."""
    query, gallery, query_group, gallery_group = make_vectors(queries)

    def ours() -> object:
        positive_ranks = rank_positives(
            lambda rows, columns: query[rows] @ gallery[columns].T, query_group, gallery_group
        )
        return average_precision(positive_ranks, 10).mean(), ndcg(positive_ranks, 10).mean()

    def theirs() -> object:
        results = []
        for first in range(0, len(query), PEER_BATCH):
            order = (query[first : first + PEER_BATCH] @ gallery.T).argsort(dim=1, descending=True)
            is_positive = gallery_group[order] == query_group[first : first + PEER_BATCH, None]
            rank, top = is_positive.int().argmax(dim=1), is_positive[:, :10].double()
            precision = (top * top.cumsum(dim=1) / torch.arange(1, 11)).sum(dim=1) / CAPTIONS
            results.append((rank, precision, (top / torch.arange(2, 12).log2()).sum(dim=1)))
        return results

    return ours, theirs


def main(names: list[str] | None = None) -> None:
    """Compare tiles with sorting on a few queries; then compute all metrics for a thousand queries by tiles."""
    torch.set_grad_enabled(False)
    print(f"{ITEMS:,} items of {DIM} numbers, {torch.get_num_threads()} threads")
    if names != ["whole"]:
        ours, theirs = build_sides(NUM_COMPARED_QUERIES)
        # Memory is measured first, since later measurements reuse freed memory.
        memory = [peak_over_baseline(work) for work in (ours, theirs)]
        times = compare(ours, theirs, repeats=3)
        low, high = times.spread
        print(
            f"{NUM_COMPARED_QUERIES} queries: {statistics.median(times.ours):.1f} s, sorting "
            f"{statistics.median(times.theirs):.1f} s: "
            f"{times.ratio:.2f}× ({low:.2f}–{high:.2f}); memory {memory[0]:.0f} MB, sorting {memory[1]:.0f} MB"
        )
    query, gallery, query_group, gallery_group = make_vectors(QUERIES)
    results = []

    def work() -> None:
        positive_ranks = rank_positives(
            lambda rows, columns: query[rows] @ gallery[columns].T, query_group, gallery_group
        )
        results.append(compute_retrieval_metrics("clip", "caption", positive_ranks, query_group, ITEMS))

    started = time.perf_counter()
    peak = peak_over_baseline(work)
    seconds = time.perf_counter() - started
    print(f"{QUERIES:,} queries, all metrics with intervals: {seconds:.0f} s, {peak:.0f} MB above the vectors")
    if peak > MAX_MEGABYTES:
        sys.exit(f"needs {peak:.0f} MB; the target is {MAX_MEGABYTES}")
