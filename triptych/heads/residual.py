"""Residual head: the output of a frozen head plus a trained linear map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triptych.interfaces import Head


class ResidualHead(Head):
    """The output of a frozen head plus a linear map that is trained: y = start(x) + r W z,  z = (x − μ) / (σ √d).

    μ and σ are the mean and the standard deviation of the d features of the training data, and r is the mean length of
    start(x) there, so that W has the same scale for every encoder. W is 0 at first: y = start(x).

    The penalty  hold · |W − W₀|² / d  keeps W near its start W₀. `space.residual = true` puts this head around the head
    of each modality.

    Source: residual adapters (Rebuffi et al. 2017), held near the start as in L2-SP (Li et al. 2018).
    Use when: a ready space is trained on few pairs.
    Beware: without training data of a modality, W stays 0.
    """

    def __init__(self, start: Head, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.start = start.requires_grad_(False)
        self.correction = nn.Parameter(torch.zeros(embed_dim, input_dim))
        self.initial: Tensor  # W₀
        self.mean: Tensor  # μ
        self.deviation: Tensor  # σ
        self.start_norm: Tensor  # r
        self.hold: Tensor  # inf: the correction is not trained
        self.register_buffer("initial", torch.zeros(embed_dim, input_dim))
        self.register_buffer("mean", torch.zeros(input_dim))
        for name in ("deviation", "start_norm", "hold"):
            self.register_buffer(name, torch.ones(()))

    @torch.no_grad()
    def standardise(self, x: Tensor) -> None:
        """Set μ, σ and r from the features of the training data: (N, input_dim)."""
        self.mean.copy_(x.mean(dim=0))
        self.deviation.copy_((x - self.mean).square().mean().sqrt())
        if not self.deviation > 0:  # one item, or equal items
            self.deviation.fill_(1.0)
        norms = torch.cat([self.start(rows).norm(dim=-1) for rows in x.split(1024)])
        self.start_norm.copy_(norms.mean())

    @torch.no_grad()
    def reset(self) -> None:
        """Set W to W₀."""
        self.correction.copy_(self.initial)

    def penalty(self) -> Tensor:
        """Return |W − W₀|² / d."""
        return (self.correction - self.initial).square().sum() / self.correction.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., input_dim) to (..., embed_dim)."""
        z = (x - self.mean) / (self.deviation * x.shape[-1] ** 0.5)
        return self.start(x) + self.start_norm * (z @ self.correction.T)
