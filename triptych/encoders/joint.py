"""Models that already hold two modalities in one space: an item's one part is the model's own embedding of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from triptych.encoders import hugging_face
from triptych.encoders.hugging_face import AudioInput, ImageInput, PretrainedModel, TextInput
from triptych.errors import RecipeError
from triptych.interfaces import MODALITIES, Encoder, Modality, Source

# By the model_type in config.json. Left out: models whose features are not one vector in a space of both.
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
PADDED_TEXT_MODELS = {"siglip"}  # taught with texts padded to the full length, the padding in plain sight
TOWER_PREFIXES = {"image": "vis", "audio": "audio", "text": "text"}  # how the names of a side's layers begin
UNLIMITED_TOKENS = 1 << 20  # word pieces: the model's own limit counts
ORIGIN, LICENCE = "the model it is given", "the model's own"


class JointImage(Encoder):
    """Pictures by a model that already has pictures and texts in one space: CLIP, SigLIP, ALIGN, Chinese CLIP …

    parts = the model's own projected embedding, one for an item; their mean is that embedding

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Jia et al. 2021 (ALIGN).
    Use when: with `joint_text` of the same model, to search without training, or to train on from there.
    Beware: there is one part, so similarities that look for regions find none. A frozen network is not saved with the
    space: its folder must stay where it is.
    """

    modality = "image"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.frozen = model, revision, frozen
        self.pretrained = PretrainedModel("joint_image", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_joint_tower(self.pretrained, "image")
        self.image_input = ImageInput(self.pretrained)
        self.feature_dim = hugging_face.probe_feature_dim(
            self.pretrained, self.network, self._run, self.image_input.example_input()
        )

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.image_input.prepare(source)  # (1, channels, height, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(inputs, mask), mask[:, :1]

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return as_single_part(self.network.get_image_features(**self.image_input.model_inputs(inputs, mask)))


class JointAudio(Encoder):
    """Sounds by a model that already has sounds and texts in one space: CLAP.

    parts = the model's own projected embedding, one for an item; their mean is that embedding

    Source: Wu et al. 2023 (LAION's CLAP), Elizalde et al. 2023.
    Use when: with `joint_text` of the same model, to search without training, or to train on from there.
    Beware: of a longer sound the first `max_seconds` are heard, in training; it is indexed in moments of that length. The
    library itself hears a random piece instead, and with a fusion model a random mixture of three: the same file must
    always give the same vector. There is one part, so similarities that look for moments find none. A frozen network
    is not saved with the space: its folder must stay where it is.
    """

    modality = "audio"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", max_seconds: float = 10.0, frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.max_seconds, self.frozen = model, revision, max_seconds, frozen
        self.pretrained = PretrainedModel("joint_audio", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_joint_tower(self.pretrained, "audio")
        self.audio_input = AudioInput(self.pretrained, "input_features", max_seconds)
        self.feature_dim = hugging_face.probe_feature_dim(
            self.pretrained, self.network, self._run, self.audio_input.example_input()
        )

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.audio_input.prepare(source)  # (1, ...)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(inputs, mask), mask[:, :1]

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return as_single_part(self.network.get_audio_features(**self.audio_input.model_inputs(inputs, mask)))


class JointText(Encoder):
    """Texts by a model that already has texts in one space with pictures or sounds: CLIP, SigLIP, CLAP …

    parts = the model's own projected embedding, one for an item; their mean is that embedding

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Wu et al. 2023 (LAION's CLAP).
    Use when: with `joint_image` or `joint_audio` of the same model, to search without training, or to train on.
    Beware: a text longer than the model takes (CLIP: 77 word pieces, SigLIP: 64) is cut with a warning. There is one
    part, so similarities that look for words find none. A frozen network is not saved with the space: its folder must
    stay where it is.
    """

    modality = "text"
    part_name = "item"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.frozen = model, revision, frozen
        self.pretrained = PretrainedModel("joint_text", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_joint_tower(self.pretrained, "text")
        pad_to_max_length = self.network.config.model_type in PADDED_TEXT_MODELS
        self.text_input = TextInput(
            self.pretrained, self.network, UNLIMITED_TOKENS, pad_to_max_length=pad_to_max_length
        )
        self.feature_dim = hugging_face.probe_feature_dim(
            self.pretrained, self.network, self._run, self.text_input.example_input()
        )

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.text_input.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(inputs, mask), mask[:, :1]

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return as_single_part(self.network.get_text_features(**self.text_input.model_inputs(inputs, mask)))


def joint_modalities(folder: str | Path) -> tuple[Modality, ...] | None:
    """What a folder's model has in one space, in the order of MODALITIES; None where it is no such model."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        modalities = MODALITIES_BY_MODEL_TYPE.get(config.get("model_type", ""))
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return None if modalities is None else tuple(m for m in MODALITIES if m in modalities)


def load_joint_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """A joint model with one modality's layers alone.

    So the encoders of one model in a space hold it once between them, and share nothing that training could change.
    """
    network = pretrained.load_network()
    model_type = getattr(network.config, "model_type", "?")
    if modality not in MODALITIES_BY_MODEL_TYPE.get(model_type, ()):
        supported = ", ".join(
            sorted(name for name, modalities in MODALITIES_BY_MODEL_TYPE.items() if modality in modalities)
        )
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} is of type {model_type!r}, which has no {modality} in a space "
            f"with others; types that have: {supported}"
        )
    for name, _ in list(network.named_children()):
        if not name.startswith(TOWER_PREFIXES[modality]):
            delattr(network, name)
    for name, _ in list(network.named_parameters(recurse=False)):
        delattr(network, name)  # temperatures: they belong to an objective
    return network


def as_single_part(output: Any) -> Tensor:
    """The projected embedding as an item's one part: (N, 1, D)."""
    return getattr(output, "pooler_output", output).unsqueeze(1)
