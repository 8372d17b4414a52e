"""Encoders from models that embed two modalities in one space. The only part of an item is its embedding."""

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
from triptych.encoders.tower import Tower, prepare_for_tower, run_tower
from triptych.errors import RecipeError
from triptych.interfaces import MODALITIES, Encoder, Modality

# The keys are the values of `model_type` in config.json for the supported models. A supported model embeds each item as
# one vector in a joint space.
IMAGE_TEXT_MODELS = ("align", "altclip", "chinese_clip", "clip", "metaclip_2", "siglip", "vision-text-dual-encoder")
MODALITIES_BY_MODEL_TYPE: dict[str, tuple[Modality, ...]] = {
    "clap": ("audio", "text"),
    **dict.fromkeys(IMAGE_TEXT_MODELS, ("image", "text")),
}
PADDED_TEXT_MODELS = {"siglip"}  # these models were trained with padded texts and without an attention mask
# The names of the modules of each tower start with these strings.
TOWER_PREFIXES = {"image": "vis", "audio": "audio", "text": "text"}
UNLIMITED_TOKENS = 1 << 20  # this number exceeds the limit of every model, so that the limit of the model applies


class JointImage(Encoder):
    """The image tower of a model with a joint space of images and texts: CLIP, SigLIP, ALIGN, Chinese CLIP …

    parts = the projected embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Jia et al. 2021 (ALIGN).
    Use when: you want to search without training, or to fine-tune a model. Add `joint_text` of the same model.
    Beware: an item has one part, so the similarities `matchmap` and `word_region` have no advantage. The file of a
    saved space does not contain the weights of a frozen network, so do not move or delete the folder of the model.
    """

    modality = "image"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_tower

    def __init__(self, model: str = "", revision: str = "main", frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.frozen = model, revision, frozen
        pretrained = PretrainedModel("joint_image", model, revision)
        network, inputs = load_joint_tower(pretrained, "image"), ImageInput(pretrained)
        self.tower = Tower(pretrained, network, inputs, partial(joint_embedding, "image"), pooled=True)
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()


class JointAudio(Encoder):
    """The audio tower of a model with a joint space of audio and texts: CLAP.

    parts = the projected embedding of the model, one part per item

    Source: Wu et al. 2023 (LAION's CLAP), Elizalde et al. 2023.
    Use when: you want to search without training, or to fine-tune a model. Add `joint_text` of the same model.
    Beware: if a file is longer than `max_seconds`, training uses only the start of the file. Indexing splits the file
    into segments of `max_seconds`. The transformers library itself takes random crops of a long file, so that the
    embedding of the file varies. An item has one part, so the similarities `matchmap` and `word_region` have no
    advantage. The file of a saved space does not contain the weights of a frozen network, so do not move or delete the
    folder of the model.
    """

    modality = "audio"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_tower

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


class JointText(Encoder):
    """The text tower of a model with a joint space of texts and images or audio: CLIP, SigLIP, CLAP …

    parts = the projected embedding of the model, one part per item

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Wu et al. 2023 (LAION's CLAP).
    Use when: you want to search without training, or to fine-tune a model. Add `joint_image` or `joint_audio` of the
    same model.
    Beware: a text longer than the model supports (CLIP: 77 tokens, SigLIP: 64) is truncated with a warning. An item has
    one part, so the similarities `matchmap` and `word_region` have no advantage. The file of a saved space does not
    contain the weights of a frozen network, so do not move or delete the folder of the model.
    """

    modality = "text"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward = prepare_for_tower, run_tower

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


def joint_modalities(folder: str | Path) -> tuple[Modality, ...] | None:
    """Return the modalities of the joint model in a folder, in the order of MODALITIES, or None for other models."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        modalities = MODALITIES_BY_MODEL_TYPE.get(config.get("model_type", ""))
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return None if modalities is None else tuple(m for m in MODALITIES if m in modalities)


def load_joint_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """Load the tower of one modality of a joint model, and delete the tower of the other modality.

    The two encoders of a space therefore share no weights, and no weight is stored twice.
    """
    network = pretrained.load_network()
    model_type = getattr(network.config, "model_type", "?")
    if modality not in MODALITIES_BY_MODEL_TYPE.get(model_type, ()):
        supported = ", ".join(sorted(t for t, modalities in MODALITIES_BY_MODEL_TYPE.items() if modality in modalities))
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} is of type {model_type!r}, which has no joint "
            f"space with {modality}; supported types: {supported}"
        )
    for name, _ in list(network.named_children()):
        if not name.startswith(TOWER_PREFIXES[modality]):
            delattr(network, name)
    for name, _ in list(network.named_parameters(recurse=False)):
        delattr(network, name)  # deletes the temperature, because in triptych the objective has the temperature
    return network


def joint_embedding(modality: Modality, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the projected embedding as the only part of each item: (N, 1, D)."""
    output = getattr(network, f"get_{modality}_features")(**arguments)
    return getattr(output, "pooler_output", output).unsqueeze(1)
