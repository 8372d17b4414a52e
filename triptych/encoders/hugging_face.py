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

from triptych.contracts import Place, Source
from triptych.encoders.panics import panics_as_errors
from triptych.encoders.places import characters, square_grid, steps
from triptych.encoders.weights import INSTALL_PRETRAINED
from triptych.errors import MediaError, RecipeError, check_range
from triptych.media import audio, image, text

UNUSED = ("pooler", "masked_spec_embed", "mask_token")  # weights that a checkpoint may lack: our outputs pass them by
Run = Callable[[Tensor, Tensor], Tensor]  # inputs (N, L, ...) and mask (N, L) -> parts (N, P, D)

SHOWN = 60  # characters of a text that a message shows
SHORTEST = 0.1  # seconds; a shorter sound is followed by silence, as every network needs a few frames


@dataclass(frozen=True)
class Checkpoint:
    """A folder that transformers saved, or the name of a model on its hub; `user` is the encoder, for messages."""

    user: str
    model: str
    revision: str

    @property
    def folder(self) -> Path | None:
        """Where the model lies; None where it is a name on the hub."""
        path = Path(self.model).expanduser()
        return path if self.model and path.is_dir() else None

    def __str__(self) -> str:
        return self.model if self.folder else f"{self.model}, revision {self.revision}"

    def load(self) -> Any:
        """The network in float32, whatever its file holds: the layers above it are."""
        self._check()
        from transformers import AutoConfig, AutoModel

        config = self._call(AutoConfig.from_pretrained, "config.json")
        if hasattr(config, "apply_spec_augment"):
            config.apply_spec_augment = False  # draws from NumPy's global generator: a seed would not repeat a run
        if self.folder and not list(self.folder.glob("*.safetensors")):
            found = ", ".join(sorted(path.name for path in self.folder.iterdir())[:8])
            raise RecipeError(
                f"{self.user}: model = {self.model!r}: no *.safetensors in the folder; found: {found}. Pickled weights "
                "can run code, so they are not read: load the model where you trust it and save it again with "
                "save_pretrained"
            )
        options = {"config": config, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        network, report = self._call(AutoModel.from_pretrained, "safetensors weights", **options)
        lost = sorted(key for key in report["missing_keys"] if not any(name in key for name in UNUSED))
        if lost:
            raise RecipeError(f"{self.user}: model = {self.model!r}: its file lacks {len(lost)} weights, as {lost[0]}")
        return network

    def tokenizer(self) -> Any:
        """Its way from a text to word pieces."""
        from transformers import AutoTokenizer

        return self._call(AutoTokenizer.from_pretrained, "tokenizer")

    def image_processor(self) -> Any:
        """Its way from a picture to numbers, always by Pillow: the same vector with and without torchvision."""
        from transformers import AutoImageProcessor

        return self._call(AutoImageProcessor.from_pretrained, "image processor", backend="pil")

    def feature_extractor(self) -> Any:
        """Its way from samples to what the network hears."""
        from transformers import AutoFeatureExtractor

        return self._call(AutoFeatureExtractor.from_pretrained, "feature extractor")

    def _check(self) -> None:
        """What can be told before the library is loaded, which takes seconds."""
        if not self.model:
            raise RecipeError(f"{self.user}: model is missing; give a folder, or a name on the Hugging Face hub")
        if not self.folder and (self.model.startswith(("/", ".", "~")) or self.model.count("/") > 1):
            raise RecipeError(f"{self.user}: model = {self.model!r}: no such folder")
        if find_spec("transformers") is None:
            raise RecipeError(f"{self.user}: {missing()}")

    def _call(self, read: Callable[..., Any], what: str, **options: Any) -> Any:
        """Read a part of the checkpoint: from a folder, or from what was fetched before, or from the hub.

        A folder is never left for the network, and no code that lies beside the weights is run.
        """
        options |= {"trust_remote_code": False} | ({} if self.folder else {"revision": self.revision})
        failures: list[Exception] = []
        with quiet(bars=not self.folder):
            for offline in (True,) if self.folder else (True, False):
                try:
                    with panics_as_errors():
                        return read(str(self.folder or self.model), local_files_only=offline, **options)
                except Exception as error:  # strange files fail in any way at all
                    failures.append(error)
        where = "in this folder" if self.folder else "on the hub, and there is no such folder"
        reason = next(iter(str(failures[-1]).strip().splitlines()), type(failures[-1]).__name__)[:200]
        raise RecipeError(
            f"{self.user}: model = {self.model!r}: no {what} that can be read {where}: {reason}"
        ) from failures[-1]


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """Transformers without its reports, and without bars where nothing is fetched: what matters becomes an error."""
    from transformers.utils import logging

    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def missing() -> str:
    """What every encoder here needs first: the library, and a model."""
    if find_spec("transformers") is None:
        return f"transformers is not installed; type: {INSTALL_PRETRAINED}"
    return "it has no weights of its own; set `model` to a folder or to a name on the Hugging Face hub"


@torch.no_grad()
def try_out(checkpoint: Checkpoint, network: nn.Module, run: Run, example: Tensor) -> int:
    """The width of what a network gives for one prepared example: a model that does not fit is told at once."""
    training = network.training
    network.eval()
    try:
        inputs = example[None].to(next(network.parameters()).device)
        return run(inputs, torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)).shape[-1]
    except RecipeError:
        raise
    except Exception as error:  # foreign networks fail in any way at all
        raise RecipeError(
            f"{checkpoint.user}: model = {checkpoint.model!r} cannot be run on what its own files prepare ({error})"
        ) from error
    finally:
        network.train(training)


