"""Encoders from models that embed two modalities in a joint space; the only part of an item is its embedding."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from triptych.encoders import hugging_face
from triptych.encoders.backbone import LICENCE, ORIGIN
from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, TextInput
from triptych.encoders.tower import Tower
from triptych.errors import RecipeError
from triptych.interfaces import MODALITIES, Encoder, Modality, Source

# Supported models by `model_type` in config.json. They embed each item as one vector in a joint space.
MODALITIES_BY_MODEL_TYPE: dict[str, tuple[Modality, ...]] = {
    "align": ("image", "text"),
    "altclip": ("image", "text"),
    "chinese_clip": ("image", "text"),
    "clap": ("audio", "text"),
    "clip": ("image", "text"),
    "metaclip_2": ("image", "text"),
    "siglip": ("image", "text"),
    "vision-text-dual-encoder": ("image", "text"),
}
PADDED_TEXT_MODELS = {"siglip"}  # trained with texts padded to the full length, without an attention mask
TOWER_PREFIXES = {"image": "vis", "audio": "audio", "text": "text"}  # prefixes of the module names of a tower
UNLIMITED_TOKENS = 1 << 20  # no limit besides the limit of the model


class JointImage(Encoder):
    """The image tower of a model with a joint space of images and texts: CLIP, SigLIP, ALIGN, Chinese CLIP …

    parts = the projected embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Jia et al. 2021 (ALIGN).
    Use when: you want to search without training, or to fine-tune, together with `joint_text` of the same model.
    Beware: an item has one part, so `matchmap` and `word_region` are of no use. The space file does not contain the
    weights of a frozen network, so keep the folder of the model where it is.
    """

    modality = "image"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.frozen = model, revision, frozen
        pretrained = PretrainedModel("joint_image", model, revision)
        network = load_joint_tower(pretrained, "image")
        extract = partial(joint_embedding, "image")
        self.tower = Tower(pretrained, network, ImageInput(pretrained), extract, pooled=True)
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (1, channels, height, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)


class JointAudio(Encoder):
    """The audio tower of a model with a joint space of audio and texts: CLAP.

    parts = the projected embedding of the model, one part per item

    Source: Wu et al. 2023 (LAION's CLAP), Elizalde et al. 2023.
    Use when: you want to search without training, or to fine-tune, together with `joint_text` of the same model.
    Beware: if a file is longer than `max_seconds`, training uses only its start, and indexing splits the file into
    segments of `max_seconds`. The transformers library would take random crops of a long file (fusion models: three),
    so that its embedding would vary. An item has one part, so `matchmap` and `word_region` are of no use.
    The space file does not contain the weights of a frozen network, so keep the folder of the model where it is.
    """

    modality = "audio"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", max_seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.max_seconds, self.frozen = model, revision, max_seconds, frozen
        pretrained = PretrainedModel("joint_audio", model, revision)
        network = load_joint_tower(pretrained, "audio")
        inputs = AudioInput(pretrained, "input_features", max_seconds)
        self.tower = Tower(pretrained, network, inputs, partial(joint_embedding, "audio"), pooled=True)
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (1, ...)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)


class JointText(Encoder):
    """The text tower of a model with a joint space of texts and images or audio: CLIP, SigLIP, CLAP …

    parts = the projected embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Wu et al. 2023 (LAION's CLAP).
    Use when: you want to search without training, or to fine-tune, together with `joint_image` or `joint_audio` of the
    same model.
    Beware: a text longer than the model supports (CLIP: 77 tokens, SigLIP: 64) is truncated with a warning. An item has
    one part, so `matchmap` and `word_region` are of no use. The space file does not contain the weights of a frozen
    network, so keep the folder of the model where it is.
    """

    modality = "text"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.frozen = model, revision, frozen
        pretrained = PretrainedModel("joint_text", model, revision)
        network = load_joint_tower(pretrained, "text")
        is_padded = network.config.model_type in PADDED_TEXT_MODELS
        inputs = TextInput(pretrained, network, UNLIMITED_TOKENS, pad_to_max_length=is_padded)
        self.tower = Tower(pretrained, network, inputs, partial(joint_embedding, "text"), pooled=True)
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)


def joint_modalities(folder: str | Path) -> tuple[Modality, ...] | None:
    """Return the modalities of the joint model in a folder, in the order of MODALITIES; None if there is no model."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        modalities = MODALITIES_BY_MODEL_TYPE.get(config.get("model_type", ""))
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return None if modalities is None else tuple(m for m in MODALITIES if m in modalities)


def load_joint_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """Load the tower of one modality of a joint model, and delete the tower of the other modality.

    The two encoders of a space then contain each weight once, and share no trainable weights.
    """
    network = pretrained.load_network()
    model_type = getattr(network.config, "model_type", "?")
    if modality not in MODALITIES_BY_MODEL_TYPE.get(model_type, ()):
        supported = ", ".join(
            sorted(name for name, modalities in MODALITIES_BY_MODEL_TYPE.items() if modality in modalities)
        )
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} is of type {model_type!r}, which has no joint "
            f"space with {modality}; supported types: {supported}"
        )
    for name, _ in list(network.named_children()):
        if not name.startswith(TOWER_PREFIXES[modality]):
            delattr(network, name)
    for name, _ in list(network.named_parameters(recurse=False)):
        delattr(network, name)  # the temperature is a parameter of the objective
    return network


def joint_embedding(modality: Modality, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the projected embedding as the only part of each item: (N, 1, D)."""
    output = getattr(network, f"get_{modality}_features")(**arguments)
    return getattr(output, "pooler_output", output).unsqueeze(1)
