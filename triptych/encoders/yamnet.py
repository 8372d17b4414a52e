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

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.convolution import SameConvolution
from triptych.encoders.places import steps
from triptych.encoders.weights import only_shape, read_checked
from triptych.errors import CheckpointError, check_range
from triptych.media import audio

RATE, WINDOW, HOP, BINS, MELS = 16_000, 400, 160, 512, 64  # 25 ms windows every 10 ms
PATCH, PATCH_HOP = 96, 48  # frames: 0.96 s every 0.48 s
FLOOR = 0.001  # log(mel + 0.001)
# MobileNet's convolutions: after the first, each is one filter a channel and then a 1 × 1.
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
WIDTH, CLASSES = CHANNELS[-1], 521
AT_ONCE = 64  # patches through the network at a time: more would leave the caches

WEIGHTS = "yamnet.safetensors"
SHA256 = "afe67091b4be65337a67b7290077455df06afdea3f7484694e79068db971d7d7"
OWN_VARIABLE, DATA_VARIABLE = "TRIPTYCH_YAMNET", "TRIPTYCH_DATA"
ADVICE = f"give the path of {WEIGHTS} as the setting `weights`, or in the environment variable {OWN_VARIABLE}"


class YAMNet(Encoder):
    """Any sound through a network that was taught the 521 classes of AudioSet: one part for each 0.48 s.

    parts_t = mean over time and bands of mobilenet(log(mel_t + 0.001));  classify = mean_t sigmoid(W · parts_t + b)

    Source: Plakal & Ellis 2020 (tensorflow/models, yamnet); Howard et al. 2017 (MobileNet).
    Use when: sounds are of everyday things, and there are too few of them, or too little time, to learn to hear.
    Beware: it hears up to 8 kHz, and `seconds` from the start of a longer file; what is shorter than 0.96 s is
    filled up with silence; `classify` means AudioSet's classes only while `frozen`.
    """

    modality = "audio"
    kind = "moment"
    width = WIDTH
    frozen = True
    origin = f"YAMNet, AudioSet; weights from a file {WEIGHTS}"

    def __init__(self, weights: str = "", seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        check_range("yamnet: seconds", seconds, 0.05, 3600)
        self.weights, self.seconds, self.frozen = weights, seconds, frozen
        layers = [SameConvolution(1, CHANNELS[0], 3, stride=2)]
        for (before, after), stride in zip(pairwise(CHANNELS), STRIDES, strict=True):
            layers += [SameConvolution(before, before, 3, stride, groups=before), SameConvolution(before, after)]
        self.layers = nn.ModuleList(layers)
        # The teacher's, never trained: no parameters.
        self.register_buffer("class_weight", torch.zeros(CLASSES, WIDTH), persistent=False)
        self.register_buffer("class_bias", torch.zeros(CLASSES), persistent=False)
        self.class_weight: Tensor
        self.class_bias: Tensor
        if not only_shape():
            self._take(load(read_checked(self._file(), SHA256)))

    @classmethod
    def missing(cls) -> str | None:
        path = _known_place()
        if path is None:
            return f"its weights are missing: {ADVICE}"
        return None if path.is_file() else f"{path}: no such file; {ADVICE}"

    def prepare(self, source: Source) -> Tensor:
        start = source.start or 0.0
        end = start + self.seconds if source.end is None else min(source.end, start + self.seconds)
        samples = torch.from_numpy(audio.read(Path(source.content), RATE, start, end))
        # Silence at the end makes whole patches, and one at the least.
        shortest, hop = WINDOW + (PATCH - 1) * HOP, PATCH_HOP * HOP
        patches = 1 + max(0, math.ceil((len(samples) - shortest) / hop))
        samples = F.pad(samples, (0, shortest + (patches - 1) * hop - len(samples)))
        frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW)  # (frames, 400)
        mel = torch.fft.rfft(frames, BINS).abs() @ self._mel  # (frames, mels)
        return torch.log(mel + FLOOR).unfold(0, PATCH, PATCH_HOP).transpose(1, 2).contiguous()  # (patches, 96, 64)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_exporting():  # an exported graph cannot pick out what is real: padding is computed too
            return self._embed(inputs.flatten(0, 1)).view(*mask.shape, WIDTH), mask
        found = torch.cat([self._embed(patches) for patches in inputs[mask].split(AT_ONCE)])
        return found.new_zeros(*mask.shape, WIDTH).masked_scatter(mask.unsqueeze(2), found), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        length = (WINDOW + (PATCH - 1) * HOP) / RATE
        return steps(source, parts, PATCH_HOP * HOP / RATE, first=length / 2, length=length)

    def classify(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """How sure it is of each of AudioSet's classes, on average over the moments: (N, 521)."""
        parts, mask = self(inputs, mask)
        scores = F.linear(parts, self.class_weight, self.class_bias).sigmoid() * mask.unsqueeze(2)
        return scores.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)

    def classes(self) -> tuple[str, ...]:
        """The names of AudioSet's classes, in the order of `classify`, from the class map beside the weights."""
        path = self._file().with_name("yamnet_class_map.csv")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return tuple(row["display_name"] for row in csv.DictReader(file))
        except (OSError, KeyError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: the names of the classes cannot be read ({error}); put it there") from error

    def _embed(self, patches: Tensor) -> Tensor:
        x = patches.unsqueeze(1).contiguous(memory_format=torch.channels_last)  # (patches, 1, 96, 64)
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return x.mean(dim=(2, 3))  # (patches, width)

    def _file(self) -> Path:
        path = Path(self.weights).expanduser() if self.weights else _known_place()
        if path is None:
            raise CheckpointError(f"yamnet: its weights are missing: {ADVICE}")
        return path

    def _take(self, given: dict[str, Tensor]) -> None:
        """The known file's weights; its layers are numbered in order."""
        for number, layer in enumerate(self.layers):
            name = f"{number:02}.{'depthwise_conv_2d' if number % 2 else 'conv_2d'}"
            layer.load_state_dict({kind: given[f"{name}.{kind}"] for kind in ("weight", "bias")})
        self.class_weight.copy_(given[f"{len(self.layers)}.fully_connected.weight"])
        self.class_bias.copy_(given[f"{len(self.layers)}.fully_connected.bias"])
        self._mel = given["mel.weight"]  # stays on the CPU, where sounds are prepared


def _known_place() -> Path | None:
    """Where the environment says the weights are; what its own variable names may not be there."""
    if own := os.environ.get(OWN_VARIABLE):
        return Path(own).expanduser()
    if data := os.environ.get(DATA_VARIABLE):
        path = Path(data).expanduser() / "yamnet" / WEIGHTS
        return path if path.is_file() else None
    return None
