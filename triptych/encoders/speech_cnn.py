"""Spoken captions through wide convolutions along time, trained from scratch; its parts are frames of 160 ms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from triptych.encoders.part_locations import time_spans
from triptych.encoders.temporal import MaskedConv1d, masked_max_pool
from triptych.errors import RecipeError, check_range, describe_unknown
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

SAMPLE_RATE, WINDOW, HOP = 16_000, 400, 160  # 25 ms every 10 ms
PREEMPHASIS, DB_FLOOR = 0.97, -80.0  # of high frequencies; dB below the item's loudest point
KERNELS = (1, 11, 17, 17, 17)
CHANNEL_DIVISORS = (8, 4, 2, 2, 1)  # of width: 128, 256, 512, 512, 1024

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
    part_name = "frame"

    def __init__(
        self, feature_dim: int = 1024, n_mels: int = 40, max_seconds: float = 20.48, norm: Norm = "item"
    ) -> None:
        super().__init__()
        check_range("speech_cnn: feature_dim", feature_dim, 8, 8192)
        check_range("speech_cnn: n_mels", n_mels, 8, 512)
        check_range("speech_cnn: max_seconds", max_seconds, 0.05, 3600)
        if feature_dim % 8:
            raise RecipeError(f"speech_cnn: feature_dim = {feature_dim}: must be a multiple of 8")
        if norm not in get_args(Norm):
            raise RecipeError(f"speech_cnn: {describe_unknown('norm', norm, get_args(Norm))}")
        self.feature_dim, self.n_mels, self.max_seconds, self.norm = feature_dim, n_mels, max_seconds, norm
        self.input_norm = ItemNorm() if norm == "item" else MaskedBatchNorm()
        channels = (n_mels, *(feature_dim // divisor for divisor in CHANNEL_DIVISORS))
        self.convolutions = nn.ModuleList(
            MaskedConv1d(channels[i], channels[i + 1], kernel, norm=False) for i, kernel in enumerate(KERNELS)
        )

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.max_seconds if source.end is None else min(source.end, start + self.max_seconds)
        samples = audio.read(Path(source.content), SAMPLE_RATE, start, end)
        samples = samples - samples.mean()
        samples = np.append(samples[:1], samples[1:] - PREEMPHASIS * samples[:-1]).astype(np.float32)
        decibels = audio.log_mel_spectrogram(samples, SAMPLE_RATE, self.n_mels, WINDOW, HOP)
        return (decibels - decibels.max()).clamp_min(DB_FLOOR)  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.input_norm(inputs, mask).transpose(1, 2)  # (N, mels, frames)
        for index, convolution in enumerate(self.convolutions):
            x = convolution(x, mask)
            if index:
                x, mask = masked_max_pool(x, mask)
        return x.transpose(1, 2), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return time_spans(source, parts, 2 ** (len(KERNELS) - 1) * HOP / SAMPLE_RATE, first_centre=0.0)


class ItemNorm(nn.Module):
    """Each item by its own mean and deviation over all real bins, then one learned scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, L, bins) and (N, L) -> (N, L, bins)."""
        mask3d = mask[:, :, None]
        count = mask3d.sum(dim=(1, 2), keepdim=True).clamp_min(1) * x.shape[2]
        # In float64: the order in which a sum is taken changes with the padding, and must not be seen.
        x64 = x.double().masked_fill(~mask3d, 0)
        mean = x64.sum(dim=(1, 2), keepdim=True) / count
        variance = ((x64 - mean) * mask3d).square().sum(dim=(1, 2), keepdim=True) / count
        return ((x64 - mean) / (variance + 1e-5).sqrt()).to(self.weight.dtype) * self.weight + self.bias


class MaskedBatchNorm(nn.Module):
    """The whole batch by one mean and deviation over all real bins of all items; running ones when not training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, L, bins) and (N, L) -> (N, L, bins)."""
        normalised = self.norm(x[mask].reshape(-1, 1)).reshape(-1, x.shape[2])
        return torch.zeros_like(x).masked_scatter(mask[:, :, None], normalised)
