"""One network of the transformers library for one modality; its parts are its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from triptych.encoders import hugging_face
from triptych.encoders.hugging_face import AudioInput, ImageInput, PretrainedModel, TextInput, forward_by_length
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Modality, Region, Source

INPUT_NAMES = {"image": {"pixel_values"}, "audio": {"input_values", "input_features"}, "text": {"input_ids"}}
TOWER_ATTRIBUTES = {
    "image": "vision_model",
    "audio": "audio_model",
    "text": "text_model",
}  # inside models of two modalities
ORIGIN, LICENCE = "the model it is given", "the model's own"


class HuggingFaceImage(Encoder):
    """Pictures through any image network of transformers: ViT, DINOv2, ConvNeXt, the image side of CLIP or SigLIP …

    parts = hidden states after layer `layer` (-1: the network's own last output); a map is read row by row

    Source: the transformers library (Wolf et al. 2020), and the network's own paper.
    Use when: a network that has seen millions of pictures should see for you.
    Beware: a class token, where there is one, is the first part. A frozen network is not saved with the space: its
    folder must stay where it is. Give the `revision` of a name on the hub as a commit, or it may change.
    """

    modality = "image"
    part_name = "region"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", layer: int = -1, frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.layer, self.frozen = model, revision, layer, frozen
        self.pretrained = PretrainedModel("hf_image", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_tower(self.pretrained, "image")
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
        parts = self._run(inputs, mask)
        return parts, mask.expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.image_input.part_locations(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return compute_hidden_states(
            self.pretrained, self.network, self.layer, self.image_input.model_inputs(inputs, mask)
        )


class HuggingFaceAudio(Encoder):
    """Sounds through any audio network of transformers: wav2vec 2.0, HuBERT, WavLM, AST, Whisper's encoder, CLAP's …

    parts = hidden states after layer `layer` (-1: the network's own last output); a map is read row by row

    Source: the transformers library (Wolf et al. 2020), and the network's own paper.
    Use when: a network that has heard thousands of hours should listen for you.
    Beware: of a longer sound the first `max_seconds` are heard, in training; it is indexed in moments of that length.
    Waves of different lengths are run one length at a time, as padding would change them: clips of one length are
    quicker. Networks with a fixed window also hear the silence after a short sound; only Whisper's parts of it are
    left out. A frozen network is not saved with the space: its folder must stay where it is.
    """

    modality = "audio"
    part_name = "frame"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        layer: int = -1,
        max_seconds: float = 10.0,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.revision, self.layer, self.max_seconds, self.frozen = (
            model,
            revision,
            layer,
            max_seconds,
            frozen,
        )
        self.pretrained = PretrainedModel("hf_audio", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_tower(self.pretrained, "audio")
        self.audio_input = AudioInput(self.pretrained, str(self.network.main_input_name), max_seconds)
        self.feature_dim = hugging_face.probe_feature_dim(
            self.pretrained, self.network, self._run, self.audio_input.example_input()
        )

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.audio_input.prepare(source)  # (1, ...) of a fixed window, (L, ...) of a wave

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if not self.audio_input.has_fixed_window:
            return forward_by_length(self._run, inputs, mask)
        parts = self._run(inputs, mask)
        return parts, self.audio_input.part_mask(inputs, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.audio_input.part_locations(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return compute_hidden_states(
            self.pretrained, self.network, self.layer, self.audio_input.model_inputs(inputs, mask)
        )


class HuggingFaceText(Encoder):
    """Texts through any text network of transformers: BERT, RoBERTa, MPNet, DistilBERT, the encoder of T5 …

    parts = hidden states after layer `layer` (-1: the network's own last output), one per word piece

    Source: the transformers library (Wolf et al. 2020), and the network's own paper.
    Use when: a network that has read millions of sentences should read for you.
    Beware: the marks a tokenizer puts around a text are parts too, as in the mean of sentence-transformers. A text of
    more than `max_length` pieces, or of more than the network takes, is cut with a warning. A frozen network is not saved
    with the space: its folder must stay where it is.
    """

    modality = "text"
    part_name = "token"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        layer: int = -1,
        max_length: int = 512,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        check_range("hf_text: max_length", max_length, 4, 1_000_000)
        self.model, self.revision, self.layer, self.max_length, self.frozen = model, revision, layer, max_length, frozen
        self.pretrained = PretrainedModel("hf_text", model, revision)
        self.origin = str(self.pretrained)
        self.network = load_tower(self.pretrained, "text")
        self.text_input = TextInput(self.pretrained, self.network, max_length)
        self.feature_dim = hugging_face.probe_feature_dim(
            self.pretrained, self.network, self._run, self.text_input.example_input()
        )

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return hugging_face.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        return self.text_input.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(inputs, mask), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return self.text_input.part_locations(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return compute_hidden_states(
            self.pretrained, self.network, self.layer, self.text_input.model_inputs(inputs, mask)
        )


def load_tower(pretrained: PretrainedModel, modality: Modality) -> Any:
    """The network of a checkpoint that takes a modality: all of it, one side of two, or the encoder of a decoder."""
    network = pretrained.load_network()
    config = network.config
    modality_tower = getattr(network, TOWER_ATTRIBUTES[modality], None)
    if isinstance(modality_tower, nn.Module):
        network = modality_tower
    elif getattr(config, "is_encoder_decoder", False):
        network = network.get_encoder()
    if network.main_input_name not in INPUT_NAMES[modality]:
        raise RecipeError(
            f"{pretrained.encoder_name}: model = {pretrained.model!r} is of type {getattr(config, 'model_type', '?')!r} and "
            f"takes {network.main_input_name}: it is not for {modality}"
        )
    return network


def compute_hidden_states(
    pretrained: PretrainedModel, network: nn.Module, layer: int, model_inputs: dict[str, Tensor]
) -> Tensor:
    """The hidden states after a layer: (N, P, D)."""
    output = network(**model_inputs, output_hidden_states=layer != -1)
    if layer == -1:
        x = output.last_hidden_state
    else:
        states = output.hidden_states
        if not -len(states) <= layer < len(states):
            raise RecipeError(
                f"{pretrained.encoder_name}: layer = {layer}: must be between {-len(states)} and {len(states) - 1}"
            )
        x = states[layer]
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x  # a map (N, D, height, width), row by row