class Words:
    """Texts for a network: word pieces by its own tokenizer, cut with a warning where it takes no more."""

    def __init__(self, checkpoint: Checkpoint, network: nn.Module, length: int, always_full: bool = False) -> None:
        self.user, self.always_full = checkpoint.user, always_full
        self.file = (
            str(checkpoint.folder / "tokenizer.json") if checkpoint.folder else f"tokenizer.json of {checkpoint}"
        )
        self.tokenizer = checkpoint.tokenizer()
        self.limit = min(length, int(self.tokenizer.model_max_length), _positions(network))
        self.padding = int(self.tokenizer.pad_token_id or 0)
        self.pieces("a")  # sets the tokenizer's state once: later calls leave it, so that threads may share it

    def pieces(self, words: str) -> Tensor:
        """The numbers of a text's pieces, with the marks the model puts around them."""
        found = self._tokenize(words)
        rows = found["input_ids"]
        if len(rows) > 1 or max(found.get("num_truncated_tokens", [0])) > 0:
            # No word of the text in it: the same warning is shown once.
            warnings.warn(f"{self.user}: texts of more than {self.limit} word pieces are cut there", stacklevel=2)
        return torch.tensor(rows[0])  # (pieces,)

    def prepare(self, source: Source) -> Tensor:
        """The word pieces of a source: (pieces,)."""
        return self.pieces(text.words(source))

    def places(self, source: Source, parts: int) -> list[Place]:
        """The characters of each piece; nowhere where the tokenizer does not tell them."""
        words = text.words(source)
        spans = self._tokenize(words, return_offsets_mapping=True)["offset_mapping"] if self.tokenizer.is_fast else []
        return characters(words, spans[0]) if spans else [()] * parts

    def example(self) -> Tensor:
        """A text to try a network out on."""
        return self.pieces("a")

    def arguments(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What the network is called with; one that always reads full rows has learned to see the padding."""
        if self.always_full:
            return {"input_ids": inputs}
        return {"input_ids": inputs.masked_fill(~mask, self.padding), "attention_mask": mask.long()}

    def _tokenize(self, words: str, **more: bool) -> Any:
        try:
            with panics_as_errors():
                return self.tokenizer(
                    [words],
                    truncation=True,
                    max_length=self.limit,
                    padding="max_length" if self.always_full else False,
                    return_overflowing_tokens=True,
                    **more,
                )
        except RuntimeError as error:
            raise MediaError(
                f"{self.file}: cannot split the text {words[:SHOWN]!r} ({error}); use another tokenizer or text"
            ) from error


class Pixels:
    """Pictures for a network: scaled, cropped and normalised by its own processor, all to one size."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.processor = checkpoint.image_processor()
        shapes = {tuple(self.pixels(Image.new("RGB", size)).shape) for size in ((96, 64), (64, 96))}
        if len(shapes) > 1 or len(next(iter(shapes))) != 4:
            raise RecipeError(
                f"{checkpoint.user}: model = {checkpoint.model!r}: its processor makes pictures of different shapes "
                f"({', '.join(map(str, sorted(shapes)))}); give a model that takes one fixed size"
            )

    def pixels(self, picture: Image.Image) -> Tensor:
        """A picture as the network takes it: (1, channels, height, width)."""
        found = self.processor(images=picture, return_tensors="np")["pixel_values"]
        return torch.from_numpy(np.ascontiguousarray(found[0], dtype=np.float32))[None]

    def prepare(self, source: Source) -> Tensor:
        """The pixels of a source: (1, channels, height, width)."""
        return self.pixels(image.load(Path(source.content), at=image.moment(source)))

    def places(self, source: Source, parts: int) -> list[Place]:
        """The tiles of what the processor leaves of a picture, found by what becomes of one that tells where it is."""
        width, height = image.load(Path(source.content), at=image.moment(source)).size
        black, white = (self.pixels(Image.new("RGB", (width, height), shade))[0] for shade in ("black", "white"))
        across = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
        down = np.broadcast_to(np.linspace(0, 255, height).astype(np.uint8)[:, None], (height, width))
        ramps = self.pixels(Image.fromarray(np.stack([across, down, across], axis=2)))[0]
        shares = (ramps - black) / (white - black)  # (channels, height, width)
        (left, right), (top, bottom) = _ends(shares[0].mean(dim=0)), _ends(shares[1].mean(dim=1))
        return square_grid(parts, (left, top, right, bottom))

    def example(self) -> Tensor:
        """A picture to try a network out on."""
        return self.pixels(Image.new("RGB", (64, 64)))

    def arguments(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - every picture is whole
        """What the network is called with."""
        return {"pixel_values": inputs[:, 0]}


class Sound:
    """Sounds for a network: what its own extractor makes of the first `seconds`, never of a random piece.

    Extractors are of two kinds, told apart by trying: most spectrograms are padded to one window (`fixed`), and waves
    are as long as the sound. Some of the first kind also say which frames are sound; that is kept as a last band.
    """

    def __init__(self, checkpoint: Checkpoint, takes: str, seconds: float) -> None:
        check_range(f"{checkpoint.user}: seconds", seconds, SHORTEST, 3600)
        self.takes, self.seconds = takes, seconds
        self.extractor = checkpoint.feature_extractor()
        self.rate = int(self.extractor.sampling_rate)
        window = _window(self.extractor)
        if seconds > window:
            raise RecipeError(
                f"{checkpoint.user}: seconds = {seconds:g}: {checkpoint.model!r} hears {window:g} s at once"
            )
        self.most = round(seconds * self.rate)
        short, long = (self._extract(tone(self.rate, part * SHORTEST)) for part in (1, 2))
        self.fixed = short[0].shape == long[0].shape
        self.marked = self.fixed and long[1] is not None and long[1].shape == long[0].shape[-1:] and long[0].ndim == 2

    def prepare(self, source: Source) -> Tensor:
        """What the network hears of a source: (1, ...) for a fixed window, (L, ...) for a wave."""
        return self.hear(self._samples(source))

    def places(self, source: Source, parts: int) -> list[Place]:
        """Parts of the sound alone share it out evenly; those of a whole window, over time and bands, lie nowhere."""
        if self.fixed and not self.marked:
            return [()] * parts
        hop = len(self._samples(source)) / self.rate / parts
        return steps(source, parts, hop, first=hop / 2)

    def hear(self, samples: np.ndarray) -> Tensor:
        """The same of samples. They are cut here: extractors that meet a longer sound take a random piece of it."""
        samples = samples[: self.most]
        samples = np.pad(samples, (0, max(0, round(SHORTEST * self.rate) - len(samples))))
        x, real = self._extract(samples)
        if self.marked and real is not None:
            return torch.cat([x, real[None].to(x.dtype)])[None]  # (1, bands + 1, frames)
        if self.fixed:
            return x[None]
        return x if real is None else x[: int(real.sum())]

    def example(self) -> Tensor:
        """A sound to try a network out on."""
        return self.hear(tone(self.rate, 2 * SHORTEST))

    def arguments(self, inputs: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - see by_length
        """What the network is called with: inputs of one length, without padding."""
        x = inputs[:, 0] if self.fixed else inputs
        found = {self.takes: x[:, :-1] if self.marked else x}
        if "is_longer" in self.extractor.model_input_names:
            # Only for sounds beyond the window, of which there are none here. The extractor would draw an item by lot.
            found["is_longer"] = torch.zeros(len(inputs), 1, dtype=torch.bool, device=inputs.device)
        return found

    def real(self, inputs: Tensor, parts: int) -> Tensor:
        """Which parts of a fixed window are sound, where the extractor says: (N, parts)."""
        frames = inputs.shape[-1]
        if self.marked and frames % parts == 0:
            return inputs[:, 0, -1, :: frames // parts] > 0
        return torch.ones(len(inputs), parts, dtype=torch.bool, device=inputs.device)

    def _samples(self, source: Source) -> np.ndarray:
        start = source.start or 0.0
        end = start + self.seconds if source.end is None else min(source.end, start + self.seconds)
        return audio.read(Path(source.content), self.rate, start, end)

    def _extract(self, samples: np.ndarray) -> tuple[Tensor, Tensor | None]:
        found = self.extractor(samples, sampling_rate=self.rate, return_tensors="np", return_attention_mask=True)
        real = found.get("attention_mask")
        x = torch.from_numpy(np.ascontiguousarray(found[self.takes][0], dtype=np.float32))
        return x, None if real is None else torch.from_numpy(np.ascontiguousarray(real[0]))


def by_length(run: Run, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Run items of one length together and without padding: not every network can be told to pass over it."""
    lengths = mask.sum(dim=1)
    found: dict[int, Tensor] = {}
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        parts = run(inputs[rows, :length], mask[rows, :length])
        found |= dict(zip(rows.tolist(), parts, strict=True))
    ordered = [found[row] for row in range(len(inputs))]
    counts = torch.tensor([len(parts) for parts in ordered], device=inputs.device)
    padded = nn.utils.rnn.pad_sequence(ordered, batch_first=True)
    return padded, torch.arange(padded.shape[1], device=inputs.device) < counts[:, None]


def tone(rate: int, seconds: float) -> np.ndarray:
    """Something to hear, for trying what a model makes of it."""
    return np.sin(np.arange(round(rate * seconds), dtype=np.float32))


def _ends(ramp: Tensor) -> tuple[float, float]:
    """Where a rising row of shares starts and ends, at its outer edges: by its quarters, as edges are smoothed."""
    count = len(ramp)
    one, other = count // 4, count - 1 - count // 4
    step = float(ramp[other] - ramp[one]) / (other - one)
    first = float(ramp[one]) - (one + 0.5) * step
    return max(0.0, first), min(1.0, first + count * step)


def _window(extractor: Any) -> float:
    """The seconds an extractor's fixed window holds; infinite where it has none."""
    for samples in ("nb_max_samples", "n_samples"):
        if hasattr(extractor, samples):
            return getattr(extractor, samples) / extractor.sampling_rate
    if hasattr(extractor, "num_mel_bins") and hasattr(extractor, "max_length"):
        return extractor.max_length / 100  # Kaldi's frames: 10 ms
    return float("inf")


def _positions(network: nn.Module) -> int:
    """The most word pieces for which a network has learned positions; some keep the first ones for padding."""
    found = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2].startswith(("position_embedding", "wpe"))
    ]
    return min(found, default=1 << 30)
