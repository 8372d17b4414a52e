"""A spectrogram through 1-D convolutions along time, trained from scratch; its parts are moments in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from triptych.encoders.part_locations import time_spans
from triptych.encoders.temporal import MaskedConv1d, masked_max_pool
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

KERNELS = (11, 5, 3)
DB_OFFSET, DB_SCALE = -40.0, 40.0  # dB that become 0, and dB that become 1 more


class AudioConv1d(Encoder):
    """Log-mel frames through three convolutions along time, in which the bands are channels; each halves time.

    parts = halve(relu(norm(conv_3(halve(relu(norm(conv_5(halve(relu(norm(conv_11(mel)))))))))))),  one per 8 · hop_ms

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's sound network); layers, widths and the norm of each
    moment alone are ours.
    Use when: as the sound side of `distill`, under layers that all modalities share.
    Beware: a part does not know when it is, and the same sound at another pitch is another sound to it.
    """

    modality = "audio"
    part_name = "frame"

    def __init__(
        self,
        feature_dim: int = 128,
        sample_rate: int = 16_000,
        n_mels: int = 64,
        hop_ms: float = 10.0,
        max_seconds: float = 10.0,
    ) -> None:
        super().__init__()
        check_range("audio_conv1d: feature_dim", feature_dim, 2, 8192)
        check_range("audio_conv1d: sample_rate", sample_rate, 1000, 768_000)
        check_range("audio_conv1d: n_mels", n_mels, 8, 512)
        check_range("audio_conv1d: hop_ms", hop_ms, 1000 / sample_rate, 1000)
        check_range("audio_conv1d: max_seconds", max_seconds, 0.05, 3600)
        if feature_dim % 2:
            raise RecipeError(f"audio_conv1d: feature_dim = {feature_dim}: must be even")
        self.feature_dim, self.sample_rate, self.n_mels, self.hop_ms, self.max_seconds = (
            feature_dim,
            sample_rate,
            n_mels,
            hop_ms,
            max_seconds,
        )
        self.hop_length = round(sample_rate * hop_ms / 1000)
        channels = (n_mels, feature_dim // 2, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            MaskedConv1d(channels[i], channels[i + 1], kernel, norm=True) for i, kernel in enumerate(KERNELS)
        )

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.max_seconds if source.end is None else min(source.end, start + self.max_seconds)
        samples = audio.read(Path(source.content), self.sample_rate, start, end)
        decibels = audio.log_mel_spectrogram(
            samples, self.sample_rate, self.n_mels, 4 * self.hop_length, self.hop_length
        )
        return (decibels - DB_OFFSET) / DB_SCALE  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.transpose(1, 2)  # (N, mels, frames)
        for convolution in self.convolutions:
            x, mask = masked_max_pool(convolution(x, mask), mask)
        return x.transpose(1, 2), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return time_spans(source, parts, 2 ** len(KERNELS) * self.hop_length / self.sample_rate, first_centre=0.0)
