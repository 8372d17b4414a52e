"""A spectrogram through 1-D convolutions along time, trained from scratch; its parts are moments in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.places import steps
from triptych.encoders.temporal import TimeConvolution, halve
from triptych.errors import RecipeError, check_range
from triptych.media import audio

KERNELS = (11, 5, 3)
QUIET, SPAN = -40.0, 40.0  # dB that become 0, and dB that become 1 more


class AudioConv1d(Encoder):
    """Log-mel frames through three convolutions along time, in which the bands are channels; each halves time.

    parts = halve(relu(norm(conv_3(halve(relu(norm(conv_5(halve(relu(norm(conv_11(mel)))))))))))),  one per 8 · hop_ms

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's sound network); layers, widths and the norm of each
    moment alone are ours.
    Use when: as the sound side of `distill`, under layers that all modalities share.
    Beware: a part does not know when it is, and the same sound at another pitch is another sound to it.
    """

    modality = "audio"
    kind = "moment"

    def __init__(
        self, width: int = 128, rate: int = 16_000, mels: int = 64, hop_ms: float = 10.0, seconds: float = 10.0
    ) -> None:
        super().__init__()
        check_range("audio_conv1d: width", width, 2, 8192)
        check_range("audio_conv1d: rate", rate, 1000, 768_000)
        check_range("audio_conv1d: mels", mels, 8, 512)
        check_range("audio_conv1d: hop_ms", hop_ms, 1000 / rate, 1000)
        check_range("audio_conv1d: seconds", seconds, 0.05, 3600)
        if width % 2:
            raise RecipeError(f"audio_conv1d: width = {width}: must be even")
        self.width, self.rate, self.mels, self.hop_ms, self.seconds = width, rate, mels, hop_ms, seconds
        self.hop = round(rate * hop_ms / 1000)
        channels = (mels, width // 2, width, width)
        self.convolutions = nn.ModuleList(
            TimeConvolution(channels[i], channels[i + 1], kernel, norm=True) for i, kernel in enumerate(KERNELS)
        )

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.seconds if source.end is None else min(source.end, start + self.seconds)
        samples = audio.read(Path(source.content), self.rate, start, end)
        decibels = audio.log_mel(samples, self.rate, self.mels, 4 * self.hop, self.hop)
        return (decibels - QUIET) / SPAN  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.transpose(1, 2)  # (N, mels, frames)
        for convolution in self.convolutions:
            x, mask = halve(convolution(x, mask), mask)
        return x.transpose(1, 2), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        return steps(source, parts, 2 ** len(KERNELS) * self.hop / self.rate, first=0.0)
