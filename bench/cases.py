"""The mechanisms beside what people use today: forward and backward on the CPU in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import Work
from bench.peers import matchmap_loop, open_clip_loss, peer, word_region_loop
from triptych.contracts import Features, Pair
from triptych.objectives.infonce import streamed_infonce
from triptych.objectives.matching import matching
from triptych.objectives.triplet import Negatives, Triplet
from triptych.similarities.cosine import Cosine
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.streaming import softplus_sum


@dataclass(frozen=True)
class Case:
    """One piece of work done by both sides, and how much faster and leaner we mean to be."""

    work: str
    beside: str
    time: float  # reach: our time over theirs at most
    make: Callable[[], tuple[Work, Work | None]]
    memory: float = 0.0  # reach: our extra memory over theirs at most; 0 = not asked
    repeats: int = 5


def embeddings(n: int, width: int, noise: float = 1.0, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Two views of n things on the sphere that fit as well as the noise lets them; low rank makes neighbours."""
    torch.manual_seed(0)
    x = torch.randn(n, rank or width)
    x = x @ torch.randn(rank, width) if rank else x
    y = x + noise * x.std() * torch.randn(n, width)
    return F.normalize(x, dim=1).requires_grad_(), F.normalize(y, dim=1).requires_grad_()


def down(loss: Tensor, *leaves: Tensor) -> None:
    """Backward, with fresh gradients."""
    for leaf in leaves:
        leaf.grad = None
    loss.backward()


def infonce(n: int, width: int, beside: bool = True) -> tuple[Work, Work | None]:
    """InfoNCE both ways."""
    a, b = embeddings(n, width)
    scale = torch.tensor(14.0, requires_grad=True)

    def ours() -> None:
        down(sum(streamed_infonce(a, b, scale), torch.zeros(())) / 2, a, b, scale)

    if not beside:
        return ours, None
    clip = open_clip_loss().ClipLoss()
    return ours, lambda: down(clip(a, b, scale), a, b, scale)


def sigmoid(n: int, width: int) -> tuple[Work, Work]:
    """The sigmoid loss."""
    a, b = embeddings(n, width)
    scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
    siglip = open_clip_loss().SigLipLoss()
    return (
        lambda: down(softplus_sum(a, b, scale, bias) / n, a, b, scale, bias),
        lambda: down(siglip(a, b, scale, bias), a, b, scale, bias),
    )


def match(n: int, width: int, epsilon: float, mass: float = 1.0) -> tuple[Work, Work]:
    """Matching by entropic transport; both sides to a marginal error of 1e-6 where the peer can be told."""
    ot = peer("ot")
    a, b = embeddings(n, width, noise=1.0, rank=32)
    own = torch.eye(n, dtype=torch.bool)
    weights = torch.full((n,), 1 / n, dtype=torch.float64)

    def ours() -> None:
        down(matching(a @ b.T, own, epsilon, mass, "target" if mass < 1 else "trimmed")[0], a, b)

    def theirs() -> None:
        cost = 1 - a.double() @ b.double().T
        if mass < 1:
            plan = ot.partial.entropic_partial_wasserstein(weights, weights, cost, epsilon, m=mass)
        else:
            plan = ot.sinkhorn(weights, weights, cost, epsilon, numItermax=1_000_000, stopThr=1e-6)
        down(-plan.diagonal().log().mean(), a, b)

    return ours, theirs


def word_region(n: int = 48) -> tuple[Work, Work]:
    """Word–region attention, n × n, 18 words, 289 regions, width 256."""
    torch.manual_seed(0)
    images = (torch.randn(n, 289, 256) * 0.1).requires_grad_()
    words = (torch.randn(n, 18, 256) * 0.1).requires_grad_()
    similarity = WordRegion()
    a = Features(images[:, 0].detach(), images, torch.ones(n, 289, dtype=torch.bool))
    b = Features(words[:, 0].detach(), words, torch.ones(n, 18, dtype=torch.bool))
    pull = torch.randn(n, n)
    return (
        lambda: down((similarity(a, b) * pull).sum(), images, words),
        lambda: down((word_region_loop(images, words, 4.0, 5.0) * pull).sum(), images, words),
    )


