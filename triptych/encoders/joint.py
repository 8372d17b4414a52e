"""Encoders from models that embed several modalities in one space. The only part of an item is its embedding."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from triptych.encoders import hugging_face
from triptych.encoders.backbone import LICENCE, ORIGIN
from triptych.encoders.hugging_face import PretrainedModel, explain_load_error
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, PatchInput, TextInput, make_image_input
from triptych.encoders.joint_networks import load_joint_network, matryoshka_dims
from triptych.encoders.sentence_transformer import SentenceTransformerTower
from triptych.encoders.tower import Tower, prepare_for_tower
from triptych.errors import RecipeError, TriptychError, check_range, describe_unknown
from triptych.interfaces import Encoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LIBRARIES = ("transformers", "sentence-transformers")
PADDED_TEXT_MODELS = {"siglip", "siglip2"}  # these models were trained with padded texts and without an attention mask
MAX_TOKENS = 8192  # no joint model was trained with longer texts; if the limit of a model is smaller, it applies
# The prompts of models, unless the model's file for sentence-transformers declares others.
DEFAULT_PROMPTS = {"embedding_gemma2": {"query": "task: search result | query: ", "document": "title: none | text: "}}


def run_joint_tower(self: Any, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, 1, D) that the tower of an encoder computes, and their mask (N, 1)."""
    parts, part_mask = self.tower(inputs, mask)
    return parts[:, :, : self.feature_dim], part_mask


class JointImage(Encoder):
    """The image tower of a joint model: CLIP, SigLIP, SigLIP 2, MetaCLIP 2, ALIGN, EmbeddingGemma 2 …

    parts = the embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Tschannen et al. 2025 (SigLIP 2), Jia et al. 2021
    (ALIGN), and the model card of the chosen model.
    Use when: you want to search without training, or to fine-tune a model. Add `joint_text` of the same model.
    Beware: an item has one part, so the similarities `matchmap` and `word_region` have no advantage. The file of a
    saved space does not contain the weights of a frozen network, so do not move or delete the folder of the model.
    `truncate_dim` keeps the first dimensions of the embedding (0: all dimensions). Truncation needs a model that was
    trained for it (Matryoshka). A video is embedded as one frame, even by a model that embeds videos.
    """

    modality = "image"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_joint_tower

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        library: str = "transformers",
        truncate_dim: int = 0,
        dtype: str = "float32",
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.revision, self.library = model, revision, library
        self.truncate_dim, self.dtype, self.frozen = truncate_dim, dtype, frozen
        _load_tower(self, "joint_image")

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()


class JointAudio(Encoder):
    """The audio tower of a joint model: CLAP, PE-AV, EmbeddingGemma 2 …

    parts = the embedding of the model, one part per item

    Source: Wu et al. 2023 (LAION's CLAP), Elizalde et al. 2023, and the model card of the chosen model.
    Use when: you want to search without training, or to fine-tune a model. Add `joint_text` of the same model.
    Beware: if a file is longer than `max_seconds`, training uses only the start of the file. Indexing splits the file
    into segments of `max_seconds`. With max_seconds = 0, the limit is that of the model, or 30 s if the model has no
    limit. The transformers library takes random crops of a long file for CLAP, so that the embedding of the file
    varies; triptych does not. An item has one part, so the similarities `matchmap` and `word_region` have no advantage.
    The file of a saved space does not contain the weights of a frozen network, so do not move or delete the folder of
    the model. `truncate_dim` keeps the first dimensions of the embedding (0: all dimensions). Truncation needs a model
    that was trained for it (Matryoshka).
    """

    modality = "audio"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_joint_tower

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        library: str = "transformers",
        max_seconds: float = 0.0,
        truncate_dim: int = 0,
        dtype: str = "float32",
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.revision, self.library, self.max_seconds = model, revision, library, max_seconds
        self.truncate_dim, self.dtype, self.frozen = truncate_dim, dtype, frozen
        _load_tower(self, "joint_audio")

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()


