"""Networks of the transformers library that embed several modalities in one space.

A network embeds its modalities in one of three ways: with a method for each modality (`get_image_features`), with an
encoder and a head for each modality, or as the mean of the hidden states of a language model that reads all modalities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from triptych.encoders.hugging_face import PretrainedModel
from triptych.interfaces import MODALITIES, Modality

Extract = Callable[[Any, dict[str, Tensor]], Tensor]  # calls a network, and returns one part per item: (N, 1, D)
# The names of the modules of each tower start with these strings.
TOWER_PREFIXES: dict[Modality, str] = {"image": "vis", "audio": "audio", "text": "text"}
# The values of `model_type` in config.json for models without a method for each modality.
MODELS_WITH_HEADS = {"pe_audio", "pe_audio_video"}
LANGUAGE_MODELS = {"embedding_gemma2"}
# With faster attention functions, the text embeddings of these models would depend on the padding of the batch.
EAGER_ATTENTION_MODELS = {"aimv2"}
TOWER_CONFIGS: dict[Modality, str] = {"image": "vision_config", "audio": "audio_config"}
# The tokenizer's attributes for the tokens before, of and after an image or audio in a text.
PLACEHOLDER_TOKENS: dict[Modality, tuple[str, str, str]] = {
    "image": ("boi_token", "image_token", "eoi_token"),
    "audio": ("boa_token", "audio_token", "eoa_token"),
}
AUDIO_FRAMES_PER_TOKEN = 4
MATRYOSHKA_DIMS = {"embedding_gemma2": (768, 512, 256, 128)}  # for models that do not declare them in config.json
# The encoders of one space share a frozen language model.
_SHARED_MODULES: WeakValueDictionary[tuple[Any, ...], nn.Module] = WeakValueDictionary()


def joint_modalities(config: Any) -> tuple[Modality, ...]:
    """Return the modalities that a model embeds in one space, in the order of MODALITIES; () for other models."""
    if config.model_type in MODELS_WITH_HEADS:
        return ("audio", "text")
    if config.model_type in LANGUAGE_MODELS:
        return tuple(m for m in MODALITIES if m == "text" or getattr(config, TOWER_CONFIGS[m], None) is not None)
    network_class = _network_class(config)
    modalities: tuple[Modality, ...] = tuple(m for m in MODALITIES if hasattr(network_class, f"get_{m}_features"))
    return modalities if "text" in modalities and len(modalities) > 1 else ()


def explain_not_joint(config: Any) -> str:
    """Return why a model is not a joint model, and what to do."""
    network_class = _network_class(config)
    problem = f"the model is of type {config.model_type!r}, which "
    if any(hasattr(network_class, f"get_{m}_features") for m in ("image", "audio")):
        return (
            f"{problem}generates text and has no embeddings; use an embedding model. If the model is one of "
            "sentence-transformers, write st: before its name"
        )
    if "video" in config.model_type or hasattr(network_class, "get_video_features"):
        return f"{problem}embeds videos; use a joint model of images, audio and texts, such as CLIP or CLAP"
    return (
        f"{problem}has one modality or no embeddings; use a joint model, such as CLIP or CLAP, or train a space with "
        "the encoders hf_image, hf_audio and hf_text. If the model is one of sentence-transformers, write st: before "
        "its name"
    )


def _network_class(config: Any) -> type | None:
    from transformers import MODEL_MAPPING

    try:
        network_class = MODEL_MAPPING[type(config)]
    except (KeyError, ImportError):  # the class needs a library that is not installed
        return None
    return network_class if isinstance(network_class, type) else network_class[0]


def matryoshka_dims(config: Any) -> tuple[int, ...]:
    """Return the dimensions to which embeddings may be truncated; () if the model declares none."""
    return tuple(getattr(config, "matryoshka_dimensions", None) or MATRYOSHKA_DIMS.get(config.model_type, ()))


def load_joint_network(
    pretrained: PretrainedModel, modality: Modality, dtype: torch.dtype, is_shared: bool
) -> tuple[Any, Extract]:
    """Load the tower of one modality of a joint model, and return a function that embeds inputs with it.

    The encoders of a space share no weights, except a frozen language model if `is_shared` is True.
    """
    config = pretrained.load_config()
    if modality not in (modalities := joint_modalities(config)):
        problem = f"embeds {' and '.join(modalities)}, but not {modality}" if modalities else explain_not_joint(config)
        raise pretrained.make_error(problem)
    if config.model_type in EAGER_ATTENTION_MODELS:
        config._attn_implementation = "eager"
    if config.model_type in LANGUAGE_MODELS:
        for other in TOWER_CONFIGS.keys() - {modality}:
            setattr(config, TOWER_CONFIGS[other], None)
    # An audio-video model contains a model of audio and texts, whose weights are named as those of the full model.
    network = pretrained.load_network(config.audio_config if config.model_type == "pe_audio_video" else config, dtype)
    for name, _ in list(network.named_children()):
        if name.startswith(tuple(prefix for m, prefix in TOWER_PREFIXES.items() if m != modality)):
            delattr(network, name)
    for name, weight in list(network.named_parameters(recurse=False)):
        if weight.numel() == 1:
            delattr(network, name)  # deletes the temperature, because in triptych the objective has the temperature
    if config.model_type in MODELS_WITH_HEADS:
        return network, partial(embed_with_head, modality)
    if config.model_type not in LANGUAGE_MODELS:
        return network, partial(embed_with_method, modality)
    if is_shared:
        network.language_model = _SHARED_MODULES.setdefault(_sharing_key(pretrained, dtype), network.language_model)
    return network, partial(embed_with_language_model, Placeholder.load(pretrained, modality))


def _sharing_key(pretrained: PretrainedModel, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return a key that changes if the files of the model change."""
    files = sorted(pretrained.folder.glob("*.safetensors")) if pretrained.folder else []
    return (str(pretrained), dtype, *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


def embed_with_method(modality: Modality, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the embedding of the network's method for a modality."""
    output = getattr(network, f"get_{modality}_features")(**arguments)
    return getattr(output, "pooler_output", output).unsqueeze(1)


def embed_with_head(modality: Modality, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the embedding of an audio encoder and its head, or of the first token of a text and the head of texts."""
    if modality == "audio":
        return network.get_audio_embeds(**arguments).unsqueeze(1)
    states = network.text_model(**arguments, output_hidden_states=True).hidden_states[-1]
    return network.text_audio_head(states[:, :1])


def embed_with_language_model(placeholder: Placeholder | None, network: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return the mean of the hidden states over all tokens. A placeholder makes the tokens of an image or of audio."""
    if placeholder is not None:
        if "image_position_ids" in arguments:
            patches = (arguments["image_position_ids"][:, :, 0] >= 0).sum(dim=1)
            counts = patches // network.config.vision_config.pooling_kernel_size**2
        else:
            counts = arguments["input_features_mask"][:, ::AUDIO_FRAMES_PER_TOKEN].sum(dim=1)
        arguments = arguments | placeholder.make_tokens(counts)
    states = network(**arguments).last_hidden_state
    weights = arguments["attention_mask"].unsqueeze(2).to(states.dtype)
    return (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Placeholder:
    """The token ids of an image or of audio: a prefix, one token for each vector of the tower, and a suffix."""

    prefix: list[int]
    token: int
    suffix: list[int]

    @staticmethod
    def load(pretrained: PretrainedModel, modality: Modality) -> Placeholder | None:
        """Tokenise the placeholder of one vector; return None for texts."""
        if modality == "text":
            return None
        tokenizer = pretrained.load_tokenizer()
        tokens = [getattr(tokenizer, name) for name in PLACEHOLDER_TOKENS[modality]]
        token, ids = tokenizer.convert_tokens_to_ids(tokens[1]), tokenizer("".join(tokens))["input_ids"]
        position = ids.index(token)
        return Placeholder(ids[:position], token, ids[position + 1 :])

    def make_tokens(self, counts: Tensor) -> dict[str, Tensor]:
        """Return token ids (N, T) with the placeholder token repeated counts[i] times, and their mask."""
        rows = [[*self.prefix, *[self.token] * count, *self.suffix] for count in counts.tolist()]
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows], device=counts.device)
        lengths = torch.tensor([len(row) for row in rows], device=counts.device)
        return {"input_ids": ids, "attention_mask": (torch.arange(length, device=ids.device) < lengths[:, None]).long()}
