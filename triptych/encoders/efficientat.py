"""EfficientAT mn04, a small MobileNetV3 trained on AudioSet. Parts are frames of 0.32 s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.class_names import audioset_class_categories, audioset_class_names
from triptych.encoders.convolution import Conv2dSame
from triptych.encoders.part_locations import time_spans
from triptych.encoders.weights import WeightsFile, fold_batch_norm, is_meta_device, parse_state_dict
from triptych.errors import check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import audio

Activation = Callable[[Tensor], Tensor]
# In Hz and samples: a window of 25 ms starts every 10 ms.
SAMPLE_RATE, FFT_SIZE, WINDOW, HOP = 32_000, 1024, 800, 320
PREEMPHASIS = 0.97
N_MELS, MAX_FREQUENCY = 128, 15_000.0
LOG_OFFSET, LOG_SHIFT, LOG_SCALE = 1e-5, 4.5, 5.0  # the input of the network is (log(mel + 1e-5) + 4.5) / 5
FRAMES_PER_PART = 32  # the product of the strides
PART_SAMPLES = FRAMES_PER_PART * HOP  # shorter audio is padded with silence
# Each row lists the kernel size, expanded channels, output channels and stride of a block of MobileNetV3-Large, before
# the widths are scaled, and whether the block has squeeze-and-excite. The first 6 blocks use ReLU, and all other layers
# hard-swish.
BLOCKS = (
    (3, 16, 16, 1, False),
    (3, 64, 24, 2, False),
    (3, 72, 24, 1, False),
    (5, 72, 40, 2, True),
    (5, 120, 40, 1, True),
    (5, 120, 40, 1, True),
    (3, 240, 80, 2, False),
    (3, 200, 80, 1, False),
    (3, 184, 80, 1, False),
    (3, 184, 80, 1, False),
    (3, 480, 112, 1, True),
    (3, 672, 112, 1, True),
    (5, 672, 160, 2, True),
    (5, 960, 160, 1, True),
    (5, 960, 160, 1, True),
)
NUM_RELU_BLOCKS = 6
WIDTH, STEM_CHANNELS = 0.4, 16
FEATURE_DIM, NUM_CLASSES = 384, 527
# The shapes and the published names of the weights of the classifier, an MLP with hard-swish.
CLASSIFIER_SHAPES = {
    "hidden_weight": (512, FEATURE_DIM),
    "hidden_bias": (512,),
    "class_weight": (NUM_CLASSES, 512),
    "class_bias": (NUM_CLASSES,),
}
CLASSIFIER_NAMES = dict(
    zip(CLASSIFIER_SHAPES, [f"classifier.{i}.{key}" for i in (2, 5) for key in ("weight", "bias")], strict=True)
)
EPSILON = 1e-3  # the epsilon that the batch norms add to the variance
# A forward pass processes 4 clips, because the activations of more clips do not fit into the CPU caches.
FORWARD_CHUNK = 4

WEIGHTS = WeightsFile(
    encoder="efficientat_mn04",
    digests={
        "mn04_as_mAP_432.pt": "899a8c6217063f6941793102a2780b3dd788ab11fce468d9cf5f0577c453321c",
        "mn04_as.safetensors": "0dd3b50e864616c1bc6970c3bfafc41681c4595205529aa00655a4f2f2056cc3",
    },
    url="https://github.com/fschmid56/EfficientAT/releases/download/v0.0.1/mn04_as_mAP_432.pt",
)


class EfficientAT(Encoder):
    """A CNN pretrained on the 527 classes of AudioSet by distillation. The CNN returns one part per 0.32 s of audio.

    parts_t = mean over bands of mobilenet(log mel)_t;  class probabilities = sigmoid(mlp(mean_t parts_t))

    Source: Schmid et al. 2023 (EfficientAT, mn04_as), Howard et al. 2019 (MobileNetV3), Hu et al. 2018
    (squeeze-and-excite).
    Use when: audio contains everyday sounds, and you have too little audio or too little time to train from scratch.
    Beware: squeeze-and-excite averages over the entire clip, so a part depends on the entire clip. If a file is longer
    than `max_seconds`, the encoder uses only the start of the file. Audio shorter than 0.32 s is padded with silence.
    With frozen = false, training changes the features, so that the class probabilities become meaningless.
    """

    modality = "audio"
    part_name = "frame"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = "EfficientAT mn04_as, AudioSet; weights from release v0.0.1 of fschmid56/EfficientAT"
    licence = "MIT"
    weights_files = (WEIGHTS,)

    def __init__(self, max_seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        check_range("efficientat_mn04: max_seconds", max_seconds, 0.05, 3600)
        self.max_seconds, self.frozen = max_seconds, frozen
        channels = _round_channels(STEM_CHANNELS * WIDTH)
        self.stem = Conv2dSame(1, channels, 3, stride=2, symmetric=True)
        blocks = []
        for kernel, hidden, out, stride, has_squeeze in BLOCKS:
            hidden, out = _round_channels(hidden * WIDTH), _round_channels(out * WIDTH)
            blocks.append(SqueezeExciteBottleneck(channels, hidden, out, kernel, stride, has_squeeze))
            channels = out
        self.blocks = nn.ModuleList(blocks)
        self.head = Conv2dSame(channels, FEATURE_DIM)
        # The weights of the classifier are buffers, not parameters, because the classifier is not trained.
        for name, shape in CLASSIFIER_SHAPES.items():
            self.register_buffer(name, torch.zeros(shape), persistent=False)
        if not is_meta_device():
            self._load_published_weights(parse_state_dict(WEIGHTS.read()))

    def prepare(self, source: Source) -> Tensor:
        samples = torch.from_numpy(audio.read_source(source, SAMPLE_RATE, self.max_seconds))
        return log_mel_frames(F.pad(samples, (0, max(0, PART_SAMPLES - len(samples)))))  # (frames, mels)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # A loop over chunks would make an exported graph depend on the batch size.
        size = len(inputs) if torch.compiler.is_exporting() else FORWARD_CHUNK
        chunks = zip(inputs.split(size), mask.split(size), strict=True)
        return torch.cat([self._embed_frames(*chunk) for chunk in chunks]), mask[:, ::FRAMES_PER_PART]

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return time_spans(source, parts, PART_SAMPLES / SAMPLE_RATE, first_centre=0.0)

    def class_probabilities(self, mean: Tensor) -> Tensor:
        return self.class_logits(mean).sigmoid()

    def class_logits(self, mean: Tensor) -> Tensor:
        """Return the logits (N, 527) of the AudioSet classes for mean part vectors (N, feature_dim)."""
        weights = [self.get_buffer(name) for name in CLASSIFIER_SHAPES]
        return F.linear(F.hardswish(F.linear(mean, *weights[:2])), *weights[2:])

    @staticmethod
    def class_names() -> tuple[str, ...]:
        """Return the names of the AudioSet classes, in the order of `class_probabilities`."""
        return audioset_class_names()

    @staticmethod
    def class_categories() -> tuple[str, ...]:
        return audioset_class_categories()

    def _embed_frames(self, frames: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None, None].to(frames.dtype)  # (N, 1, 1, frames): 0 for padding
        x = frames.transpose(1, 2).unsqueeze(1).contiguous(memory_format=torch.channels_last)  # (N, 1, mels, frames)
        x, real = F.hardswish(self.stem(x * real)), real[..., ::2]
        for index, block in enumerate(self.blocks):
            x, real = block(x, real, F.relu if index < NUM_RELU_BLOCKS else F.hardswish)
        return F.hardswish(self.head(x)).mean(dim=2).transpose(1, 2)  # (N, parts, feature_dim)

    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        """Load the published weights, and fold the batch norms into the convolutions."""
        published_names = {"stem": "features.0", "head": f"features.{len(BLOCKS) + 1}"}
        for index, block in enumerate(self.blocks):
            # The published names number the layers of a block in their order.
            for position, (layer, _) in enumerate(block.named_children()):
                published_names[f"blocks.{index}.{layer}"] = f"features.{index + 1}.block.{position}"
        for module_name, name in published_names.items():
            module = self.get_submodule(module_name)
            if isinstance(module, SqueezeExcite):
                for layer, published_name in ((module.squeeze, "fc1"), (module.excite, "fc2")):
                    prefix = f"{name}.conc_se_layers.0.{published_name}"
                    layer.load_state_dict({key: published[f"{prefix}.{key}"] for key in ("weight", "bias")})
                continue
            tensors = (published[f"{name}.1.{key}"] for key in ("weight", "bias", "running_mean", "running_var"))
            module.load_state_dict(fold_batch_norm(published[f"{name}.0.weight"], *tensors, epsilon=EPSILON))
        for name, published_name in CLASSIFIER_NAMES.items():
            self.get_buffer(name).copy_(published[published_name])


class SqueezeExcite(nn.Module):
    """Scales each channel by sigmoid(W₂ · relu(W₁ · mean over frequency and time)); padding is not averaged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, _round_channels(channels // 4))
        self.excite = nn.Linear(_round_channels(channels // 4), channels)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Scale x (N, C, bands, frames), of which the frames with real (N, 1, 1, frames) = 0 are padding."""
        mean = (x * real).sum(dim=(2, 3)) / (x.shape[2] * real.sum(dim=3).flatten(1)).clamp_min(1)  # (N, C)
        return x * self.excite(F.relu(self.squeeze(mean))).sigmoid()[:, :, None, None]


class SqueezeExciteBottleneck(nn.Module):
    """A block of MobileNetV3: a 1 × 1 expansion, a depthwise convolution, squeeze-and-excite, a 1 × 1 projection."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, kernel: int, stride: int, has_squeeze: bool
    ) -> None:
        super().__init__()
        self.stride, self.has_residual = stride, stride == 1 and in_channels == out_channels
        self.expand = Conv2dSame(in_channels, hidden_channels) if hidden_channels != in_channels else None
        self.depthwise = Conv2dSame(
            hidden_channels, hidden_channels, kernel, stride, groups=hidden_channels, symmetric=True
        )
        self.squeeze_excite = SqueezeExcite(hidden_channels) if has_squeeze else None
        self.project = Conv2dSame(hidden_channels, out_channels)

    def forward(self, x: Tensor, real: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
        """Map x (N, C, bands, frames) and real (N, 1, 1, frames), both with stride `stride`."""
        hidden = activation(self.expand(x)) if self.expand is not None else x
        # Padding is set to 0, so that the result does not depend on padding.
        hidden = activation(self.depthwise(hidden * real))
        real = real[..., :: self.stride]
        if self.squeeze_excite is not None:
            hidden = self.squeeze_excite(hidden, real)
        output = self.project(hidden)
        return x + output if self.has_residual else output, real


def log_mel_frames(samples: Tensor) -> Tensor:
    """Return the input of the network for samples (T,) at 32 kHz: (frames, 128), one frame per 10 ms."""
    emphasised = samples[1:] - PREEMPHASIS * samples[:-1]
    window = torch.hann_window(WINDOW, periodic=False)
    spectrum = torch.stft(emphasised, FFT_SIZE, HOP, WINDOW, window, pad_mode="reflect", return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()  # (bins, frames)
    mel = kaldi_mel_filters() @ power
    return ((mel + LOG_OFFSET).log() + LOG_SHIFT).T / LOG_SCALE


@cache
def kaldi_mel_filters() -> Tensor:
    """Return triangular filters (mels, bins) with Kaldi's mel scale, 1127 · ln(1 + f / 700); the last bin is unused."""
    edges = torch.linspace(0.0, _hz_to_mel(MAX_FREQUENCY), N_MELS + 2, dtype=torch.float64)[:, None]
    bins = [_hz_to_mel(index * SAMPLE_RATE / FFT_SIZE) for index in range(FFT_SIZE // 2)]
    mels = torch.tensor(bins, dtype=torch.float64)
    rising, falling = ((mels - edges[:-2]) / edges.diff(dim=0)[:-1], (edges[2:] - mels) / edges.diff(dim=0)[1:])
    return F.pad(torch.minimum(rising, falling).clamp_min(0), (0, 1)).float()


def _hz_to_mel(hz: float) -> float:
    return 1127.0 * math.log(1.0 + hz / 700.0)


def _round_channels(channels: float) -> int:
    """Return the multiple of 8 that is nearest to a number of channels and at least 0.9 times as large."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
