"""The starter space: a space of pretrained encoders that needs no training and no pairs.

Images and audio are embedded as the mean of the text embeddings of their likely classes. The recipe `starter` has the
encoders and heads. This module computes the weights of the heads from the text encoder, also before the training of a
recipe with such heads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.data.cache import Cache
from triptych.data.features import compute_or_load, encode_blocks
from triptych.encoders import ENCODERS
from triptych.encoders.unavailable import UnavailableEncoder
from triptych.errors import CheckpointError, RecipeError
from triptych.heads.centred import CentredHead
from triptych.heads.class_names import ClassNamesHead
from triptych.interfaces import Encoder, Modality, Source
from triptych.phrases import generate_phrases, load_word_lists
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.spaces.known import STARTER

STARTER_VERSION = 2  # part of the fingerprint; a change of the formulas below is a new version
NUM_CENTRE_PHRASES = 1000
MIN_SPREAD = 1e-4  # smaller differences between the mean class embeddings of two modalities are rounding errors


def is_starter(name: str | Path) -> bool:
    """Return whether a name means the starter space. "./starter" and Path("starter").resolve() mean a folder."""
    return name == STARTER


def find_missing_modalities() -> dict[Modality, str]:
    """Return the modalities that the starter space cannot embed here, each with the command that adds it."""
    encoders = Recipe.load(STARTER).space.encoders
    missing: dict[Modality, str] = {}
    for modality, component in encoders.items():
        if reason := ENCODERS[component.name].unavailable_reason():
            missing[modality] = f"{component.name}: {reason}"
    return missing


def load_starter() -> Space:
    """Return the starter space with the modalities whose weights are installed; `Space.missing` names the others.

    Raise CheckpointError without the text encoder, or without any of the other encoders.
    """
    recipe, missing = Recipe.load(STARTER), find_missing_modalities()
    available: list[Modality] = [m for m in recipe.space.encoders if m not in missing]
    if "text" not in available or len(available) < 2:
        raise CheckpointError(f"starter: {'; '.join(missing.values())}")
    encoders: dict[Modality, Encoder] = {
        m: _make_encoder(m, component, missing.get(m)) for m, component in recipe.space.encoders.items()
    }
    space = Space(recipe, encoders)
    # The classes of all encoders set the centre, so that vectors do not depend on the weights that are installed.
    initialise_heads(space, Cache.default())
    for m in missing:
        del space.encoders[m], space.heads[m]
        notify(f"the starter space has no {m}: {missing[m]}")
    space.recipe = recipe.restrict_to(available)
    space.name_or_path, space.missing = STARTER, missing
    return space.eval()


def fingerprint_starter() -> str:
    """Return a hash of the recipe, the word lists and the encoders' weights and classes.

    The hash does not depend on the modalities that are available, because the vectors of a modality do not depend on
    the other modalities. A collection therefore stays valid if the weights of another encoder are installed.
    """
    recipe = Recipe.load(STARTER)
    encoders = [ENCODERS[component.name] for component in recipe.space.encoders.values()]
    digests = [sorted(file.digests.values()) for encoder in encoders for file in encoder.weights_files]
    classes = [(encoder.class_names(), encoder.class_categories()) for encoder in encoders]
    content = repr((STARTER_VERSION, recipe.to_toml(), digests, classes, load_word_lists()))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _make_encoder(modality: Modality, component: Component, missing: str | None) -> Encoder:
    cls = ENCODERS[component.name]
    if missing:
        return UnavailableEncoder(modality, cls.feature_dim, math.inf, missing, cls)
    return cls(**component.settings)


def initialise_heads(space: Space, cache: Cache | None) -> None:
    """Set the weights of the heads `class_names` and `centred` to text embeddings; spaces without them do not change.

    With a cache, the outputs of a frozen text encoder for the class names are cached.
    """
    heads: dict[Modality, ClassNamesHead] = {}
    for modality in space.modalities:
        if isinstance(head := space.heads[modality], ClassNamesHead):
            heads[modality] = head
    if not heads:
        return
    if "text" not in space.modalities:
        raise RecipeError("class_names: the space has no text encoder; add one, such as minilm, to space.encoders")
    text_encoder = space.encoder("text")
    embeddings: dict[Modality, Tensor] = {}
    for modality, head in heads.items():
        embeddings[modality] = embed_classes(text_encoder, head.class_phrases(), cache)
    load_class_embeddings(space, embeddings, embed_text_centre(text_encoder, cache))


@torch.no_grad()
def load_class_embeddings(space: Space, embeddings: Mapping[Modality, Tensor], text_centre: Tensor) -> None:
    """Set the weights of the heads from the text embeddings of the classes (C, D) of each modality.

    The directions in which the mean class embeddings of the modalities differ are removed, because they say only that
    a text names a modality, such as "a photo of" or "the sound of".
    """
    centres = torch.stack([rows.mean(dim=0) for rows in embeddings.values()])  # (modalities, D)
    _, spreads, directions = torch.linalg.svd(centres - centres.mean(dim=0), full_matrices=False)
    directions = directions[spreads > MIN_SPREAD]
    for modality, rows in embeddings.items():
        cast(ClassNamesHead, space.heads[modality]).load_class_embeddings(rows, directions)
    text_head = space.heads["text"]
    if isinstance(text_head, CentredHead):
        text_head.centre.copy_(text_centre)


def embed_text_centre(encoder: Encoder, cache: Cache | None) -> Tensor:
    """Return the mean embedding of generated phrases: the embedding of a text that says nothing in particular."""
    return embed_classes(encoder, [generate_phrases()[:NUM_CENTRE_PHRASES]], cache)[0]


@torch.inference_mode()
def embed_classes(encoder: Encoder, phrases: Sequence[Sequence[str]], cache: Cache | None) -> Tensor:
    """Return the mean of the normalised text embeddings of the phrases of each class: (C, D)."""
    unique = list(dict.fromkeys(Source("text", phrase) for texts in phrases for phrase in texts))
    if cache and encoder.frozen:
        features = compute_or_load(encoder, unique, cache)
        means = {source: features.pooled[index, 0] for source, index in features.index_of.items()}
    else:
        means = {s: parts.mean(dim=0) for block, _ in encode_blocks(encoder, unique) for s, parts in block}
    rows = [torch.stack([F.normalize(means[Source("text", t)], dim=0) for t in texts]) for texts in phrases]
    return torch.stack([row.mean(dim=0) for row in rows])