class JointText(Encoder):
    """The text tower of a joint model: CLIP, SigLIP, CLAP, EmbeddingGemma 2 …

    parts = the embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Wu et al. 2023 (LAION's CLAP), and the model card of
    the chosen model.
    Use when: you want to search without training, or to fine-tune a model. Add `joint_image` or `joint_audio` of the
    same model.
    Beware: a text longer than the model supports (CLIP: 77 tokens, SigLIP: 64) is truncated with a warning. An item has
    one part, so the similarities `matchmap` and `word_region` have no advantage. The file of a saved space does not
    contain the weights of a frozen network, so do not move or delete the folder of the model. `truncate_dim` keeps the
    first dimensions of the embedding (0: all dimensions). Truncation needs a model that was trained for it
    (Matryoshka).
    """

    modality = "text"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_joint_tower

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        library: str = "transformers",
        truncate_dim: int = 0,
        dtype: str = "float32",
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.revision, self.library = model, revision, library
        self.truncate_dim, self.dtype, self.frozen = truncate_dim, dtype, frozen
        _load_tower(self, "joint_text")

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()


def _load_tower(encoder: Any, name: str) -> None:
    """Load the tower of an encoder, and set the attributes of the encoder that depend on the model."""
    if encoder.dtype not in DTYPES:
        hint = "; many models overflow in float16" if encoder.dtype == "float16" else ""
        raise RecipeError(f"{name}: {describe_unknown('dtype', encoder.dtype, DTYPES)}{hint}")
    if encoder.library not in LIBRARIES:
        raise RecipeError(f"{name}: {describe_unknown('library', encoder.library, LIBRARIES)}")
    pretrained = PretrainedModel(name, encoder.model, encoder.revision)
    load = _load_transformers if encoder.library == "transformers" else _load_sentence_transformer
    encoder.tower, config = load(encoder, pretrained, DTYPES[encoder.dtype])
    encoder.origin, encoder.feature_dim = str(pretrained), encoder.tower.feature_dim
    if encoder.truncate_dim:
        check_range(f"{name}: truncate_dim", encoder.truncate_dim, 1, encoder.feature_dim)
        encoder.feature_dim, declared = encoder.truncate_dim, matryoshka_dims(config)
        if declared and encoder.truncate_dim not in declared:
            dims = ", ".join(map(str, declared))
            raise RecipeError(f"{name}: truncate_dim = {encoder.truncate_dim}: the model was trained for {dims}")
        if not declared:
            message = f"model = {encoder.model!r} does not declare to which dimensions embeddings can be truncated"
            warnings.warn(f"{name}: {message}; the quality may suffer", stacklevel=2)


def _load_transformers(encoder: Any, pretrained: PretrainedModel, dtype: torch.dtype) -> tuple[Tower, Any]:
    """Return the tower of a model of the transformers library, and the configuration of the model."""
    network, extract = load_joint_network(pretrained, encoder.modality, dtype, is_shared=encoder.frozen)
    config = network.config
    try:
        inputs = _make_inputs(encoder, pretrained, network)
    except TriptychError:
        raise
    except Exception as error:  # an invalid tokenizer or processor can raise any exception
        raise pretrained.make_error(f"its preprocessing fails: {explain_load_error(error)}") from error
    return Tower(pretrained, network, inputs, extract, pooled=True), config


def _make_inputs(
    encoder: Any, pretrained: PretrainedModel, network: Any
) -> ImageInput | PatchInput | AudioInput | TextInput:
    """Return the preprocessing of a modality, and set the attributes of the encoder that depend on it."""
    config = network.config
    if encoder.modality == "image":
        return make_image_input(pretrained)
    if encoder.modality == "audio":
        inputs = AudioInput(pretrained, encoder.max_seconds or None)
        encoder.max_seconds = inputs.max_seconds
        return inputs
    encoder.prompts = DEFAULT_PROMPTS.get(config.model_type, {}) | pretrained.load_prompts()
    limit = getattr(config.get_text_config(), "max_position_embeddings", MAX_TOKENS)
    is_padded = config.model_type in PADDED_TEXT_MODELS
    return TextInput(pretrained, network, min(limit, MAX_TOKENS), is_padded, encoder.prompts)


def _load_sentence_transformer(
    encoder: Any, pretrained: PretrainedModel, dtype: torch.dtype
) -> tuple[SentenceTransformerTower, Any]:
    """Return the tower of a model of sentence-transformers, and the configuration of its network."""
    if not encoder.frozen:
        remedy = "set frozen = true, or fine-tune the model with sentence-transformers"
        raise RecipeError(f"{pretrained.encoder_name}: a model of sentence-transformers cannot be trained; {remedy}")
    tower = SentenceTransformerTower(pretrained, encoder.modality, dtype, getattr(encoder, "max_seconds", 0.0))
    encoder.prompts = tower.prompts
    if encoder.modality == "audio":
        encoder.max_seconds = tower.max_seconds
    return tower, tower.config
