"""Encoders that wrap any single-modality network of the transformers library; parts are hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from triptych.encoders import hugging_face
from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, TextInput
from triptych.encoders.tower import Tower
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Modality, Region, Source

INPUT_NAMES = {"image": {"pixel_values"}, "audio": {"input_values", "input_features"}, "text": {"input_ids"}}
# Attribute that contains the network of one modality, in models of two modalities.
TOWER_ATTRIBUTES = {"image": "vision_model", "audio": "audio_model", "text": "text_model"}
ORIGIN, LICENCE = "the model named in `model`", "the licence of the model"


class HuggingFaceImage(Encoder):
    """Any image network of transformers: ViT, DINOv2, ConvNeXt, the image tower of CLIP or SigLIP …

    parts = hidden states after layer `layer` (-1: the final output of the network); a feature map is read row by row

    Source: the transformers library (Wolf et al. 2020), and the paper of the network.
    Use when: you want features of a network pretrained on millions of images.
    Beware: if the network has a class token, it is the first part. The space file does not contain the weights of a
    frozen network, so keep the folder of the model where it is. Set `revision` of a hub model to a commit, because
    the weights of a branch may change.
    """

    modality = "image"
    part_name = "region"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", layer: int = -1, frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.layer, self.frozen = model, revision, layer, frozen
        pretrained = PretrainedModel("hf_image", model, revision)
        network = load_tower(pretrained, "image")
        self.tower = Tower(pretrained, network, ImageInput(pretrained), partial(hidden_states, pretrained, layer))
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (1, channels, height, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.tower.part_locations(source, parts)


class HuggingFaceAudio(Encoder):
    """Any audio network of transformers: wav2vec 2.0, HuBERT, WavLM, AST, the encoder of Whisper, CLAP …

    parts = hidden states after layer `layer` (-1: the final output of the network); a feature map is read row by row

    Source: the transformers library (Wolf et al. 2020), and the paper of the network.
    Use when: you want features of a network pretrained on thousands of hours of audio.
    Beware: if a file is longer than `max_seconds`, training uses only its start, and indexing splits the file into
    segments of `max_seconds`. Waveforms of different lengths are encoded one length at a time, because padding would
    change the result; files of equal length are faster. Networks with a fixed window also encode the silence after
    short audio; the silent parts are masked for Whisper only. The space file does not contain the weights of a frozen
    network, so keep the folder of the model where it is.
    """

    modality = "audio"
    part_name = "frame"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self, model: str = "", revision: str = "main", layer: int = -1, max_seconds: float = 10.0, frozen: bool = True
    ) -> None:
        super().__init__()
        self.model, self.revision, self.layer = model, revision, layer
        self.max_seconds, self.frozen = max_seconds, frozen
        pretrained = PretrainedModel("hf_audio", model, revision)
        network = load_tower(pretrained, "audio")
        inputs = AudioInput(pretrained, str(network.main_input_name), max_seconds)
        self.tower = Tower(pretrained, network, inputs, partial(hidden_states, pretrained, layer))
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (1, ...) for a fixed window, (L, ...) for a waveform

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.tower.part_locations(source, parts)


class HuggingFaceText(Encoder):
    """Any text network of transformers: BERT, RoBERTa, MPNet, DistilBERT, the encoder of T5 …

    parts = hidden states after layer `layer` (-1: the final output of the network), one per token

    Source: the transformers library (Wolf et al. 2020), and the paper of the network.
    Use when: you want features of a network pretrained on millions of sentences.
    Beware: special tokens are parts too, as in sentence-transformers. A text of more than `max_length` tokens, or of
    more tokens than the network supports, is truncated with a warning. The space file does not contain the weights of a
    frozen network, so keep the folder of the model where it is.
    """

    modality = "text"
    part_name = "token"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self, model: str = "", revision: str = "main", layer: int = -1, max_length: int = 512, frozen: bool = True
    ) -> None:
        super().__init__()
        check_range("hf_text: max_length", max_length, 4, 1_000_000)
        self.model, self.revision, self.layer, self.max_length, self.frozen = model, revision, layer, max_length, frozen
        pretrained = PretrainedModel("hf_text", model, revision)
        network = load_tower(pretrained, "text")
        inputs = TextInput(pretrained, network, max_length)
        self.tower = Tower(pretrained, network, inputs, partial(hidden_states, pretrained, layer))
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.tower.prepare(source)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(inputs, mask)

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.tower.part_locations(source, parts)


def load_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """Load the network of a modality: the model, one of two towers, or the encoder of an encoder-decoder model."""
    network = pretrained.load_network()
    config = network.config
    modality_tower = getattr(network, TOWER_ATTRIBUTES[modality], None)
    if isinstance(modality_tower, nn.Module):
        network = modality_tower
    elif getattr(config, "is_encoder_decoder", False):
        network = network.get_encoder()
    if network.main_input_name not in INPUT_NAMES[modality]:
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} is of type "
            f"{getattr(config, 'model_type', '?')!r} and takes {network.main_input_name}; need a model for {modality}"
        )
    return network


def hidden_states(pretrained: PretrainedModel, layer: int, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the hidden states after a layer: (N, P, D)."""
    output = network(**arguments, output_hidden_states=layer != -1)
    if layer == -1:
        x = output.last_hidden_state
    else:
        states = output.hidden_states
        if not -len(states) <= layer < len(states):
            raise RecipeError(
                f"{pretrained.encoder_name}: layer = {layer}: must be between {-len(states)} and {len(states) - 1}"
            )
        x = states[layer]
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x  # a feature map (N, D, height, width), row by row