def matchmap(n: int = 128) -> tuple[Work, Work]:
    """MISA, n × n, 49 regions, 128 frames, width 512."""
    torch.manual_seed(0)
    images, sounds = torch.randn(n, 49, 512).requires_grad_(), torch.randn(n, 128, 512).requires_grad_()
    a = Features(images[:, 0].detach(), images, torch.ones(n, 49, dtype=torch.bool))
    b = Features(sounds[:, 0].detach(), sounds, torch.ones(n, 128, dtype=torch.bool))
    similarity, pull = Matchmap(), torch.randn(n, n)
    return (
        lambda: down((similarity(a, b) * pull).sum(), images, sounds),
        lambda: down((matchmap_loop(images, sounds) * pull).sum(), images, sounds),
    )


def triplets(negatives: Negatives, n: int = 4096) -> tuple[Work, Work]:
    """Triplets with mined negatives, both directions."""
    library = "pytorch_metric_learning"
    distances, losses, miners = (peer(f"{library}.{part}") for part in ("distances", "losses", "miners"))
    a, b = embeddings(n, 256)
    labels = torch.arange(n)
    similarity, objective = Cosine(), Triplet(margin=0.2, negatives=negatives)
    parts = torch.zeros(n, 1, 256), torch.ones(n, 1, dtype=torch.bool)
    distance = distances.CosineSimilarity()
    loss = losses.TripletMarginLoss(margin=0.2, distance=distance)
    miner = (
        miners.BatchHardMiner(distance=distance)
        if negatives == "hardest"
        else miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard", distance=distance)
    )

    def theirs() -> None:
        total = torch.zeros(())
        for x, y in ((a, b), (b, a)):
            others = labels.clone()  # given the very same tensor, the library takes x and y for one set
            mined = miner(x, labels, ref_emb=y, ref_labels=others)
            total = total + loss(x, labels, mined, ref_emb=y, ref_labels=others)
        down(total, a, b)

    def ours() -> None:
        pair = Pair(Features(a, *parts), Features(b, *parts), labels, similarity)
        down(torch.stack(list(objective(pair).values())).sum(), a, b)

    return ours, theirs


CASES: dict[str, Case] = {
    "infonce": Case("InfoNCE, N = 8,192, D = 512", "open_clip ClipLoss", 0.6, lambda: infonce(8192, 512), 1 / 8),
    "sigmoid": Case("sigmoid, N = 8,192, D = 512", "open_clip SigLipLoss", 0.6, lambda: sigmoid(8192, 512), 1 / 8),
    "matching_0.05": Case("matching, N = 1,024, epsilon 0.05", "POT sinkhorn", 1 / 5, lambda: match(1024, 512, 0.05)),
    "matching_0.03": Case("matching, N = 1,024, epsilon 0.03", "POT sinkhorn", 1 / 15, lambda: match(1024, 512, 0.03)),
    "partial": Case("partial matching, N = 256", "POT partial", 1 / 100, lambda: match(256, 512, 0.05, 0.95)),
    "word_region": Case("word–region, 48 × 48", "loop over captions", 1 / 2, word_region, 1 / 2),
    "matchmap": Case("matchmap MISA, 128 × 128", "double loop", 1 / 4, matchmap),
    "semi_hard": Case("semi-hard triplets, N = 4,096", "pytorch-metric-learning", 1 / 2, lambda: triplets("semi_hard")),
    "hardest": Case("hardest triplets, N = 4,096", "pytorch-metric-learning", 1 / 2, lambda: triplets("hardest")),
    "infonce_large": Case(
        "InfoNCE, N = 65,536, D = 256", "ClipLoss by arithmetic: 68 GB", 0, lambda: infonce(65536, 256, beside=False)
    ),
}
