"""1-D convolutions with long kernels for spoken captions, trained from scratch. Parts are frames of 160 ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from triptych.encoders.part_locations import time_spans
from triptych.encoders.temporal import MaskedConv1d, masked_max_pool
from triptych.errors import RecipeError, check_range, describe_unknown
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

SAMPLE_RATE, WINDOW, HOP = 16_000, 400, 160  # in Hz and samples: a window of 25 ms starts every 10 ms
# The coefficient of the pre-emphasis filter, and the floor in dB relative to the maximum of the item.
PREEMPHASIS, DB_FLOOR = 0.97, -80.0
KERNELS = (1, 11, 17, 17, 17)
CHANNEL_DIVISORS = (8, 4, 2, 2, 1)  # layer i has feature_dim / CHANNEL_DIVISORS[i] channels

Norm = Literal["item", "batch"]


class SpeechCNN(Encoder):
    """Five 1-D convolutions over log-mel frames, with mel bands as channels. Layers 2 to 5 halve the number of frames.

    parts = pool(relu(conv_17(… pool(relu(conv_11(relu(conv_1(norm(mel))))))))),  one part per 16 frames of 10 ms
    norm = item normalises by the mean and standard deviation over all bins of the item. norm = batch normalises by the
    mean and standard deviation of the batch in training, and by running averages otherwise. Both norms then apply a
    learned scale and shift.

    Source: Harwath et al. 2019 (DAVEnet's audio network: feature_dim 1024, norm = batch).
    Use when: the audio is speech that describes images, and there are tens of thousands of captions.
    Beware: with feature_dim = 1024, the network has 16 million weights and needs 4 billion multiplications for 10 s of
    audio. With feature_dim = 256, the network has 1 million weights and needs 0.25 billion multiplications. The setting
    norm = item is not in the paper. With norm = batch, the embedding of an item in training depends on the other items
    of the batch. The original DAVEnet uses a Hamming window, mel bands from 20 Hz and padding with the maximum. This
    encoder uses a Hann window, mel bands from 0 Hz and masked padding.
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
        samples = audio.read_source(source, SAMPLE_RATE, self.max_seconds)
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
    """Normalise each item by the mean and standard deviation of its real bins, then apply a learned scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map spectrograms (N, L, bins) and a mask (N, L) to normalised spectrograms (N, L, bins)."""
        mask3d = mask[:, :, None]
        count = mask3d.sum(dim=(1, 2), keepdim=True).clamp_min(1) * x.shape[2]
        # The sums are in float64, because padding changes the order of summation, and so the rounding errors of
        # float32.
        x64 = x.double().masked_fill(~mask3d, 0)
        mean = x64.sum(dim=(1, 2), keepdim=True) / count
        variance = ((x64 - mean) * mask3d).square().sum(dim=(1, 2), keepdim=True) / count
        return ((x64 - mean) / (variance + 1e-5).sqrt()).to(self.weight.dtype) * self.weight + self.bias


class MaskedBatchNorm(nn.Module):
    """Normalise by the mean and standard deviation of all real bins of the batch; running averages in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map spectrograms (N, L, bins) and a mask (N, L) to normalised spectrograms (N, L, bins)."""
        normalised = self.norm(x[mask].reshape(-1, 1)).reshape(-1, x.shape[2])
        return torch.zeros_like(x).masked_scatter(mask[:, :, None], normalised)
