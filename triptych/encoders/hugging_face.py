"""Models of the transformers library: found, loaded and fed in one way, for every encoder that uses one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from triptych.encoders.part_locations import character_spans, square_grid_regions, time_spans
from triptych.encoders.rust_panics import convert_rust_panics
from triptych.encoders.weights import INSTALL_PRETRAINED
from triptych.errors import MediaError, RecipeError, check_range
from triptych.interfaces import Region, Source
from triptych.media import audio, image, text

# Weights that a checkpoint may lack: our outputs do not use them.
OPTIONAL_WEIGHTS = ("pooler", "masked_spec_embed", "mask_token")
ForwardFunction = Callable[[Tensor, Tensor], Tensor]  # inputs (N, L, ...) and mask (N, L) -> parts (N, P, D)

MESSAGE_CHARS = 60  # characters of a text that a message shows
MIN_SECONDS = 0.1  # seconds; a shorter sound is followed by silence, as every network needs a few frames


@dataclass(frozen=True)
class PretrainedModel:
    """A folder that transformers saved, or the name of a model on its hub; `user` is the encoder, for messages."""

    encoder_name: str
    model: str
    revision: str

    @property
    def folder(self) -> Path | None:
        """Where the model lies; None where it is a name on the hub."""
        path = Path(self.model).expanduser()
        return path if self.model and path.is_dir() else None

    def __str__(self) -> str:
        return self.model if self.folder else f"{self.model}, revision {self.revision}"

    def load_network(self) -> Any:
        """The network in float32, whatever its file holds: the layers above it are."""
        self._check_available()
        from transformers import AutoConfig, AutoModel

        config = self._from_pretrained(AutoConfig.from_pretrained, "config.json")
        if hasattr(config, "apply_spec_augment"):
            config.apply_spec_augment = False  # draws from NumPy's global generator: a seed would not repeat a run
        if self.folder and not list(self.folder.glob("*.safetensors")):
            file_names = ", ".join(sorted(path.name for path in self.folder.iterdir())[:8])
            raise RecipeError(
                f"{self.encoder_name}: model = {self.model!r}: no *.safetensors in the folder; found: {file_names}. Pickled weights "
                "can run code, so they are not read: load the model where you trust it and save it again with "
                "save_pretrained"
            )
        options = {"config": config, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        network, report = self._from_pretrained(AutoModel.from_pretrained, "safetensors weights", **options)
        missing_keys = sorted(
            key for key in report["missing_keys"] if not any(name in key for name in OPTIONAL_WEIGHTS)
        )
        if missing_keys:
            raise RecipeError(
                f"{self.encoder_name}: model = {self.model!r}: its file lacks {len(missing_keys)} weights, as {missing_keys[0]}"
            )
        return network

    def load_tokenizer(self) -> Any:
        """Its way from a text to word pieces."""
        from transformers import AutoTokenizer

        return self._from_pretrained(AutoTokenizer.from_pretrained, "tokenizer")

    def load_image_processor(self) -> Any:
        """Its way from a picture to numbers, always by Pillow: the same vector with and without torchvision."""
        from transformers import AutoImageProcessor

        return self._from_pretrained(AutoImageProcessor.from_pretrained, "image processor", backend="pil")

    def load_feature_extractor(self) -> Any:
        """Its way from samples to what the network hears."""
        from transformers import AutoFeatureExtractor

        return self._from_pretrained(AutoFeatureExtractor.from_pretrained, "feature extractor")

    def _check_available(self) -> None:
        """What can be told before the library is loaded, which takes seconds."""
        if not self.model:
            raise RecipeError(
                f"{self.encoder_name}: model is missing; give a folder, or a name on the Hugging Face hub"
            )
        if not self.folder and (self.model.startswith(("/", ".", "~")) or self.model.count("/") > 1):
            raise RecipeError(f"{self.encoder_name}: model = {self.model!r}: no such folder")
        if find_spec("transformers") is None:
            raise RecipeError(f"{self.encoder_name}: {unavailable_reason()}")

    def _from_pretrained(self, loader: Callable[..., Any], description: str, **options: Any) -> Any:
        """Read a part of the checkpoint: from a folder, or from what was fetched before, or from the hub.

        A folder is never left for the network, and no code that lies beside the weights is run.
        """
        options |= {"trust_remote_code": False} | ({} if self.folder else {"revision": self.revision})
        failures: list[Exception] = []
        with silence_transformers(show_progress=not self.folder):
            for offline in (True,) if self.folder else (True, False):
                try:
                    with convert_rust_panics():
                        return loader(str(self.folder or self.model), local_files_only=offline, **options)
                except Exception as error:  # strange files fail in any way at all
                    failures.append(error)
        location = "in this folder" if self.folder else "on the hub, and there is no such folder"
        reason = next(iter(str(failures[-1]).strip().splitlines()), type(failures[-1]).__name__)[:200]
        raise RecipeError(
            f"{self.encoder_name}: model = {self.model!r}: no {description} that can be read {location}: {reason}"
        ) from failures[-1]


@contextmanager
def silence_transformers(show_progress: bool) -> Iterator[None]:
    """Transformers without its reports, and without bars where nothing is fetched: what matters becomes an error."""
    from transformers.utils import logging

    level, had_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not show_progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_progress:
            logging.enable_progress_bar()


def unavailable_reason() -> str:
    """What every encoder here needs first: the library, and a model."""
    if find_spec("transformers") is None:
        return f"transformers is not installed; type: {INSTALL_PRETRAINED}"
    return "it has no weights of its own; set `model` to a folder or to a name on the Hugging Face hub"


@torch.no_grad()
def probe_feature_dim(
    pretrained: PretrainedModel, network: nn.Module, forward: ForwardFunction, example: Tensor
) -> int:
    """The width of what a network gives for one prepared example: a model that does not fit is told at once."""
    training = network.training
    network.eval()
    try:
        inputs = example[None].to(next(network.parameters()).device)
        return forward(inputs, torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)).shape[-1]
    except RecipeError:
        raise
    except Exception as error:  # foreign networks fail in any way at all
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} cannot be run on what its own files prepare ({error})"
        ) from error
    finally:
        network.train(training)


class TextInput:
    """Texts for a network: word pieces by its own tokenizer, cut with a warning where it takes no more."""

    def __init__(
        self, pretrained: PretrainedModel, network: nn.Module, max_length: int, pad_to_max_length: bool = False
    ) -> None:
        self.encoder_name, self.pad_to_max_length = pretrained.encoder_name, pad_to_max_length
        self.tokenizer_file = (
            str(pretrained.folder / "tokenizer.json") if pretrained.folder else f"tokenizer.json of {pretrained}"
        )
        self.tokenizer = pretrained.load_tokenizer()
        self.max_length = min(max_length, int(self.tokenizer.model_max_length), _max_positions(network))
        self.pad_token_id = int(self.tokenizer.pad_token_id or 0)
        self.token_ids("a")  # sets the tokenizer's state once: later calls leave it, so that threads may share it

    def token_ids(self, content: str) -> Tensor:
        """The numbers of a text's pieces, with the marks the model puts around them."""
        encoding = self._tokenize(content)
        rows = encoding["input_ids"]
        if len(rows) > 1 or max(encoding.get("num_truncated_tokens", [0])) > 0:
            # No word of the text in it: the same warning is shown once.
            warnings.warn(
                f"{self.encoder_name}: texts of more than {self.max_length} word pieces are cut there", stacklevel=2
            )
        return torch.tensor(rows[0])  # (pieces,)

    def prepare(self, source: Source) -> Tensor:
        """The word pieces of a source: (pieces,)."""
        return self.token_ids(text.read_source(source))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """The characters of each piece; nowhere where the tokenizer does not tell them."""
        content = text.read_source(source)
        spans = self._tokenize(content, return_offsets_mapping=True)["offset_mapping"] if self.tokenizer.is_fast else []
        return character_spans(content, spans[0]) if spans else [()] * parts

    def example_input(self) -> Tensor:
        """A text to try a network out on."""
        return self.token_ids("a")

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What the network is called with; one that always reads full rows has learned to see the padding."""
        if self.pad_to_max_length:
            return {"input_ids": inputs}
        return {"input_ids": inputs.masked_fill(~mask, self.pad_token_id), "attention_mask": mask.long()}

    def _tokenize(self, content: str, **options: bool) -> Any:
        try:
            with convert_rust_panics():
                return self.tokenizer(
                    [content],
                    truncation=True,
                    max_length=self.max_length,
                    padding="max_length" if self.pad_to_max_length else False,
                    return_overflowing_tokens=True,
                    **options,
                )
        except RuntimeError as error:
            raise MediaError(
                f"{self.tokenizer_file}: cannot split the text {content[:MESSAGE_CHARS]!r} ({error}); use another tokenizer or text"
            ) from error


class ImageInput:
    """Pictures for a network: scaled, cropped and normalised by its own processor, all to one size."""

    def __init__(self, pretrained: PretrainedModel) -> None:
        self.processor = pretrained.load_image_processor()
        shapes = {tuple(self.to_pixels(Image.new("RGB", size)).shape) for size in ((96, 64), (64, 96))}
        if len(shapes) > 1 or len(next(iter(shapes))) != 4:
            raise RecipeError(
                f"{pretrained.encoder_name}: model = {pretrained.model!r}: its processor makes pictures of different shapes "
                f"({', '.join(map(str, sorted(shapes)))}); give a model that takes one fixed size"
            )

    def to_pixels(self, pil_image: Image.Image) -> Tensor:
        """A picture as the network takes it: (1, channels, height, width)."""
        values = self.processor(images=pil_image, return_tensors="np")["pixel_values"]
        return torch.from_numpy(np.ascontiguousarray(values[0], dtype=np.float32))[None]

    def prepare(self, source: Source) -> Tensor:
        """The pixels of a source: (1, channels, height, width)."""
        return self.to_pixels(image.load(Path(source.content), time=image.frame_time(source)))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """The tiles of what the processor leaves of a picture, found by what becomes of one that tells where it is."""
        width, height = image.load(Path(source.content), time=image.frame_time(source)).size
        black, white = (self.to_pixels(Image.new("RGB", (width, height), shade))[0] for shade in ("black", "white"))
        x_ramp = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
        y_ramp = np.broadcast_to(np.linspace(0, 255, height).astype(np.uint8)[:, None], (height, width))
        ramps = self.to_pixels(Image.fromarray(np.stack([x_ramp, y_ramp, x_ramp], axis=2)))[0]
        fractions = (ramps - black) / (white - black)  # (channels, height, width)
        (left, right), (top, bottom) = _ramp_edges(fractions[0].mean(dim=0)), _ramp_edges(fractions[1].mean(dim=1))
        return square_grid_regions(parts, (left, top, right, bottom))

    def example_input(self) -> Tensor:
        """A picture to try a network out on."""
        return self.to_pixels(Image.new("RGB", (64, 64)))

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - every picture is whole
        """What the network is called with."""
        return {"pixel_values": inputs[:, 0]}


class AudioInput:
    """Sounds for a network: what its own extractor makes of the first `max_seconds`, never of a random piece.

    Extractors are of two kinds, told apart by trying: most spectrograms are padded to one window (`fixed`), and waves
    are as long as the sound. Some of the first kind also say which frames are sound; that is kept as a last band.
    """

    def __init__(self, pretrained: PretrainedModel, input_name: str, max_seconds: float) -> None:
        check_range(f"{pretrained.encoder_name}: max_seconds", max_seconds, MIN_SECONDS, 3600)
        self.input_name, self.max_seconds = input_name, max_seconds
        self.extractor = pretrained.load_feature_extractor()
        self.sample_rate = int(self.extractor.sampling_rate)
        window = _window_seconds(self.extractor)
        if max_seconds > window:
            raise RecipeError(
                f"{pretrained.encoder_name}: max_seconds = {max_seconds:g}: {pretrained.model!r} hears {window:g} s at once"
            )
        self.max_samples = round(max_seconds * self.sample_rate)
        short, long = (self._extract(make_tone(self.sample_rate, factor * MIN_SECONDS)) for factor in (1, 2))
        self.has_fixed_window = short[0].shape == long[0].shape
        self.has_frame_mask = (
            self.has_fixed_window and long[1] is not None and long[1].shape == long[0].shape[-1:] and long[0].ndim == 2
        )

    def prepare(self, source: Source) -> Tensor:
        """What the network hears of a source: (1, ...) for a fixed window, (L, ...) for a wave."""
        return self.prepare_samples(self._read_samples(source))

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """Parts of the sound alone share it out evenly; those of a whole window, over time and bands, lie nowhere."""
        if self.has_fixed_window and not self.has_frame_mask:
            return [()] * parts
        hop = len(self._read_samples(source)) / self.sample_rate / parts
        return time_spans(source, parts, hop, first_centre=hop / 2)

    def prepare_samples(self, samples: np.ndarray) -> Tensor:
        """The same of samples. They are cut here: extractors that meet a longer sound take a random piece of it."""
        samples = samples[: self.max_samples]
        samples = np.pad(samples, (0, max(0, round(MIN_SECONDS * self.sample_rate) - len(samples))))
        x, frame_mask = self._extract(samples)
        if self.has_frame_mask and frame_mask is not None:
            return torch.cat([x, frame_mask[None].to(x.dtype)])[None]  # (1, bands + 1, frames)
        if self.has_fixed_window:
            return x[None]
        return x if frame_mask is None else x[: int(frame_mask.sum())]

    def example_input(self) -> Tensor:
        """A sound to try a network out on."""
        return self.prepare_samples(make_tone(self.sample_rate, 2 * MIN_SECONDS))

    def model_inputs(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - see by_length
        """What the network is called with: inputs of one length, without padding."""
        x = inputs[:, 0] if self.has_fixed_window else inputs
        arguments = {self.input_name: x[:, :-1] if self.has_frame_mask else x}
        if "is_longer" in self.extractor.model_input_names:
            # Only for sounds beyond the window, of which there are none here. The extractor would draw an item by lot.
            arguments["is_longer"] = torch.zeros(len(inputs), 1, dtype=torch.bool, device=inputs.device)
        return arguments

    def part_mask(self, inputs: Tensor, parts: int) -> Tensor:
        """Which parts of a fixed window are sound, where the extractor says: (N, parts)."""
        frames = inputs.shape[-1]
        if self.has_frame_mask and frames % parts == 0:
            return inputs[:, 0, -1, :: frames // parts] > 0
        return torch.ones(len(inputs), parts, dtype=torch.bool, device=inputs.device)

    def _read_samples(self, source: Source) -> np.ndarray:
        start = source.start or 0.0
        end = start + self.max_seconds if source.end is None else min(source.end, start + self.max_seconds)
        return audio.read(Path(source.content), self.sample_rate, start, end)

    def _extract(self, samples: np.ndarray) -> tuple[Tensor, Tensor | None]:
        features = self.extractor(
            samples, sampling_rate=self.sample_rate, return_tensors="np", return_attention_mask=True
        )
        frame_mask = features.get("attention_mask")
        x = torch.from_numpy(np.ascontiguousarray(features[self.input_name][0], dtype=np.float32))
        return x, None if frame_mask is None else torch.from_numpy(np.ascontiguousarray(frame_mask[0]))


def forward_by_length(forward: ForwardFunction, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Run items of one length together and without padding: not every network can be told to pass over it."""
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
    """Something to hear, for trying what a model makes of it."""
    return np.sin(np.arange(round(sample_rate * seconds), dtype=np.float32))


def _ramp_edges(ramp: Tensor) -> tuple[float, float]:
    """Where a rising row of shares starts and ends, at its outer edges: by its quarters, as edges are smoothed."""
    count = len(ramp)
    lower, upper = count // 4, count - 1 - count // 4
    step = float(ramp[upper] - ramp[lower]) / (upper - lower)
    first = float(ramp[lower]) - (lower + 0.5) * step
    return max(0.0, first), min(1.0, first + count * step)


def _window_seconds(extractor: Any) -> float:
    """The seconds an extractor's fixed window holds; infinite where it has none."""
    for attribute in ("nb_max_samples", "n_samples"):
        if hasattr(extractor, attribute):
            return getattr(extractor, attribute) / extractor.sampling_rate
    if hasattr(extractor, "num_mel_bins") and hasattr(extractor, "max_length"):
        return extractor.max_length / 100  # Kaldi's frames: 10 ms
    return float("inf")


def _max_positions(network: nn.Module) -> int:
    """The most word pieces for which a network has learned positions; some keep the first ones for padding."""
    limits = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2].startswith(("position_embedding", "wpe"))
    ]
    return min(limits, default=1 << 30)
