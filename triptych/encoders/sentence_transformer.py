"""Towers of models of the sentence-transformers library, for the library's modalities that triptych has too."""

from __future__ import annotations

import json
from importlib.metadata import version
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load as unpack_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor, nn

from triptych import hub
from triptych.encoders.hugging_face import (
    PretrainedModel,
    explain_load_error,
    normalise_prompts,
    silence_transformers,
)
from triptych.encoders.hugging_face_inputs import make_tone, resolve_max_seconds
from triptych.interfaces import MODALITIES, Modality, Source
from triptych.media import audio, image, text

LIBRARY, INSTALL_COMMAND = "sentence_transformers", hub.INSTALL_SENTENCE_TRANSFORMERS
MIN_VERSION = 6  # earlier versions run code that is in the folder of a model
TASKS = ("query", "document")  # prompt names that also select the sub-network of an asymmetric model
# The encoders of one space share one model.
_SHARED_MODELS: WeakValueDictionary[tuple[Any, ...], nn.Module] = WeakValueDictionary()


class SentenceTransformerTower(nn.Module):
    """A model of sentence-transformers, with the inputs of one modality.

    `prepare` returns bytes: the name of the prompt, and the text or the library's preprocessed image or audio.
    `forward` pads the texts of a batch as the library does. Images and audio are not padded.
    """

    def __init__(
        self, pretrained: PretrainedModel, modality: Modality, dtype: torch.dtype, max_seconds: float = 0.0
    ) -> None:
        super().__init__()
        self.model, self.modality, self._lock = load_sentence_transformer(pretrained, dtype), modality, Lock()
        if modality not in self.model.modalities:
            modalities = " and ".join(list_modalities(self.model)) or "none of triptych's modalities"
            raise pretrained.make_error(f"embeds {modalities}, but not {modality}")
        self.prompts = list_prompts(self.model)
        self.config = getattr(getattr(self.model[0], "auto_model", None), "config", None)
        if modality == "audio":
            processor = self.model[0].processor
            extractor = getattr(processor, "feature_extractor", processor)
            self.sample_rate = int(extractor.sampling_rate)
            self.max_seconds = resolve_max_seconds(pretrained, extractor, max_seconds or None)
        self.feature_dim = self._probe_feature_dim(pretrained)

    def prepare(self, source: Source) -> Tensor:
        """Return a source as bytes: (L,) uint8."""
        if self.modality == "text":
            item: Any = text.read_source(source)
        elif self.modality == "image":
            item = image.load_source(source)
        else:
            samples = audio.read_source(source, self.sample_rate, self.max_seconds)
            item = {"array": samples[: round(self.max_seconds * self.sample_rate)], "sampling_rate": self.sample_rate}
        return self._to_bytes(item, source.prompt_name or "")

    def _to_bytes(self, item: Any, prompt_name: str) -> Tensor:
        if self.modality == "text":
            fields = [prompt_name.encode(), item.encode()]
        else:
            features = self._preprocess([item], prompt_name)
            tensors = {name: x.contiguous() for name, x in features.items() if torch.is_tensor(x)}
            others = {name: x for name, x in features.items() if name not in tensors}
            fields = [prompt_name.encode(), json.dumps(others).encode(), pack_tensors(tensors)]
        return torch.from_numpy(np.frombuffer(b"\0".join(fields), np.uint8).copy())

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (N, 1, D) and their mask (N, 1)."""
        rows = [row[row_mask].cpu().numpy().tobytes() for row, row_mask in zip(inputs, mask, strict=True)]
        items = [row.split(b"\0", 1 if self.modality == "text" else 2) for row in rows]
        tensors = [{} if self.modality == "text" else unpack_tensors(item[2]) for item in items]
        shapes = [{name: x.shape for name, x in sorted(row.items())} for row in tensors]
        keys = [(item[0], *item[1:-1], str(shape)) for item, shape in zip(items, shapes, strict=True)]
        embeddings: dict[int, Tensor] = {}
        for key in dict.fromkeys(keys):
            indices, prompt_name = [i for i, other in enumerate(keys) if other == key], key[0].decode()
            if self.modality == "text":
                features = self._preprocess([items[i][1].decode() for i in indices], prompt_name)
            else:
                others = {k: x * len(indices) if isinstance(x, list) else x for k, x in json.loads(key[1]).items()}
                features = others | {k: torch.cat([tensors[i][k] for i in indices]) for k in shapes[indices[0]]}
            embeddings |= dict(zip(indices, self._embed(features, prompt_name, inputs.device), strict=True))
        return torch.stack([embeddings[i] for i in range(len(rows))]).unsqueeze(1), mask[:, :1]

    def _preprocess(self, items: list[Any], prompt_name: str) -> dict[str, Any]:
        prompt = self.model.prompts.get(prompt_name or self.model.default_prompt_name)
        with self._lock:  # tokenizers are not thread-safe
            return dict(self.model.preprocess(items, prompt=prompt, **_task_options(prompt_name)))

    def _embed(self, features: dict[str, Any], prompt_name: str, device: torch.device) -> Tensor:
        dtype = next((weight.dtype for weight in self.model.parameters()), torch.float32)
        for name, x in features.items():
            if torch.is_tensor(x):
                features[name] = x.to(device, dtype if x.is_floating_point() else None)
        return self.model(features, **_task_options(prompt_name))["sentence_embedding"].float()

    @torch.no_grad()
    def _probe_feature_dim(self, pretrained: PretrainedModel) -> int:
        """Return the dimension of the embedding of a test item. Raise RecipeError if the model fails."""
        if self.modality == "audio":
            item: Any = {"array": make_tone(self.sample_rate, 0.5), "sampling_rate": self.sample_rate}
        else:
            item = "a" if self.modality == "text" else Image.new("RGB", (64, 64))
        try:
            example = self._to_bytes(item, "")[None].to(self.model.device)
            return self(example, torch.ones_like(example, dtype=torch.bool))[0].shape[-1]
        except Exception as error:  # networks of other authors can raise any exception
            raise pretrained.make_error(f"fails on the output of its own preprocessing ({error})") from error


def load_sentence_transformer(pretrained: PretrainedModel, dtype: torch.dtype = torch.float32) -> Any:
    """Load a model of sentence-transformers. Encoders of one model share it. Code in the model's folder never runs."""
    pretrained.check_available(LIBRARY, INSTALL_COMMAND)
    if int(version("sentence-transformers").split(".")[0]) < MIN_VERSION:
        raise pretrained.make_error(f"needs sentence-transformers {MIN_VERSION} or newer; run: {INSTALL_COMMAND}")
    folder = pretrained.folder or hub.download(pretrained.model, pretrained.revision)
    pretrained.check_weight_files(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    key = (str(folder), dtype, *((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    if (shared := _SHARED_MODELS.get(key)) is not None:
        return shared
    from sentence_transformers import SentenceTransformer

    options: dict[str, Any] = {"device": "cpu", "trust_remote_code": False, "local_files_only": True}
    options["model_kwargs"] = {"dtype": dtype, "use_safetensors": True}
    try:
        with silence_transformers(show_progress=False):
            model = SentenceTransformer(str(folder), **options).eval()
    except Exception as error:  # an invalid file can raise any exception
        reason = explain_load_error(error)
        raise pretrained.make_error(f"sentence-transformers cannot load the model: {reason}") from error
    pretrained.check_weights(model, _find_missing_keys(model))
    _SHARED_MODELS[key] = model
    return model


def _find_missing_keys(model: nn.Module) -> list[str]:
    """Return the weights of the networks of transformers that were not in a file, and were set to random numbers.

    sentence-transformers only logs them. transformers marks each parameter that was loaded.
    """
    from transformers import PreTrainedModel

    networks = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    is_loaded = {n: hasattr(w, "_is_hf_initialized") for network in networks for n, w in network.named_parameters()}
    return [name for name, loaded in is_loaded.items() if not loaded] if any(is_loaded.values()) else []


def list_modalities(model: Any) -> tuple[Modality, ...]:
    """Return the modalities of a model of sentence-transformers that triptych has too, in the order of MODALITIES."""
    return tuple(m for m in MODALITIES if m in model.modalities)


def list_prompts(model: Any) -> dict[str, str]:
    """Return the prompts of a model by name. An asymmetric model has the prompts of both TASKS, which may be empty."""
    prompts = normalise_prompts(model.prompts)
    if model.default_prompt_name or any(type(module).__name__ == "Router" for module in model):
        prompts = dict.fromkeys(TASKS, "") | prompts
    return prompts


def _task_options(prompt_name: str) -> dict[str, str]:
    return {"task": prompt_name} if prompt_name in TASKS else {}
