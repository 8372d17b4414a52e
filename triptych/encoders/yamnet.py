"""YAMNet, trained on AudioSet. Parts are frames of 0.96 s, and a frame starts every 0.48 s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.class_names import audioset_class_categories, audioset_class_names
from triptych.encoders.convolution import Conv2dSame
from triptych.encoders.part_locations import time_spans
from triptych.encoders.weights import WeightsFile, is_meta_device, parse_state_dict
from triptych.errors import check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

# In Hz and samples: a window of 25 ms starts every 10 ms.
SAMPLE_RATE, WINDOW, HOP, FFT_SIZE, N_MELS = 16_000, 400, 160, 512, 64
PATCH, PATCH_HOP = 96, 48  # in frames of 10 ms: a patch of 0.96 s starts every 0.48 s
LOG_OFFSET = 0.001  # the input of the network is log(mel + 0.001)
# The layers of MobileNet. After the first layer, each layer is a depthwise convolution and a 1 × 1 convolution.
CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
FEATURE_DIM, NUM_CLASSES = CHANNELS[-1], 521
# The classes of AudioSet that YAMNet does not predict.
OMITTED_CLASSES = {
    "Male speech, man speaking",
    "Female speech, woman speaking",
    "Battle cry",
    "Male singing",
    "Female singing",
    "Funny music",
}
# A forward pass processes 64 patches, because the activations of more patches do not fit into the CPU caches.
FORWARD_CHUNK = 64

WEIGHTS = WeightsFile(
    encoder="yamnet",
    digests={"yamnet.safetensors": "afe67091b4be65337a67b7290077455df06afdea3f7484694e79068db971d7d7"},
)


class YAMNet(Encoder):
    """A CNN pretrained on the 521 classes of AudioSet. The CNN returns one part per 0.48 s of audio.

    parts_t = mean over time and bands of mobilenet(log(mel_t + 0.001));  classify = mean_t sigmoid(W · parts_t + b)

    Source: Plakal & Ellis 2020 (tensorflow/models, yamnet); Howard et al. 2017 (MobileNet).
    Use when: you want to repeat results with YAMNet.
    Beware: `efficientat_mn04` is better and smaller (`bench/probe.py`). Audio is resampled to 16 kHz, so frequencies
    above 8 kHz are lost. If a file is longer than `max_seconds`, the encoder uses only the start of the file. Audio
    shorter than 0.96 s is padded with silence. With frozen = false, training changes the features, so that the class
    probabilities of `classify` become meaningless.
    """

    modality = "audio"
    part_name = "frame"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = "YAMNet, AudioSet; weights from a file yamnet.safetensors"
    weights_files = (WEIGHTS,)

    def __init__(self, max_seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        check_range("yamnet: max_seconds", max_seconds, 0.05, 3600)
        self.max_seconds, self.frozen = max_seconds, frozen
        layers = [Conv2dSame(1, CHANNELS[0], 3, stride=2)]
        for (in_channels, out_channels), stride in zip(pairwise(CHANNELS), STRIDES, strict=True):
            layers.append(Conv2dSame(in_channels, in_channels, 3, stride, groups=in_channels))
            layers.append(Conv2dSame(in_channels, out_channels))
        self.layers = nn.ModuleList(layers)
        # The weights of the classifier are buffers, not parameters, because the classifier is not trained.
        self.register_buffer("class_weight", torch.zeros(NUM_CLASSES, FEATURE_DIM), persistent=False)
        self.register_buffer("class_bias", torch.zeros(NUM_CLASSES), persistent=False)
        self.class_weight: Tensor
        self.class_bias: Tensor
        if not is_meta_device():
            self._load_published_weights(parse_state_dict(WEIGHTS.read()))

    def prepare(self, source: Source) -> Tensor:
        samples = torch.from_numpy(audio.read_source(source, SAMPLE_RATE, self.max_seconds))
        # Pad with silence to a multiple of the patch length.
        min_samples, hop = WINDOW + (PATCH - 1) * HOP, PATCH_HOP * HOP
        patches = 1 + max(0, math.ceil((len(samples) - min_samples) / hop))
        samples = F.pad(samples, (0, min_samples + (patches - 1) * hop - len(samples)))
        frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW)  # (frames, 400)
        mel = torch.fft.rfft(frames, FFT_SIZE).abs() @ self._mel_weights  # (frames, mels)
        return torch.log(mel + LOG_OFFSET).unfold(0, PATCH, PATCH_HOP).transpose(1, 2).contiguous()  # (patches, 96, 64)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_exporting():  # an exported graph cannot skip padding
            return self._embed_patches(inputs.flatten(0, 1)).view(*mask.shape, FEATURE_DIM), mask
        embedded = torch.cat([self._embed_patches(patches) for patches in inputs[mask].split(FORWARD_CHUNK)])
        return embedded.new_zeros(*mask.shape, FEATURE_DIM).masked_scatter(mask.unsqueeze(2), embedded), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        duration = (WINDOW + (PATCH - 1) * HOP) / SAMPLE_RATE
        return time_spans(source, parts, PATCH_HOP * HOP / SAMPLE_RATE, first_centre=duration / 2, duration=duration)

    def classify(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the probabilities of the AudioSet classes, averaged over frames: (N, 521)."""
        parts, mask = self(inputs, mask)
        scores = F.linear(parts, self.class_weight, self.class_bias).sigmoid() * mask.unsqueeze(2)
        return scores.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)

    def class_probabilities(self, mean: Tensor) -> Tensor:
        return F.linear(mean, self.class_weight, self.class_bias).sigmoid()

    @staticmethod
    def class_names() -> tuple[str, ...]:
        """Return the names of the AudioSet classes, in the order of `classify`."""
        return tuple(name for name in audioset_class_names() if name not in OMITTED_CLASSES)

    @staticmethod
    def class_categories() -> tuple[str, ...]:
        categories = zip(audioset_class_names(), audioset_class_categories(), strict=True)
        return tuple(category for name, category in categories if name not in OMITTED_CLASSES)

    def _embed_patches(self, patches: Tensor) -> Tensor:
        x = patches.unsqueeze(1).contiguous(memory_format=torch.channels_last)  # (patches, 1, 96, 64)
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return x.mean(dim=(2, 3))  # (patches, feature_dim)

    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        """Load the published weights, whose names contain the numbers of the layers."""
        for index, layer in enumerate(self.layers):
            name = f"{index:02}.{'depthwise_conv_2d' if index % 2 else 'conv_2d'}"
            layer.load_state_dict({key: published[f"{name}.{key}"] for key in ("weight", "bias")})
        self.class_weight.copy_(published[f"{len(self.layers)}.fully_connected.weight"])
        self.class_bias.copy_(published[f"{len(self.layers)}.fully_connected.bias"])
        # The mel weights stay on the CPU, because `prepare` runs on the CPU.
        self._mel_weights = published["mel.weight"]
