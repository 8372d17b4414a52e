"""Mechanisms and equivalent implementations of other libraries: forward and backward on the CPU in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import Work
from bench.peers import import_peer, load_open_clip_loss, matchmap_loop, word_region_loop
from triptych.interfaces import Features
from triptych.objectives.infonce import streamed_infonce_loss
from triptych.objectives.matching import matching_loss
from triptych.objectives.triplet import NegativeMining, Triplet
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.streaming import softplus_sum


@dataclass(frozen=True)
class Case:
    """A computation by triptych and by a peer, and the target ratios of time and memory."""

    title: str
    peer: str
    max_time_ratio: float  # target: time of triptych ÷ time of the peer
    make: Callable[[], tuple[Work, Work | None]]
    max_memory_ratio: float = 0.0  # target: memory of triptych ÷ memory of the peer; 0 = no target
    repeats: int = 5


def embeddings(n: int, dim: int, noise: float = 1.0, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Make n pairs of noisy unit vectors. With a low rank, the vectors form clusters."""
    torch.manual_seed(0)
    x = torch.randn(n, rank or dim)
    x = x @ torch.randn(rank, dim) if rank else x
    y = x + noise * x.std() * torch.randn(n, dim)
    return F.normalize(x, dim=1).requires_grad_(), F.normalize(y, dim=1).requires_grad_()


def run_backward(loss: Tensor, *leaves: Tensor) -> None:
    """Run backward with cleared gradients."""
    for leaf in leaves:
        leaf.grad = None
    loss.backward()


def infonce(n: int, dim: int, with_peer: bool = True) -> tuple[Work, Work | None]:
    """InfoNCE in both directions."""
    a, b = embeddings(n, dim)
    scale = torch.tensor(14.0, requires_grad=True)

    def ours() -> None:
        run_backward(sum(streamed_infonce_loss(a, b, scale), torch.zeros(())) / 2, a, b, scale)

    if not with_peer:
        return ours, None
    clip = load_open_clip_loss().ClipLoss()
    return ours, lambda: run_backward(clip(a, b, scale), a, b, scale)


def sigmoid(n: int, dim: int) -> tuple[Work, Work]:
    """The sigmoid loss."""
    a, b = embeddings(n, dim)
    scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
    siglip = load_open_clip_loss().SigLipLoss()
    return (
        lambda: run_backward(softplus_sum(a, b, scale, bias) / n, a, b, scale, bias),
        lambda: run_backward(siglip(a, b, scale, bias), a, b, scale, bias),
    )


def match(n: int, dim: int, epsilon: float, mass: float = 1.0) -> tuple[Work, Work]:
    """Matching by entropic transport, solved to a marginal error of 1e-6 if the peer has this option."""
    ot = import_peer("ot")
    a, b = embeddings(n, dim, noise=1.0, rank=32)
    positive_mask = torch.eye(n, dtype=torch.bool)
    weights = torch.full((n,), 1 / n, dtype=torch.float64)

    def ours() -> None:
        run_backward(matching_loss(a @ b.T, positive_mask, epsilon, mass, "target" if mass < 1 else "trimmed")[0], a, b)

    def theirs() -> None:
        cost = 1 - a.double() @ b.double().T
        if mass < 1:
            plan = ot.partial.entropic_partial_wasserstein(weights, weights, cost, epsilon, m=mass)
        else:
            plan = ot.sinkhorn(weights, weights, cost, epsilon, numItermax=1_000_000, stopThr=1e-6)
        run_backward(-plan.diagonal().log().mean(), a, b)

    return ours, theirs


def word_region(n: int = 48) -> tuple[Work, Work]:
    """Word–region attention, n × n, 18 words, 289 regions, dimension 256."""
    torch.manual_seed(0)
    image_parts = (torch.randn(n, 289, 256) * 0.1).requires_grad_()
    text_parts = (torch.randn(n, 18, 256) * 0.1).requires_grad_()
    similarity = WordRegion()
    a = Features(image_parts[:, 0].detach(), image_parts, torch.ones(n, 289, dtype=torch.bool))
    b = Features(text_parts[:, 0].detach(), text_parts, torch.ones(n, 18, dtype=torch.bool))
    weights = torch.randn(n, n)
    return (
        lambda: run_backward((similarity(a, b) * weights).sum(), image_parts, text_parts),
        lambda: run_backward(
            (word_region_loop(image_parts, text_parts, 4.0, 5.0) * weights).sum(), image_parts, text_parts
        ),
    )


def matchmap(n: int = 128) -> tuple[Work, Work]:
    """MISA, n × n, 49 regions, 128 frames, dimension 512."""
    torch.manual_seed(0)
    image_parts, audio_parts = torch.randn(n, 49, 512).requires_grad_(), torch.randn(n, 128, 512).requires_grad_()
    a = Features(image_parts[:, 0].detach(), image_parts, torch.ones(n, 49, dtype=torch.bool))
    b = Features(audio_parts[:, 0].detach(), audio_parts, torch.ones(n, 128, dtype=torch.bool))
    similarity, weights = Matchmap(), torch.randn(n, n)
    return (
        lambda: run_backward((similarity(a, b) * weights).sum(), image_parts, audio_parts),
        lambda: run_backward((matchmap_loop(image_parts, audio_parts) * weights).sum(), image_parts, audio_parts),
    )


def triplets(negatives: NegativeMining, n: int = 4096) -> tuple[Work, Work]:
    """Triplets with mined negatives, both directions."""
    package = "pytorch_metric_learning"
    distances, losses, miners = (import_peer(f"{package}.{part}") for part in ("distances", "losses", "miners"))
    a, b = embeddings(n, 256)
    labels = torch.arange(n)
    objective = Triplet(margin=0.2, negatives=negatives)
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
            others = labels.clone()  # with the same tensor object, the library treats x and y as one set
            mined = miner(x, labels, ref_emb=y, ref_labels=others)
            total = total + loss(x, labels, mined, ref_emb=y, ref_labels=others)
        run_backward(total, a, b)

    def ours() -> None:
        run_backward(objective(a, b), a, b)

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
        "InfoNCE, N = 65,536, D = 256",
        "open_clip ClipLoss: 68 GB by calculation, not run",
        0,
        lambda: infonce(65536, 256, with_peer=False),
    ),
}
