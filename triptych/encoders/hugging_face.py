"""Load models of the transformers library from a folder or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from triptych.encoders.rust_panics import convert_rust_panics
from triptych.encoders.weights import INSTALL_PRETRAINED
from triptych.errors import RecipeError

# Weights whose names contain these words may be missing from a checkpoint, because hidden states do not depend on these
# weights.
OPTIONAL_WEIGHTS = ("pooler", "masked_spec_embed", "mask_token")


@dataclass(frozen=True)
class PretrainedModel:
    """A model in a folder or on the Hugging Face hub. Error messages start with `encoder_name`."""

    encoder_name: str
    model: str
    revision: str

    @property
    def folder(self) -> Path | None:
        """The folder of the model; None if the model is on the hub."""
        path = Path(self.model).expanduser()
        return path if self.model and path.is_dir() else None

    def __str__(self) -> str:
        return self.model if self.folder else f"{self.model}, revision {self.revision}"

    def load_network(self) -> Any:
        """Load the network in float32."""
        self._check_available()
        from transformers import AutoConfig, AutoModel

        config = self._from_pretrained(AutoConfig.from_pretrained, "config.json")
        if hasattr(config, "apply_spec_augment"):
            # SpecAugment draws from NumPy's global generator, which triptych does not seed.
            config.apply_spec_augment = False
        if self.folder and not list(self.folder.glob("*.safetensors")):
            file_names = ", ".join(sorted(path.name for path in self.folder.iterdir())[:8])
            raise RecipeError(
                f"{self.encoder_name}: model = {self.model!r}: no *.safetensors in the folder; found: {file_names}. "
                "Pickled weights are not loaded, because they can run code: load the model on a machine you trust and "
                "save the model with save_pretrained"
            )
        options = {"config": config, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        network, report = self._from_pretrained(AutoModel.from_pretrained, "safetensors weights", **options)
        missing = sorted(key for key in report["missing_keys"] if not any(name in key for name in OPTIONAL_WEIGHTS))
        if missing:
            message = f"{len(missing)} weights are missing from the file, such as {missing[0]}"
            raise RecipeError(f"{self.encoder_name}: model = {self.model!r}: {message}")
        return network

    def load_tokenizer(self) -> Any:
        """Load the tokenizer."""
        from transformers import AutoTokenizer

        return self._from_pretrained(AutoTokenizer.from_pretrained, "tokenizer")

    def load_image_processor(self) -> Any:
        """Load the image processor with the Pillow backend, so that results do not depend on torchvision."""
        from transformers import AutoImageProcessor

        return self._from_pretrained(AutoImageProcessor.from_pretrained, "image processor", backend="pil")

    def load_feature_extractor(self) -> Any:
        """Load the feature extractor, which converts audio samples to the input of the network."""
        from transformers import AutoFeatureExtractor

        return self._from_pretrained(AutoFeatureExtractor.from_pretrained, "feature extractor")

    def _check_available(self) -> None:
        """Raise RecipeError if the model or transformers is missing. The check avoids an import that takes seconds."""
        if not self.model:
            hint = "set model to a folder or to a name on the Hugging Face hub"
            raise RecipeError(f"{self.encoder_name}: model is missing; {hint}")
        if not self.folder and (self.model.startswith(("/", ".", "~")) or self.model.count("/") > 1):
            raise RecipeError(f"{self.encoder_name}: model = {self.model!r}: no such folder")
        if find_spec("transformers") is None:
            raise RecipeError(f"{self.encoder_name}: {unavailable_reason()}")

    def _from_pretrained(self, loader: Callable[..., Any], description: str, **options: Any) -> Any:
        """Load a component from the model's folder, the local cache or the hub. Code of the model is never run."""
        options |= {"trust_remote_code": False} | ({} if self.folder else {"revision": self.revision})
        failures: list[Exception] = []
        with silence_transformers(show_progress=not self.folder):
            for offline in (True,) if self.folder else (True, False):
                try:
                    with convert_rust_panics():
                        return loader(str(self.folder or self.model), local_files_only=offline, **options)
                except Exception as error:  # an invalid file can raise any exception
                    failures.append(error)
        location = "in this folder" if self.folder else "on the hub, and there is no such folder"
        reason = next(iter(str(failures[-1]).strip().splitlines()), type(failures[-1]).__name__)[:200]
        message = f"no readable {description} {location}: {reason}"
        raise RecipeError(f"{self.encoder_name}: model = {self.model!r}: {message}") from failures[-1]


@contextmanager
def silence_transformers(show_progress: bool) -> Iterator[None]:
    """Silence the logs of the transformers library within a block. Hide progress bars if `show_progress` is False."""
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
    """Return what the user must install or set before a Hugging Face encoder can be created."""
    if find_spec("transformers") is None:
        return f"transformers is not installed; run: {INSTALL_PRETRAINED}"
    return "the encoder has no default weights; set `model` to a folder or to a name on the Hugging Face hub"
