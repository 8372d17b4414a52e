"""YAMNet, trained on AudioSet; its parts are moments of 0.96 s, one every 0.48 s."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from triptych.encoders.convolution import Conv2dSame
from triptych.encoders.part_locations import time_spans
from triptych.encoders.weights import is_meta_device, read_verified
from triptych.errors import CheckpointError, check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

SAMPLE_RATE, WINDOW, HOP, FFT_SIZE, N_MELS = 16_000, 400, 160, 512, 64  # 25 ms windows every 10 ms
PATCH, PATCH_HOP = 96, 48  # frames: 0.96 s every 0.48 s
LOG_OFFSET = 0.001  # log(mel + 0.001)
# MobileNet's convolutions: after the first, each is one filter a channel and then a 1 × 1.
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
FEATURE_DIM, NUM_CLASSES = CHANNELS[-1], 521
FORWARD_CHUNK = 64  # patches through the network at a time: more would leave the caches

WEIGHTS_FILE = "yamnet.safetensors"
SHA256 = "afe67091b4be65337a67b7290077455df06afdea3f7484694e79068db971d7d7"
WEIGHTS_VARIABLE, DATA_VARIABLE = "TRIPTYCH_YAMNET", "TRIPTYCH_DATA"
INSTALL_HINT = (
    f"give the path of {WEIGHTS_FILE} as the setting `weights`, or in the environment variable {WEIGHTS_VARIABLE}"
)


class YAMNet(Encoder):
    """Any sound through a network that was taught the 521 classes of AudioSet: one part for each 0.48 s.

    parts_t = mean over time and bands of mobilenet(log(mel_t + 0.001));  classify = mean_t sigmoid(W · parts_t + b)

    Source: Plakal & Ellis 2020 (tensorflow/models, yamnet); Howard et al. 2017 (MobileNet).
    Use when: sounds are of everyday things, and there are too few of them, or too little time, to learn to hear.
    Beware: it hears up to 8 kHz, and `max_seconds` from the start of a longer file; what is shorter than 0.96 s is
    filled up with silence; `classify` means AudioSet's classes only while `frozen`.
    """

    modality = "audio"
    part_name = "frame"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = f"YAMNet, AudioSet; weights from a file {WEIGHTS_FILE}"

    def __init__(self, weights: str = "", max_seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        check_range("yamnet: max_seconds", max_seconds, 0.05, 3600)
        self.weights, self.max_seconds, self.frozen = weights, max_seconds, frozen
        layers = [Conv2dSame(1, CHANNELS[0], 3, stride=2)]
        for (in_channels, out_channels), stride in zip(pairwise(CHANNELS), STRIDES, strict=True):
            layers += [
                Conv2dSame(in_channels, in_channels, 3, stride, groups=in_channels),
                Conv2dSame(in_channels, out_channels),
            ]
        self.layers = nn.ModuleList(layers)
        # The teacher's, never trained: no parameters.
        self.register_buffer("class_weight", torch.zeros(NUM_CLASSES, FEATURE_DIM), persistent=False)
        self.register_buffer("class_bias", torch.zeros(NUM_CLASSES), persistent=False)
        self.class_weight: Tensor
        self.class_bias: Tensor
        if not is_meta_device():
            self._load_published_weights(load(read_verified(self._weights_path(), SHA256)))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        path = _weights_path_from_environment()
        if path is None:
            return f"its weights are missing: {INSTALL_HINT}"
        return None if path.is_file() else f"{path}: no such file; {INSTALL_HINT}"

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.max_seconds if source.end is None else min(source.end, start + self.max_seconds)
        samples = torch.from_numpy(audio.read(Path(source.content), SAMPLE_RATE, start, end))
        # Silence at the end makes whole patches, and one at the least.
        min_samples, hop = WINDOW + (PATCH - 1) * HOP, PATCH_HOP * HOP
        patches = 1 + max(0, math.ceil((len(samples) - min_samples) / hop))
        samples = F.pad(samples, (0, min_samples + (patches - 1) * hop - len(samples)))
        frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW)  # (frames, 400)
        mel = torch.fft.rfft(frames, FFT_SIZE).abs() @ self._mel_weights  # (frames, mels)
        return torch.log(mel + LOG_OFFSET).unfold(0, PATCH, PATCH_HOP).transpose(1, 2).contiguous()  # (patches, 96, 64)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_exporting():  # an exported graph cannot pick out what is real: padding is computed too
            return self._embed_patches(inputs.flatten(0, 1)).view(*mask.shape, FEATURE_DIM), mask
        embedded = torch.cat([self._embed_patches(patches) for patches in inputs[mask].split(FORWARD_CHUNK)])
        return embedded.new_zeros(*mask.shape, FEATURE_DIM).masked_scatter(mask.unsqueeze(2), embedded), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        duration = (WINDOW + (PATCH - 1) * HOP) / SAMPLE_RATE
        return time_spans(source, parts, PATCH_HOP * HOP / SAMPLE_RATE, first_centre=duration / 2, duration=duration)

    def classify(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """How sure it is of each of AudioSet's classes, on average over the moments: (N, 521)."""
        parts, mask = self(inputs, mask)
        scores = F.linear(parts, self.class_weight, self.class_bias).sigmoid() * mask.unsqueeze(2)
        return scores.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)

    def class_names(self) -> tuple[str, ...]:
        """The names of AudioSet's classes, in the order of `classify`, from the class map beside the weights."""
        path = self._weights_path().with_name("yamnet_class_map.csv")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return tuple(row["display_name"] for row in csv.DictReader(file))
        except (OSError, KeyError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: the names of the classes cannot be read ({error}); put it there") from error

    def _embed_patches(self, patches: Tensor) -> Tensor:
        x = patches.unsqueeze(1).contiguous(memory_format=torch.channels_last)  # (patches, 1, 96, 64)
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return x.mean(dim=(2, 3))  # (patches, width)

    def _weights_path(self) -> Path:
        path = Path(self.weights).expanduser() if self.weights else _weights_path_from_environment()
        if path is None:
            raise CheckpointError(f"yamnet: its weights are missing: {INSTALL_HINT}")
        return path

    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        """The known file's weights; its layers are numbered in order."""
        for index, layer in enumerate(self.layers):
            name = f"{index:02}.{'depthwise_conv_2d' if index % 2 else 'conv_2d'}"
            layer.load_state_dict(
                {tensor_name: published[f"{name}.{tensor_name}"] for tensor_name in ("weight", "bias")}
            )
        self.class_weight.copy_(published[f"{len(self.layers)}.fully_connected.weight"])
        self.class_bias.copy_(published[f"{len(self.layers)}.fully_connected.bias"])
        self._mel_weights = published["mel.weight"]  # stays on the CPU, where sounds are prepared


def _weights_path_from_environment() -> Path | None:
    """Where the environment says the weights are; what its own variable names may not be there."""
    if weights_path := os.environ.get(WEIGHTS_VARIABLE):
        return Path(weights_path).expanduser()
    if data_folder := os.environ.get(DATA_VARIABLE):
        path = Path(data_folder).expanduser() / "yamnet" / WEIGHTS_FILE
        return path if path.is_file() else None
    return None
