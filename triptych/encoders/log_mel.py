"""Log-mel spectrograms as the input of audio encoders that are trained from scratch."""

from __future__ import annotations

from torch import Tensor

from triptych.errors import check_range
from triptych.interfaces import Source
from triptych.media import audio

DB_OFFSET, DB_SCALE = -40.0, 40.0  # the input of the network is (dB + 40) / 40, which is between about -1.5 and 2


class LogMelInput:
    """Computes the log-mel frames of a source. Error messages start with the name `encoder`."""

    def __init__(
        self, encoder: str, sample_rate: int, n_mels: int, hop_ms: float, max_seconds: float, min_mels: int
    ) -> None:
        check_range(f"{encoder}: sample_rate", sample_rate, 1000, 768_000)
        check_range(f"{encoder}: n_mels", n_mels, min_mels, 512)
        check_range(f"{encoder}: hop_ms", hop_ms, 1000 / sample_rate, 1000)
        check_range(f"{encoder}: max_seconds", max_seconds, 0.05, 3600)
        self.sample_rate, self.n_mels, self.max_seconds = sample_rate, n_mels, max_seconds
        self.hop_length = round(sample_rate * hop_ms / 1000)
        self.frame_seconds = self.hop_length / sample_rate

    def prepare(self, source: Source) -> Tensor:
        """Return the scaled frames of a source: (frames, mels)."""
        samples = audio.read_source(source, self.sample_rate, self.max_seconds)
        hop = self.hop_length
        decibels = audio.log_mel_spectrogram(samples, self.sample_rate, self.n_mels, 4 * hop, hop)
        return (decibels - DB_OFFSET) / DB_SCALE
