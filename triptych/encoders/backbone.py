"""One network of the transformers library for one modality; its parts are its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from triptych.contracts import Encoder, Modality, Place, Source
from triptych.encoders import hugging_face
from triptych.encoders.hugging_face import Checkpoint, Pixels, Sound, Words, by_length
from triptych.errors import RecipeError, check_range

INPUTS = {"image": {"pixel_values"}, "audio": {"input_values", "input_features"}, "text": {"input_ids"}}
TOWERS = {"image": "vision_model", "audio": "audio_model", "text": "text_model"}  # inside models of two modalities
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
    kind = "region"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(self, model: str = "", revision: str = "main", layer: int = -1, frozen: bool = True) -> None:
        super().__init__()
        self.model, self.revision, self.layer, self.frozen = model, revision, layer, frozen
        self.checkpoint = Checkpoint("hf_image", model, revision)
        self.origin = str(self.checkpoint)
        self.network = tower(self.checkpoint, "image")
        self.pixels = Pixels(self.checkpoint)
        self.width = hugging_face.try_out(self.checkpoint, self.network, self._run, self.pixels.example())

    @classmethod
    def missing(cls) -> str | None:
        return hugging_face.missing()

    def prepare(self, source: Source) -> Tensor:
        return self.pixels.prepare(source)  # (1, channels, height, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        parts = self._run(inputs, mask)
        return parts, mask.expand(-1, parts.shape[1])

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        return self.pixels.places(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return hidden(self.checkpoint, self.network, self.layer, self.pixels.arguments(inputs, mask))


class HuggingFaceAudio(Encoder):
    """Sounds through any audio network of transformers: wav2vec 2.0, HuBERT, WavLM, AST, Whisper's encoder, CLAP's …

    parts = hidden states after layer `layer` (-1: the network's own last output); a map is read row by row

    Source: the transformers library (Wolf et al. 2020), and the network's own paper.
    Use when: a network that has heard thousands of hours should listen for you.
    Beware: of a longer sound the first `seconds` are heard, in training; it is indexed in moments of that length.
    Waves of different lengths are run one length at a time, as padding would change them: clips of one length are
    quicker. Networks with a fixed window also hear the silence after a short sound; only Whisper's parts of it are
    left out. A frozen network is not saved with the space: its folder must stay where it is.
    """

    modality = "audio"
    kind = "frame"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        layer: int = -1,
        seconds: float = 10.0,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.revision, self.layer, self.seconds, self.frozen = model, revision, layer, seconds, frozen
        self.checkpoint = Checkpoint("hf_audio", model, revision)
        self.origin = str(self.checkpoint)
        self.network = tower(self.checkpoint, "audio")
        self.sound = Sound(self.checkpoint, str(self.network.main_input_name), seconds)
        self.width = hugging_face.try_out(self.checkpoint, self.network, self._run, self.sound.example())

    @classmethod
    def missing(cls) -> str | None:
        return hugging_face.missing()

    def prepare(self, source: Source) -> Tensor:
        return self.sound.prepare(source)  # (1, ...) of a fixed window, (L, ...) of a wave

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if not self.sound.fixed:
            return by_length(self._run, inputs, mask)
        parts = self._run(inputs, mask)
        return parts, self.sound.real(inputs, parts.shape[1])

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        return self.sound.places(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return hidden(self.checkpoint, self.network, self.layer, self.sound.arguments(inputs, mask))


class HuggingFaceText(Encoder):
    """Texts through any text network of transformers: BERT, RoBERTa, MPNet, DistilBERT, the encoder of T5 …

    parts = hidden states after layer `layer` (-1: the network's own last output), one per word piece

    Source: the transformers library (Wolf et al. 2020), and the network's own paper.
    Use when: a network that has read millions of sentences should read for you.
    Beware: the marks a tokenizer puts around a text are parts too, as in the mean of sentence-transformers. A text of
    more than `length` pieces, or of more than the network takes, is cut with a warning. A frozen network is not saved
    with the space: its folder must stay where it is.
    """

    modality = "text"
    kind = "word piece"
    frozen = True
    origin, licence = ORIGIN, LICENCE

    def __init__(
        self,
        model: str = "",
        revision: str = "main",
        layer: int = -1,
        length: int = 512,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        check_range("hf_text: length", length, 4, 1_000_000)
        self.model, self.revision, self.layer, self.length, self.frozen = model, revision, layer, length, frozen
        self.checkpoint = Checkpoint("hf_text", model, revision)
        self.origin = str(self.checkpoint)
        self.network = tower(self.checkpoint, "text")
        self.words = Words(self.checkpoint, self.network, length)
        self.width = hugging_face.try_out(self.checkpoint, self.network, self._run, self.words.example())

    @classmethod
    def missing(cls) -> str | None:
        return hugging_face.missing()

    def prepare(self, source: Source) -> Tensor:
        return self.words.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(inputs, mask), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:
        return self.words.places(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return hidden(self.checkpoint, self.network, self.layer, self.words.arguments(inputs, mask))


def tower(checkpoint: Checkpoint, modality: Modality) -> Any:
    """The network of a checkpoint that takes a modality: all of it, one side of two, or the encoder of a decoder."""
    network = checkpoint.load()
    config = network.config
    side = getattr(network, TOWERS[modality], None)
    if isinstance(side, nn.Module):
        network = side
    elif getattr(config, "is_encoder_decoder", False):
        network = network.get_encoder()
    if network.main_input_name not in INPUTS[modality]:
        raise RecipeError(
            f"{checkpoint.user}: model = {checkpoint.model!r} is of type {getattr(config, 'model_type', '?')!r} and "
            f"takes {network.main_input_name}: it is not for {modality}"
        )
    return network


def hidden(checkpoint: Checkpoint, network: nn.Module, layer: int, arguments: dict[str, Tensor]) -> Tensor:
    """The hidden states after a layer: (N, P, D)."""
    output = network(**arguments, output_hidden_states=layer != -1)
    if layer == -1:
        x = output.last_hidden_state
    else:
        states = output.hidden_states
        if not -len(states) <= layer < len(states):
            raise RecipeError(
                f"{checkpoint.user}: layer = {layer}: must be between {-len(states)} and {len(states) - 1}"
            )
        x = states[layer]
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x  # a map (N, D, height, width), row by row
