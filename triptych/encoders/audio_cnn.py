"""A small convolutional network over log-mel frames, trained from scratch; its parts are moments in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.places import steps
from triptych.errors import RecipeError, check_range
from triptych.media import audio

PATCH, TIME_STRIDES, MEL_STRIDES = 4, (1, 2, 1), (2, 2, 1)  # 8 frames to a part; mel bands 16 to 1
QUIET, SPAN = -40.0, 40.0  # dB that become 0, and dB that become 1 more: keeps inputs near [-1.5, 2]


class AudioCNN(Encoder):
    """Log-mel patches through three convolutions, then one vector for every eight frames, which knows when it is.

    parts_t = norm(W·conv(mel)_t) + position(t),  one part per 8 · hop_ms

    Source: the common log-mel CNN, made small.
    Use when: there are thousands of sounds and no pretrained network suits them.
    Beware: `seconds` is the longest piece it hears at once; a longer file is heard from its start in training,
    and in moments of that length when it is indexed.
    """

    modality = "audio"
    kind = "moment"

    def __init__(
        self, width: int = 128, rate: int = 16_000, mels: int = 64, hop_ms: float = 16.0, seconds: float = 10.0
    ) -> None:
        super().__init__()
        check_range("audio_cnn: width", width, 8, 8192)
        check_range("audio_cnn: rate", rate, 1000, 768_000)
        check_range("audio_cnn: mels", mels, 16, 512)
        check_range("audio_cnn: hop_ms", hop_ms, 1000 / rate, 1000)
        check_range("audio_cnn: seconds", seconds, 0.05, 3600)
        if mels % 16:
            raise RecipeError(f"audio_cnn: mels = {mels}: must be a multiple of 16")
        if width % 8:
            raise RecipeError(f"audio_cnn: width = {width}: must be a multiple of 8")
        self.width, self.rate, self.mels, self.hop_ms, self.seconds = width, rate, mels, hop_ms, seconds
        self.hop = round(rate * hop_ms / 1000)
        self.patches = nn.Conv2d(1, width // 4, PATCH, stride=PATCH)
        channels = (width // 4, width // 2, width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=(TIME_STRIDES[i], MEL_STRIDES[i]), padding=1)
            for i in range(3)
        )
        self.out = nn.Linear(width * mels // 16, width)
        self.norm = nn.LayerNorm(width)  # of each moment alone: neither padding nor neighbours matter
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        # Convolutions on a CPU are two to four times faster so.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.seconds if source.end is None else min(source.end, start + self.seconds)
        samples = audio.read(Path(source.content), self.rate, start, end)
        decibels = audio.log_mel(samples, self.rate, self.mels, 4 * self.hop, self.hop)
        return (decibels - QUIET) / SPAN  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # Zeroing what is padding before each convolution makes it look like the convolution's own border.
        x = F.pad(inputs * mask[:, :, None], (0, 0, 0, -inputs.shape[1] % PATCH)).unsqueeze(1)  # (N, 1, frames, mels)
        x, mask = F.gelu(self.patches(x)), mask[:, ::PATCH]
        for convolution, stride in zip(self.convolutions, TIME_STRIDES, strict=True):
            x = F.gelu(convolution(x * mask[:, None, :, None]))
            mask = mask[:, ::stride]
        parts = self.norm(self.out(x.permute(0, 2, 3, 1).flatten(2)))  # (N, P, width)
        parts = parts + sinusoids(parts.shape[1], self.width, parts)
        return parts + self.mix(parts), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        frame = self.hop / self.rate
        # The middle of a patch; the convolutions' strides start at the first one.
        return steps(source, parts, PATCH * math.prod(TIME_STRIDES) * frame, first=(PATCH - 1) / 2 * frame)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Position codes (length, width): sines and cosines of geometrically spaced wavelengths."""
    place = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-math.log(1000.0) / width))
    return torch.cat([torch.sin(place * rates), torch.cos(place * rates)], dim=1)
