"""1-D convolutions along time over log-mel frames, trained from scratch; parts are frames."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from triptych.encoders.log_mel import LogMelInput
from triptych.encoders.part_locations import time_spans
from triptych.encoders.temporal import MaskedConv1d, masked_max_pool
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source

KERNELS = (11, 5, 3)


class AudioConv1d(Encoder):
    """Three 1-D convolutions over log-mel frames, with mel bands as channels. Each layer halves the number of frames.

    parts = pool(relu(norm(conv_3(pool(relu(norm(conv_5(pool(relu(norm(conv_11(mel)))))))))))),  one per 8 · hop_ms

    Source: Aytar et al. 2017 (See, Hear, and Read: the audio network of the student). The numbers of layers and
    channels and the norm per frame are choices of triptych.
    Use when: you train with the objective `distill`, and all modalities share layers (space.shared_hidden_dim).
    Beware: parts have no positional encoding. A change of pitch changes the parts.
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
        self.log_mel = LogMelInput("audio_conv1d", sample_rate, n_mels, hop_ms, max_seconds, min_mels=8)
        if feature_dim % 2:
            raise RecipeError(f"audio_conv1d: feature_dim = {feature_dim}: must be even")
        self.feature_dim, self.sample_rate, self.n_mels = feature_dim, sample_rate, n_mels
        self.hop_ms, self.max_seconds = hop_ms, max_seconds
        channels = (n_mels, feature_dim // 2, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            MaskedConv1d(channels[i], channels[i + 1], kernel, norm=True) for i, kernel in enumerate(KERNELS)
        )

    def prepare(self, source: Source) -> Tensor:
        return self.log_mel.prepare(source)  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.transpose(1, 2)  # (N, mels, frames)
        for convolution in self.convolutions:
            x, mask = masked_max_pool(convolution(x, mask), mask)
        return x.transpose(1, 2), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return time_spans(source, parts, 2 ** len(KERNELS) * self.log_mel.frame_seconds, first_centre=0.0)
