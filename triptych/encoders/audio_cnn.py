"""A small CNN over log-mel frames, trained from scratch; parts are frames."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.log_mel import LogMelInput
from triptych.encoders.part_locations import time_spans
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source

# The strides reduce 8 frames to one part, and 16 mel bands to one band.
PATCH, TIME_STRIDES, MEL_STRIDES = 4, (1, 2, 1), (2, 2, 1)


class AudioCNN(Encoder):
    """A patch convolution and three 3 × 3 convolutions over log-mel frames, with positional encoding.

    parts_t = norm(W·conv(mel)_t) + position(t),  one part t per 8 · hop_ms of audio

    Source: a small version of common log-mel CNNs.
    Use when: you have thousands of audio files, and no pretrained network suits them.
    Beware: if a file is longer than `max_seconds`, training uses only the start of the file. Indexing splits the file
    into segments of `max_seconds`.
    """

    modality = "audio"
    part_name = "frame"

    def __init__(
        self,
        feature_dim: int = 128,
        sample_rate: int = 16_000,
        n_mels: int = 64,
        hop_ms: float = 16.0,
        max_seconds: float = 10.0,
    ) -> None:
        super().__init__()
        check_range("audio_cnn: feature_dim", feature_dim, 8, 8192)
        self.log_mel = LogMelInput("audio_cnn", sample_rate, n_mels, hop_ms, max_seconds, min_mels=16)
        if n_mels % 16:
            raise RecipeError(f"audio_cnn: n_mels = {n_mels}: must be a multiple of 16")
        if feature_dim % 8:
            raise RecipeError(f"audio_cnn: feature_dim = {feature_dim}: must be a multiple of 8")
        self.feature_dim, self.sample_rate, self.n_mels = feature_dim, sample_rate, n_mels
        self.hop_ms, self.max_seconds = hop_ms, max_seconds
        self.patch_convolution = nn.Conv2d(1, feature_dim // 4, PATCH, stride=PATCH)
        channels = (feature_dim // 4, feature_dim // 2, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=(TIME_STRIDES[i], MEL_STRIDES[i]), padding=1)
            for i in range(3)
        )
        self.projection = nn.Linear(feature_dim * n_mels // 16, feature_dim)
        # Normalises each frame separately, so that parts do not depend on padding or on other items.
        self.norm = nn.LayerNorm(feature_dim)
        self.mlp = nn.Sequential(
            nn.Linear(feature_dim, 2 * feature_dim), nn.GELU(), nn.Linear(2 * feature_dim, feature_dim)
        )
        # On a CPU, convolutions in the memory format channels_last are two to four times as fast.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        return self.log_mel.prepare(source)  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # Padding frames are set to 0 before each convolution, so that the result does not depend on padding.
        x = F.pad(inputs * mask[:, :, None], (0, 0, 0, -inputs.shape[1] % PATCH)).unsqueeze(1)  # (N, 1, frames, mels)
        x, mask = F.gelu(self.patch_convolution(x)), mask[:, ::PATCH]
        for convolution, stride in zip(self.convolutions, TIME_STRIDES, strict=True):
            x = F.gelu(convolution(x * mask[:, None, :, None]))
            mask = mask[:, ::stride]
        parts = self.norm(self.projection(x.permute(0, 2, 3, 1).flatten(2)))  # (N, P, feature_dim)
        parts = parts + sinusoidal_positions(parts.shape[1], self.feature_dim, parts)
        return parts + self.mlp(parts), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        # Part 0 is centred on the middle of the first patch, because the strided convolutions start at the first patch.
        frame = self.log_mel.frame_seconds
        return time_spans(source, parts, PATCH * math.prod(TIME_STRIDES) * frame, first_centre=(PATCH - 1) / 2 * frame)


def sinusoidal_positions(length: int, dim: int, like: Tensor) -> Tensor:
    """Return the sinusoidal positional encoding (length, dim), in the dtype and on the device of `like`."""
    position = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    frequencies = torch.exp(torch.arange(0, dim, 2, device=like.device, dtype=like.dtype) * (-math.log(1000.0) / dim))
    return torch.cat([torch.sin(position * frequencies), torch.cos(position * frequencies)], dim=1)
