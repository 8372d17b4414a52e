"""A small convolutional network over log-mel frames, trained from scratch; its parts are moments in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.part_locations import time_spans
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

PATCH, TIME_STRIDES, MEL_STRIDES = 4, (1, 2, 1), (2, 2, 1)  # 8 frames to a part; mel bands 16 to 1
DB_OFFSET, DB_SCALE = -40.0, 40.0  # dB that become 0, and dB that become 1 more: keeps inputs near [-1.5, 2]


class AudioCNN(Encoder):
    """Log-mel patches through three convolutions, then one vector for every eight frames, which knows when it is.

    parts_t = norm(W·conv(mel)_t) + position(t),  one part per 8 · hop_ms

    Source: the common log-mel CNN, made small.
    Use when: there are thousands of sounds and no pretrained network suits them.
    Beware: `max_seconds` is the longest piece it hears at once; a longer file is heard from its start in training,
    and in moments of that length when it is indexed.
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
        check_range("audio_cnn: sample_rate", sample_rate, 1000, 768_000)
        check_range("audio_cnn: n_mels", n_mels, 16, 512)
        check_range("audio_cnn: hop_ms", hop_ms, 1000 / sample_rate, 1000)
        check_range("audio_cnn: max_seconds", max_seconds, 0.05, 3600)
        if n_mels % 16:
            raise RecipeError(f"audio_cnn: n_mels = {n_mels}: must be a multiple of 16")
        if feature_dim % 8:
            raise RecipeError(f"audio_cnn: feature_dim = {feature_dim}: must be a multiple of 8")
        self.feature_dim, self.sample_rate, self.n_mels, self.hop_ms, self.max_seconds = (
            feature_dim,
            sample_rate,
            n_mels,
            hop_ms,
            max_seconds,
        )
        self.hop_length = round(sample_rate * hop_ms / 1000)
        self.patch_convolution = nn.Conv2d(1, feature_dim // 4, PATCH, stride=PATCH)
        channels = (feature_dim // 4, feature_dim // 2, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=(TIME_STRIDES[i], MEL_STRIDES[i]), padding=1)
            for i in range(3)
        )
        self.projection = nn.Linear(feature_dim * n_mels // 16, feature_dim)
        self.norm = nn.LayerNorm(feature_dim)  # of each moment alone: neither padding nor neighbours matter
        self.mlp = nn.Sequential(
            nn.Linear(feature_dim, 2 * feature_dim), nn.GELU(), nn.Linear(2 * feature_dim, feature_dim)
        )
        # Convolutions on a CPU are two to four times faster so.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.max_seconds if source.end is None else min(source.end, start + self.max_seconds)
        samples = audio.read(Path(source.content), self.sample_rate, start, end)
        decibels = audio.log_mel_spectrogram(
            samples, self.sample_rate, self.n_mels, 4 * self.hop_length, self.hop_length
        )
        return (decibels - DB_OFFSET) / DB_SCALE  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # Zeroing what is padding before each convolution makes it look like the convolution's own border.
        x = F.pad(inputs * mask[:, :, None], (0, 0, 0, -inputs.shape[1] % PATCH)).unsqueeze(1)  # (N, 1, frames, mels)
        x, mask = F.gelu(self.patch_convolution(x)), mask[:, ::PATCH]
        for convolution, stride in zip(self.convolutions, TIME_STRIDES, strict=True):
            x = F.gelu(convolution(x * mask[:, None, :, None]))
            mask = mask[:, ::stride]
        parts = self.norm(self.projection(x.permute(0, 2, 3, 1).flatten(2)))  # (N, P, width)
        parts = parts + sinusoidal_positions(parts.shape[1], self.feature_dim, parts)
        return parts + self.mlp(parts), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        frame = self.hop_length / self.sample_rate
        # The middle of a patch; the convolutions' strides start at the first one.
        return time_spans(source, parts, PATCH * math.prod(TIME_STRIDES) * frame, first_centre=(PATCH - 1) / 2 * frame)


def sinusoidal_positions(length: int, dim: int, like: Tensor) -> Tensor:
    """Position codes (length, width): sines and cosines of geometrically spaced wavelengths."""
    position = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    frequencies = torch.exp(torch.arange(0, dim, 2, device=like.device, dtype=like.dtype) * (-math.log(1000.0) / dim))
    return torch.cat([torch.sin(position * frequencies), torch.cos(position * frequencies)], dim=1)
