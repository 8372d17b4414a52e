"""Spoken captions through wide convolutions along time, trained from scratch; its parts are frames of 160 ms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.places import steps
from triptych.encoders.temporal import TimeConvolution, halve
from triptych.errors import RecipeError, check_range, unknown
from triptych.media import audio

RATE, WINDOW, HOP = 16_000, 400, 160  # 25 ms every 10 ms
EMPHASIS, FLOOR = 0.97, -80.0  # of high frequencies; dB below the item's loudest point
KERNELS = (1, 11, 17, 17, 17)
SHARES = (8, 4, 2, 2, 1)  # of width: 128, 256, 512, 512, 1024

Norm = Literal["item", "batch"]


class SpeechCNN(Encoder):
    """Log-mel frames through five convolutions along time, the bands as channels; all but the first halve time.

    parts = pool(relu(conv_17(… pool(relu(conv_11(relu(conv_1(norm(mel))))))))),  one part per 16 frames of 10 ms
    norm = item: the item's own mean and deviation over all its bins; batch: those of the batch in training, and
    running ones afterwards. Both are followed by one learned scale and shift.

    Source: Harwath et al. 2019 (DAVEnet's audio stack: width 1024, norm = batch).
    Use when: the sound is speech about the picture, and there are tens of thousands of captions.
    Beware: at width 1024 it has 16 million weights and 10 s of sound cost 4 G multiplications; width 256 has a
    sixteenth of both. norm = item is our choice: with batch, the same sound gives another vector in training, by its
    neighbours. The original's window is Hamming's and its bands start at 20 Hz; ours are Hann's and at 0. It pads with
    the loudest value; nothing here sees padding.
    """

    modality = "audio"
    kind = "frame"

    def __init__(self, width: int = 1024, mels: int = 40, seconds: float = 20.48, norm: Norm = "item") -> None:
        super().__init__()
        check_range("speech_cnn: width", width, 8, 8192)
        check_range("speech_cnn: mels", mels, 8, 512)
        check_range("speech_cnn: seconds", seconds, 0.05, 3600)
        if width % 8:
            raise RecipeError(f"speech_cnn: width = {width}: must be a multiple of 8")
        if norm not in get_args(Norm):
            raise RecipeError(f"speech_cnn: {unknown('norm', norm, get_args(Norm))}")
        self.width, self.mels, self.seconds, self.norm = width, mels, seconds, norm
        self.scale = ItemNorm() if norm == "item" else BatchNorm()
        channels = (mels, *(width // share for share in SHARES))
        self.convolutions = nn.ModuleList(
            TimeConvolution(channels[i], channels[i + 1], kernel, norm=False) for i, kernel in enumerate(KERNELS)
        )

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.seconds if source.end is None else min(source.end, start + self.seconds)
        samples = audio.read(Path(source.content), RATE, start, end)
        samples = samples - samples.mean()
        samples = np.append(samples[:1], samples[1:] - EMPHASIS * samples[:-1]).astype(np.float32)
        decibels = audio.log_mel(samples, RATE, self.mels, WINDOW, HOP)
        return (decibels - decibels.max()).clamp_min(FLOOR)  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.scale(inputs, mask).transpose(1, 2)  # (N, mels, frames)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x, mask)
            if number:
                x, mask = halve(x, mask)
        return x.transpose(1, 2), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        return steps(source, parts, 2 ** (len(KERNELS) - 1) * HOP / RATE, first=0.0)


class ItemNorm(nn.Module):
    """Each item by its own mean and deviation over all real bins, then one learned scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, L, bins) and (N, L) -> (N, L, bins)."""
        real = mask[:, :, None]
        count = real.sum(dim=(1, 2), keepdim=True).clamp_min(1) * x.shape[2]
        # In float64: the order in which a sum is taken changes with the padding, and must not be seen.
        wide = x.double().masked_fill(~real, 0)
        mean = wide.sum(dim=(1, 2), keepdim=True) / count
        variance = ((wide - mean) * real).square().sum(dim=(1, 2), keepdim=True) / count
        return ((wide - mean) / (variance + 1e-5).sqrt()).to(self.weight.dtype) * self.weight + self.bias


class BatchNorm(nn.Module):
    """The whole batch by one mean and deviation over all real bins of all items; running ones when not training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, L, bins) and (N, L) -> (N, L, bins)."""
        real = self.norm(x[mask].reshape(-1, 1)).reshape(-1, x.shape[2])
        return torch.zeros_like(x).masked_scatter(mask[:, :, None], real)
