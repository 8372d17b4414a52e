"""Encoders that wrap a single-modality network of the transformers library. Parts are the hidden states."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from triptych.encoders import hugging_face
from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, TextInput
from triptych.encoders.tower import Tower, locate_tower_parts, prepare_for_tower, run_tower
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Modality

INPUT_NAMES = {"image": {"pixel_values"}, "audio": {"input_values", "input_features"}, "text": {"input_ids"}}
# The attributes that contain the network of one modality in a model of two modalities.
TOWER_ATTRIBUTES = {"image": "vision_model", "audio": "audio_model", "text": "text_model"}
ORIGIN, LICENCE = "the pretrained model that the setting `model` names", "that of the model"


class HuggingFaceImage(Encoder):
    """Any image network of the transformers library: ViT, DINOv2, ConvNeXt, the image tower of CLIP or SigLIP …

    parts = hidden states after layer `layer` (-1: the output of the network). Feature maps are read row by row

    Source: the transformers library (Wolf et al. 2020) and the paper about the chosen network.
    Use when: you want features of a network pretrained on millions of images.
    Beware: the first part is the class token, if the network has one. The file of a saved space does not contain the
    weights of a frozen network, so do not move or delete the folder of the model. For a model on the Hugging Face hub,
    set `revision` to a commit, because the weights of a branch may change.
    """

    modality = "image"
    part_name = "region"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward, part_locations = prepare_for_tower, run_tower, locate_tower_parts

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


class HuggingFaceAudio(Encoder):
    """Any audio network of the transformers library: wav2vec 2.0, HuBERT, WavLM, AST, the encoder of Whisper, CLAP …

    parts = hidden states after layer `layer` (-1: the output of the network). Feature maps are read row by row

    Source: the transformers library (Wolf et al. 2020) and the paper about the chosen network.
    Use when: you want features of a network pretrained on thousands of hours of audio.
    Beware: if a file is longer than `max_seconds`, training uses only the start of the file. Indexing splits the file
    into segments of `max_seconds`. Padding would change the result, so the encoder runs the network once for each
    length of waveform. Files of equal length are therefore faster. Networks with a fixed window also encode the silence
    that pads short audio. Only for Whisper are the parts of this silence masked. The file of a saved space does not
    contain the weights of a frozen network, so do not move or delete the folder of the model.
    """

    modality = "audio"
    part_name = "frame"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward, part_locations = prepare_for_tower, run_tower, locate_tower_parts

    def __init__(
        self, model: str = "", revision: str = "main", layer: int = -1, max_seconds: float = 10.0, frozen: bool = True
    ) -> None:
        super().__init__()
        self.model, self.revision, self.layer = model, revision, layer
        self.max_seconds, self.frozen = max_seconds, frozen
        pretrained = PretrainedModel("hf_audio", model, revision)
        network = load_tower(pretrained, "audio")
        inputs = AudioInput(pretrained, max_seconds)
        self.tower = Tower(pretrained, network, inputs, partial(hidden_states, pretrained, layer))
        self.origin, self.feature_dim = str(pretrained), self.tower.feature_dim

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()


class HuggingFaceText(Encoder):
    """Any text network of the transformers library: BERT, RoBERTa, MPNet, DistilBERT, the encoder of T5 …

    parts = hidden states after layer `layer` (-1: the output of the network), one part per token

    Source: the transformers library (Wolf et al. 2020) and the paper about the chosen network.
    Use when: you want features of a network pretrained on millions of sentences.
    Beware: special tokens such as [CLS] are parts too, as in the sentence-transformers library. A text of more than
    `max_length` tokens, or of more tokens than the network supports, is truncated with a warning. The file of a saved
    space does not contain the weights of a frozen network, so do not move or delete the folder of the model.
    """

    modality = "text"
    part_name = "token"
    frozen = True
    origin, licence = ORIGIN, LICENCE
    prepare, forward, part_locations = prepare_for_tower, run_tower, locate_tower_parts

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


def load_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """Load the network of a modality: the full model, one of its towers, or the encoder of an encoder-decoder."""
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
    """Return the hidden states (N, P, D) after layer number `layer` of a network."""
    output = network(**arguments, output_hidden_states=layer != -1)
    states = [output.last_hidden_state] if layer == -1 else output.hidden_states
    if not -len(states) <= layer < len(states):
        limits = f"must be between {-len(states)} and {len(states) - 1}"
        raise RecipeError(f"{pretrained.encoder_name}: layer = {layer}: {limits}")
    x = states[layer]
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x  # flattens a feature map (N, D, height, width) row by row
