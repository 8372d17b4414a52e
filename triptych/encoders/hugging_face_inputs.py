"""Preprocessing of texts, images and audio for models of the transformers library."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.part_locations import character_spans, square_grid_regions, time_spans
from triptych.encoders.rust_panics import convert_rust_panics
from triptych.errors import MediaError, RecipeError, check_range
from triptych.interfaces import Region, Source
from triptych.media import audio, image, text

ForwardFunction = Callable[[Tensor, Tensor], Tensor]  # maps inputs (N, L, ...) and a mask (N, L) to parts (N, P, D)

MESSAGE_CHARS = 60  # an error message quotes at most this many characters of a text
MIN_SECONDS = 0.1  # audio is padded with silence to at least 0.1 s, because networks need a few frames
MAX_SECONDS = 30.0  # the default limit of a model that accepts audio of any length
MIN_SOFT_TOKENS = 70  # the lowest resolution of image processors that have a setting `max_soft_tokens`
MAX_PATCHES = 16_384  # the network gets at most this many patches at once, to limit memory


class TextInput:
    """Converts texts to token ids with the tokenizer of the model. Long texts are truncated with a warning."""

    def __init__(
        self,
        pretrained: PretrainedModel,
        network: nn.Module,
        max_length: int,
        pad_to_max_length: bool = False,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.encoder_name, self.pad_to_max_length = pretrained.encoder_name, pad_to_max_length
        self.prompts = prompts or {}
        folder = pretrained.folder
        self.tokenizer_file = str(folder / "tokenizer.json") if folder else f"tokenizer.json of {pretrained}"
        self.tokenizer = pretrained.load_tokenizer()
        self.max_length = min(max_length, int(self.tokenizer.model_max_length), _max_positions(network))
        self.pad_token_id = int(self.tokenizer.pad_token_id or 0)
        self.token_ids("a")  # only the first call changes the tokenizer's state, so that later calls are thread-safe

    def token_ids(self, content: str) -> Tensor:
        """Return the token ids of a text, with special tokens: (tokens,)."""
        encoding = self._tokenize(content)
        rows = encoding["input_ids"]
        if len(rows) > 1 or max(encoding.get("num_truncated_tokens", [0])) > 0:
            # The message does not contain the text, so that Python shows the warning only once.
            message = f"texts of more than {self.max_length} tokens are truncated"
            warnings.warn(f"{self.encoder_name}: {message}", stacklevel=2)
        return torch.tensor(rows[0])

    def prepare(self, source: Source) -> Tensor:
        """Return the token ids of a text source, with the prompt that the source names: (tokens,)."""
        return self.token_ids(self.prompts.get(source.prompt_name or "", "") + text.read_source(source))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """Return the character span of each token, or an empty list if the tokenizer does not provide spans."""
        content = text.read_source(source)
        spans = self._tokenize(content, return_offsets_mapping=True)["offset_mapping"] if self.tokenizer.is_fast else []
        return character_spans(content, spans[0]) if spans else [()] * parts

    def example_input(self) -> Tensor:
        """Return the input of a short text, as a test input for the network."""
        return self.token_ids("a")

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the keyword arguments of the network. Networks trained on padded texts get no attention mask."""
        if self.pad_to_max_length:
            return {"input_ids": inputs}
        return {"input_ids": inputs.masked_fill(~mask, self.pad_token_id), "attention_mask": mask.long()}

    def run(self, forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a network that returns one part per token. Return the parts and the mask of the parts."""
        return forward(inputs, mask), mask

    def _tokenize(self, content: str, **options: bool) -> Any:
        try:
            with convert_rust_panics():
                padding = "max_length" if self.pad_to_max_length else False
                options |= {"truncation": True, "return_overflowing_tokens": True}
                return self.tokenizer([content], max_length=self.max_length, padding=padding, **options)
        except RuntimeError as error:
            problem = f"cannot tokenise {content[:MESSAGE_CHARS]!r} ({error}); use another tokenizer or text"
            raise MediaError(f"{self.tokenizer_file}: {problem}") from error


class ImageInput:
    """Resizes, crops and normalises images to one size with the image processor of the model."""

    def __init__(self, pretrained: PretrainedModel) -> None:
        self.processor = pretrained.load_image_processor()
        shapes = {tuple(self.to_pixels(Image.new("RGB", size)).shape) for size in ((96, 64), (64, 96))}
        if len(shapes) > 1 or len(next(iter(shapes))) != 4:
            raise RecipeError(
                f"{pretrained.encoder_name}: model = {pretrained.model!r}: the image processor returns several shapes "
                f"({', '.join(map(str, sorted(shapes)))}); use a model with one fixed image size"
            )

    def to_pixels(self, pil_image: Image.Image) -> Tensor:
        """Return the processed pixels of an image: (1, channels, height, width)."""
        values = self.processor(images=pil_image, return_tensors="np")["pixel_values"]
        return torch.from_numpy(np.ascontiguousarray(values[0], dtype=np.float32))[None]

    def prepare(self, source: Source) -> Tensor:
        """Return the processed pixels of an image source: (1, channels, height, width)."""
        return self.to_pixels(image.load_source(source))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """Return the tiles of the processor's crop.

        To locate the crop, process an image whose pixels are coordinates.
        """
        width, height = image.load_source(source).size
        black, white = (self.to_pixels(Image.new("RGB", (width, height), shade))[0] for shade in ("black", "white"))
        x_ramp = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
        y_ramp = np.broadcast_to(np.linspace(0, 255, height).astype(np.uint8)[:, None], (height, width))
        ramps = self.to_pixels(Image.fromarray(np.stack([x_ramp, y_ramp, x_ramp], axis=2)))[0]
        fractions = (ramps - black) / (white - black)  # (channels, height, width)
        (left, right), (top, bottom) = _ramp_edges(fractions[0].mean(dim=0)), _ramp_edges(fractions[1].mean(dim=1))
        return square_grid_regions(parts, (left, top, right, bottom))

    def example_input(self) -> Tensor:
        """Return the input of a black image, as a test input for the network."""
        return self.to_pixels(Image.new("RGB", (64, 64)))

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - images are not padded
        """Return the keyword arguments of the network."""
        return {"pixel_values": inputs[:, 0]}

    def run(self, forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a network that returns image regions. Return the parts and the mask of the parts."""
        parts = forward(inputs, mask)
        return parts, mask.expand(-1, parts.shape[1])


class PatchInput:
    """Splits images of any aspect ratio into patches with the image processor of the model.

    The row of a patch contains its pixels and two integers. They are the position of the patch in the image, or the
    height and width of the image in patches, depending on the processor.
    """

    def __init__(self, pretrained: PretrainedModel) -> None:
        self.processor = pretrained.load_image_processor()
        self.has_shapes = "spatial_shapes" in self.processor.model_input_names

    def to_patches(self, pil_image: Image.Image, **options: int) -> Tensor:
        """Return the patches of an image, without padding: (patches, values + 2)."""
        output = self.processor(images=pil_image, return_tensors="np", **options)
        features = {name: array[0] for name, array in output.items()}
        patches = features["pixel_values"]
        if self.has_shapes:
            integers, count = features["spatial_shapes"][None], features["pixel_attention_mask"].sum()
        else:
            integers, count = features["image_position_ids"], (features["image_position_ids"][:, 0] >= 0).sum()
        rows = np.concatenate([patches, np.broadcast_to(integers, (len(patches), 2))], axis=1)
        return torch.from_numpy(np.ascontiguousarray(rows[:count], dtype=np.float32))

    def prepare(self, source: Source) -> Tensor:
        """Return the patches of an image source: (patches, values + 2)."""
        return self.to_patches(image.load_source(source))

    def example_input(self) -> Tensor:
        """Return the input of a black image at a low resolution if possible, as a test input for the network."""
        options = {"max_soft_tokens": MIN_SOFT_TOKENS} if hasattr(self.processor, "max_soft_tokens") else {}
        return self.to_patches(Image.new("RGB", (64, 64)), **options)

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the keyword arguments of the network."""
        pixels, integers = inputs[:, :, :-2], inputs[:, :, -2:].long()
        if self.has_shapes:
            return {"pixel_values": pixels, "pixel_attention_mask": mask.long(), "spatial_shapes": integers[:, 0]}
        return {"pixel_values": pixels, "image_position_ids": integers.masked_fill(~mask.unsqueeze(2), -1)}

    def run(self, forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a network that returns one part per image, to MAX_PATCHES patches at once."""
        size = max(1, MAX_PATCHES // inputs.shape[1])
        chunks = zip(inputs.split(size), mask.split(size), strict=True)
        return torch.cat([forward(*chunk) for chunk in chunks]), mask[:, :1]


class AudioInput:
    """Converts the first `max_seconds` of audio to the network's input with the feature extractor of the model.

    Most extractors of spectrograms pad their output to a fixed window. Other extractors return an output as long as the
    audio. AudioInput calls the extractor to determine its type. If an extractor with a fixed window also returns a mask
    of frames, the mask is appended to the input as an extra last band.
    """

    def __init__(self, pretrained: PretrainedModel, max_seconds: float | None) -> None:
        self.extractor = pretrained.load_feature_extractor()
        self.sample_rate, self.input_name = int(self.extractor.sampling_rate), self.extractor.model_input_names[0]
        self.max_seconds = resolve_max_seconds(pretrained, self.extractor, max_seconds)
        self.max_samples = round(self.max_seconds * self.sample_rate)
        parameters = inspect.signature(type(self.extractor).__call__).parameters
        self.options = {"return_attention_mask": True} if "return_attention_mask" in parameters else {}
        short, long = (self._extract(make_tone(self.sample_rate, factor * MIN_SECONDS)) for factor in (1, 2))
        self.has_fixed_window = short[0].shape == long[0].shape
        self.is_channels_first = not self.has_fixed_window and len(short[0]) == len(long[0])
        self.has_frame_mask = (
            self.has_fixed_window and long[1] is not None and long[1].shape == long[0].shape[-1:] and long[0].ndim == 2
        )

    def prepare(self, source: Source) -> Tensor:
        """Return the extractor's output for a source: (1, ...) for a fixed window, otherwise (L, ...)."""
        return self.prepare_samples(audio.read_source(source, self.sample_rate, self.max_seconds))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """Return equal time spans, one per part. Parts that are patches of time and frequency have no location."""
        if self.has_fixed_window and not self.has_frame_mask:
            return [()] * parts
        hop = len(audio.read_source(source, self.sample_rate, self.max_seconds)) / self.sample_rate / parts
        return time_spans(source, parts, hop, first_centre=hop / 2)

    def prepare_samples(self, samples: np.ndarray) -> Tensor:
        """Return the features of the first `max_seconds`. An extractor would crop longer audio at random."""
        samples = samples[: self.max_samples]
        samples = np.pad(samples, (0, max(0, round(MIN_SECONDS * self.sample_rate) - len(samples))))
        x, frame_mask = self._extract(samples)
        if self.has_frame_mask and frame_mask is not None:
            return torch.cat([x, frame_mask[None].to(x.dtype)])[None]  # (1, bands + 1, frames)
        if self.has_fixed_window:
            return x[None]
        x = x.T if self.is_channels_first else x
        return x if frame_mask is None else x[: int(frame_mask.sum())]

    def example_input(self) -> Tensor:
        """Return the input of a tone, as a test input for the network."""
        return self.prepare_samples(make_tone(self.sample_rate, 2 * MIN_SECONDS))

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the keyword arguments of the network for inputs that have equal lengths and no padding."""
        x = inputs[:, 0] if self.has_fixed_window else inputs.transpose(1, 2) if self.is_channels_first else inputs
        arguments = {self.input_name: x[:, :-1] if self.has_frame_mask else x}
        if "input_features_mask" in self.extractor.model_input_names:
            arguments["input_features_mask"] = mask
        if "is_longer" in self.extractor.model_input_names:
            # `is_longer` is False for all items, because no audio is longer than the window. The extractor would set a
            # random item to True.
            arguments["is_longer"] = torch.zeros(len(inputs), 1, dtype=torch.bool, device=inputs.device)
        return arguments

    def run(self, forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a network that returns audio frames. Return the parts and the mask of the parts."""
        if not self.has_fixed_window:
            return forward_by_length(forward, inputs, mask)
        parts = forward(inputs, mask)
        return parts, self._part_mask(inputs, parts.shape[1])

    def _part_mask(self, inputs: Tensor, parts: int) -> Tensor:
        """Return a mask (N, parts) of the parts that contain audio. Without a mask of frames, all entries are True."""
        frames = inputs.shape[-1]
        if self.has_frame_mask and frames % parts == 0:
            return inputs[:, 0, -1, :: frames // parts] > 0
        return torch.ones(len(inputs), parts, dtype=torch.bool, device=inputs.device)

    def _extract(self, samples: np.ndarray) -> tuple[Tensor, Tensor | None]:
        features = self.extractor([samples], sampling_rate=self.sample_rate, return_tensors="np", **self.options)
        frame_mask = next((array for name, array in features.items() if name.endswith("mask")), None)
        x = torch.from_numpy(np.ascontiguousarray(features[self.input_name][0], dtype=np.float32))
        return x, None if frame_mask is None else torch.from_numpy(np.ascontiguousarray(frame_mask[0]))


def make_image_input(pretrained: PretrainedModel) -> ImageInput | PatchInput:
    """Return the preprocessing of a model whose images have one size, or any size up to a number of patches."""
    is_variable = {"spatial_shapes", "image_position_ids"} & set(pretrained.load_image_processor().model_input_names)
    return PatchInput(pretrained) if is_variable else ImageInput(pretrained)


def forward_by_length(forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a network to the items of each length separately, because not every network can mask padding."""
    lengths = mask.sum(dim=1)
    row_parts: dict[int, Tensor] = {}
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        parts = forward(inputs[rows, :length], mask[rows, :length])
        row_parts |= dict(zip(rows.tolist(), parts, strict=True))
    ordered = [row_parts[row] for row in range(len(inputs))]
    counts = torch.tensor([len(parts) for parts in ordered], device=inputs.device)
    padded = nn.utils.rnn.pad_sequence(ordered, batch_first=True)
    return padded, torch.arange(padded.shape[1], device=inputs.device) < counts[:, None]


def make_tone(sample_rate: int, seconds: float) -> np.ndarray:
    """Return the samples of a sine wave, as a test input for extractors and networks."""
    return np.sin(np.arange(round(sample_rate * seconds), dtype=np.float32))


def resolve_max_seconds(pretrained: PretrainedModel, extractor: Any, max_seconds: float | None) -> float:
    """Return the longest audio of an encoder. By default, it is the extractor's window, or MAX_SECONDS."""
    window = _window_seconds(extractor)
    seconds = min(window, MAX_SECONDS) if max_seconds is None else max_seconds
    check_range(f"{pretrained.encoder_name}: max_seconds", seconds, MIN_SECONDS, 3600)
    if seconds > window:
        limit = f"{pretrained.model!r} takes at most {window:g} s"
        raise RecipeError(f"{pretrained.encoder_name}: max_seconds = {seconds:g}: {limit}")
    return seconds


def _ramp_edges(ramp: Tensor) -> tuple[float, float]:
    """Extrapolate the end values of a linear ramp from its quartiles, because resizing smooths the ends."""
    count = len(ramp)
    lower, upper = count // 4, count - 1 - count // 4
    step = float(ramp[upper] - ramp[lower]) / (upper - lower)
    first = float(ramp[lower]) - (lower + 0.5) * step
    return max(0.0, first), min(1.0, first + count * step)


def _window_seconds(extractor: Any) -> float:
    """Return the length of an extractor's fixed window in seconds, or infinity if the window is not fixed."""
    max_length = inspect.signature(type(extractor).__call__).parameters.get("max_length")
    if max_length is not None and isinstance(max_length.default, int):
        return max_length.default / extractor.sampling_rate
    for attribute in ("nb_max_samples", "n_samples"):
        if hasattr(extractor, attribute):
            return getattr(extractor, attribute) / extractor.sampling_rate
    if hasattr(extractor, "num_mel_bins") and hasattr(extractor, "max_length"):
        return extractor.max_length / 100  # the unit of max_length is a Kaldi frame of 10 ms
    return float("inf")


def _max_positions(network: nn.Module) -> int:
    """Return the largest number of tokens that a network accepts, without positions reserved for padding."""
    limits = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2].startswith(("position_embedding", "wpe"))
    ]
    return min(limits, default=1 << 30)
