"""Load models of the transformers library from a folder or from the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from triptych.encoders.rust_panics import convert_rust_panics
from triptych.errors import RecipeError
from triptych.hub import INSTALL_PRETRAINED

# Weights whose names contain these words may be missing from a checkpoint, because hidden states do not depend on these
# weights.
OPTIONAL_WEIGHTS = ("pooler", "masked_spec_embed", "mask_token")
PROMPTS_FILE = "config_sentence_transformers.json"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names of the document prompt, in order of preference
DAMAGED = "the weights are incomplete or damaged: delete them and download the model again"
# Phrases in the exceptions of transformers, safetensors and sentence-transformers, and what the user can do.
ADVICE = {
    "trust_remote_code": "the model contains code, which triptych does not run: use a model that the library itself "
    "supports",
    "deserializing": DAMAGED,
    "No such file": DAMAGED,
    "does not recognize this architecture": "its model_type is unknown to the installed version: run "
    "pip install --upgrade transformers",
    "Should have a `model_type`": "its config.json belongs to another library, because it has no model_type: use the "
    "version of the model for transformers",
}


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

    def make_error(self, message: str) -> RecipeError:
        """Return an error whose message names the encoder and the model."""
        return RecipeError(f"{self.encoder_name}: model = {self.model!r}: {message}")

    def load_config(self) -> Any:
        """Load the configuration of the network."""
        self.check_available("transformers", INSTALL_PRETRAINED)
        from transformers import AutoConfig

        config = self._from_pretrained(AutoConfig.from_pretrained, "config.json")
        if hasattr(config, "apply_spec_augment"):
            # SpecAugment draws from NumPy's global generator, which triptych does not seed.
            config.apply_spec_augment = False
        return config

    def load_network(self, config: Any = None, dtype: torch.dtype = torch.float32) -> Any:
        """Load the network. A `config` without some towers loads only the other towers."""
        config = config or self.load_config()
        from transformers import AutoModel

        if self.folder:
            self.check_weight_files(self.folder)
        options = {"config": config, "use_safetensors": True, "dtype": dtype, "output_loading_info": True}
        network, report = self._from_pretrained(AutoModel.from_pretrained, "safetensors weights", **options)
        self.check_weights(network, report["missing_keys"])
        return network

    def check_weights(self, network: nn.Module, missing_keys: Iterable[str]) -> None:
        """Raise RecipeError if weights are missing from the file, or contain NaN or infinity."""
        missing = sorted(key for key in missing_keys if not any(name in key for name in OPTIONAL_WEIGHTS))
        if missing:
            raise self.make_error(f"{len(missing)} weights are missing from the file, such as {missing[0]}")
        for name, weight in network.named_parameters():
            if not torch.isfinite(weight).all():
                remedy = "float16 is too small for some models: use the float32 or bfloat16 weights"
                raise self.make_error(f"the weights {name} contain NaN or infinity; {remedy}")

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

    def load_prompts(self) -> dict[str, str]:
        """Return the prompts that the model's file for sentence-transformers declares, without empty prompts."""
        from transformers.utils.hub import cached_file

        options = {f"_raise_exceptions_for_{problem}": False for problem in ("missing_entries", "connection_errors")}
        options |= {} if self.folder else {"revision": self.revision}
        path = cached_file(str(self.folder or self.model), PROMPTS_FILE, **options)
        try:
            prompts = json.loads(Path(path).read_text(encoding="utf-8"))["prompts"] if path else {}
            return normalise_prompts(prompts)
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return {}

    def check_available(self, library: str, install_command: str) -> None:
        """Raise RecipeError if the model or a library is missing. The check avoids an import that takes seconds."""
        if not self.model:
            hint = "set model to a folder or to a name on the Hugging Face hub"
            raise RecipeError(f"{self.encoder_name}: model is missing; {hint}")
        if not self.folder and (self.model.startswith(("/", ".", "~")) or self.model.count("/") > 1):
            raise self.make_error("no such folder")
        if find_spec(library) is None:
            raise RecipeError(f"{self.encoder_name}: {library} is not installed; run: {install_command}")

    def check_weight_files(self, folder: Path) -> None:
        """Raise RecipeError if a folder and its subfolders contain no safetensors weights."""
        if next(folder.rglob("*.safetensors"), None):
            return
        names = sorted(path.name for path in folder.iterdir())
        message = f"no *.safetensors in the folder; found: {', '.join(names[:8]) or 'no files'}. "
        if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
            message += "Pickled weights are not loaded, because they can run code: load the model on a machine you "
            message += "trust and save the model with save_pretrained"
        else:
            message += "The download is incomplete: connect to the network and download the model again"
        raise self.make_error(message)

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
        message = f"no readable {description} {location}: {explain_load_error(failures[-1])}"
        raise self.make_error(message) from failures[-1]


def explain_load_error(error: Exception) -> str:
    """Return the advice for an exception of a library that loads models, or the first line of its message."""
    text = str(error).strip()
    reason = next(iter(text.splitlines()), type(error).__name__)[:200]
    advice = next((advice for phrase, advice in ADVICE.items() if phrase in text), None)
    return f"{advice} ({reason})" if advice else reason


def normalise_prompts(prompts: dict[str, str]) -> dict[str, str]:
    """Return the prompts that are not empty, with the document prompt under the name "document"."""
    documents = [prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)]
    named = dict(prompts) | ({"document": documents[0]} if documents else {})
    return {name: str(prompt) for name, prompt in named.items() if prompt}


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
