"""Explain the score of a query and a hit by the contribution of each pair of parts, and locate the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from triptych.data.loader import collate
from triptych.heads.class_names import ClassNamesHead
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source
from triptych.media import audio, text
from triptych.similarities.cosine import Cosine
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.space import Space

NUM_CLASSES = 5  # number of classes that an explanation lists
INTEGRATION_STEPS = 32  # number of steps of the integrated gradients of a nonlinear head
METHOD_DESCRIPTIONS = {
    "pooled": "The embedding of an item is the sum of its parts' vectors, so the score is a sum over pairs of parts: "
    "each pair contributes the inner product of its two vectors. The residual contains the terms "
    "that involve the biases of the network.",
    "matchmap": "Every part of one item is compared with every part of the other item; the attribution shows these "
    "similarities. By default the score is the mean over audio frames of the largest similarity to a region, so "
    "only the best region of each frame contributes.",
    "word_region": "Each word attends to regions of the image; the attribution shows the attention weights. The "
    "contribution of a word to the score is distributed over the regions that the word attends to.",
}


@dataclass(frozen=True)
class ClassContribution:
    """A class of an item whose head is `class_names`: its weight in the embedding, and its share of the score."""

    name: str
    weight: float  # from 0 to 1; the weights of all classes sum to 1
    contribution: float  # the contributions of all classes sum to the score, if the similarity is the cosine


@dataclass(frozen=True)
class ExplainedItem:
    """The query or the hit of an explanation, with the locations of its parts. The tokens of a word are merged.

    Parts without a location (special tokens of a text, padding, the class token of an image) are merged into one last
    part with an empty location. The contribution of this last part belongs to the entire item.
    """

    modality: Modality
    text: str | None  # the text of a text item; its part locations are character ranges in this text
    span: tuple[float, float] | None  # the encoded range of an audio file, in seconds
    part_locations: Sequence[Region]
    classes: Sequence[ClassContribution] = ()  # the largest contributions; empty without a head `class_names`


@dataclass(frozen=True)
class Explanation:
    """A decomposed score: score = contributions.sum() + residual.

    The page highlights parts by their attribution, which is on the scale of the similarity. If the similarity compares
    pooled embeddings, the attribution equals the contributions.
    """

    query: ExplainedItem
    hit: ExplainedItem
    contributions: Tensor  # (Q, H)
    attribution: Tensor  # (Q, H)
    score: float
    residual: float


@torch.inference_mode()
def explain(space: Space, query: Source, hit: Source, score: float | None = None) -> Explanation:
    """Decompose the score of a query and a hit. `score` is the displayed score, which may be rounded."""
    space.eval()
    parts = {source: _encode_parts(space, source) for source in (query, hit)}
    # Not every similarity is symmetric, so its arguments are in the order of MODALITIES, as in training.
    is_swapped = MODALITIES.index(query.modality) > MODALITIES.index(hit.modality)
    a, b = (hit, query) if is_swapped else (query, hit)
    contributions, attribution, method = _compute_contributions(space, a, parts[a], b, parts[b])
    if is_swapped:
        contributions, attribution = contributions.T, attribution.T
    query_features, hit_features = (_make_features(space, source, parts[source]) for source in (query, hit))
    sides = [_make_explained_item(space, source, parts[source].shape[1]) for source in (query, hit)]
    if isinstance(space.similarity, Cosine):
        other_features = hit_features, query_features
        for axis, (source, other) in enumerate(zip((query, hit), other_features, strict=True)):
            classes = list_class_contributions(space, source.modality, parts[source], other.embedding)
            sides[axis] = replace(sides[axis], classes=classes)
    for axis, side in enumerate(sides):
        groups = _group_parts(side)
        if groups != [[index] for index in range(len(side.part_locations))]:
            locations = [_find_enclosing_range([side.part_locations[i] for i in group]) for group in groups]
            sides[axis] = replace(side, part_locations=locations)
            contributions = _reduce_groups(contributions, groups, axis, should_sum=True)
            attribution = _reduce_groups(attribution, groups, axis, should_sum=method == "pooled")
    computed_score = float(space.scores(query_features, hit_features))
    shown_score = computed_score if score is None else score
    residual = shown_score - float(contributions.sum())
    return Explanation(sides[0], sides[1], contributions, attribution, shown_score, residual)


@torch.inference_mode()
def list_class_weights(space: Space, source: Source, count: int = NUM_CLASSES) -> list[tuple[str, float]]:
    """Return the classes with the largest weights in the embedding of an item, and their weights.

    The list is empty if the head of the modality is not `class_names`.
    """
    head = space.eval().heads[source.modality]
    if not isinstance(head, ClassNamesHead):
        return []
    top = head.class_weights(_encode_parts(space, source).mean(dim=1))[0].topk(min(count, len(head.class_names)))
    return [(head.class_names[int(i)], float(w)) for w, i in zip(top.values, top.indices, strict=True)]


def list_class_contributions(
    space: Space, modality: Modality, parts: Tensor, other: Tensor, count: int = NUM_CLASSES
) -> list[ClassContribution]:
    """Return the classes that contribute most to the cosine of an item with parts (1, P, W) and the embedding `other`.

    With y = Σ_c w_c e_c, class c contributes w_c <e_c, other> / (|y| |other|).
    """
    head = space.heads[modality]
    if not isinstance(head, ClassNamesHead) or not isinstance(space.shared_head, nn.Identity):
        return []
    weights = head.class_weights(parts.mean(dim=1))[0]  # (C,)
    norm = (weights @ head.class_embeddings).norm() * other.norm()
    contributions = weights * (head.class_embeddings @ other[0]) / norm.clamp_min(1e-12)
    top = contributions.topk(min(count, len(contributions)))
    return [
        ClassContribution(head.class_names[int(i)], float(weights[i]), float(value))
        for value, i in zip(top.values, top.indices, strict=True)
    ]


def describe_method(space: Space) -> str:
    """Describe how contributions are computed for the similarity of a space."""
    methods = {Matchmap: "matchmap", WordRegion: "word_region"}
    return METHOD_DESCRIPTIONS[methods.get(type(space.similarity), "pooled")]


def _encode_parts(space: Space, source: Source) -> Tensor:
    """Return the part vectors of a source, without padding: (1, P, W)."""
    encoder = space.encoder(source.modality)
    parts, mask = encoder(*collate([encoder.prepare(source)]))
    return parts[:, mask[0]]


def _make_features(space: Space, source: Source, parts: Tensor) -> Features:
    return space(source.modality, parts, torch.ones(parts.shape[:2], dtype=torch.bool), input_kind="parts")


def _compute_contributions(
    space: Space, a: Source, a_parts: Tensor, b: Source, b_parts: Tensor
) -> tuple[Tensor, Tensor, str]:
    """Return the contributions (A, B) and the attribution (A, B) of pairs of parts, and the name of the method."""
    similarity = space.similarity
    if isinstance(similarity, Matchmap):
        attribution = similarity.attribution(_make_features(space, a, a_parts), _make_features(space, b, b_parts))[0]
        return matchmap_contributions(attribution, similarity.reduction), attribution, "matchmap"
    if isinstance(similarity, WordRegion):
        a_features, b_features = _make_features(space, a, a_parts), _make_features(space, b, b_parts)
        contributions = word_region_contributions(similarity, a_features, b_features)
        return contributions, similarity.attribution(a_features, b_features)[0], "word_region"
    a_features = decompose_embedding(space, a.modality, a_parts)
    b_features = decompose_embedding(space, b.modality, b_parts)
    contributions = similarity.attribution(a_features, b_features)[0]
    if isinstance(similarity, Mahalanobis) and similarity.form == "rooted":
        contributions = contributions / (abs(float(similarity(a_features, b_features))) or 1.0)  # -√gap = -gap / √gap
    contributions = contributions[:-1, :-1]  # the last row and column belong to no part
    return contributions, contributions, "pooled"


def decompose_embedding(space: Space, modality: Modality, parts: Tensor) -> Features:
    """Decompose an embedding into vectors (1, P + 1, D) whose mean is the embedding; the last belongs to no part.

    embedding = h(Σ_p x_p) / scale, with x_p the contribution of part p to the pooled vector. If the head h is linear,
    the vector of part p is proportional to h(x_p). Otherwise it is proportional to the integrated gradients of part p
    along the straight line from zero:
    h(x) = h(0) + Σ_p ∫₀¹ J_h(t·x) x_p dt
    The integral is computed by the midpoint rule; the last vector contains h(0) and the error of this rule.
    """
    pooled = pooling_contributions(parts[0], space.recipe.space.pooling == "mean_max")  # (P, W')

    def head(z: Tensor) -> Tensor:
        return space.shared_head(space.heads[modality](z))

    output = head(pooled.sum(dim=0))
    linear_outputs = head(pooled)
    if torch.allclose(linear_outputs.sum(dim=0), output, atol=1e-6 * float(output.abs().max())):
        contributions = linear_outputs
    else:
        end_point = pooled.sum(dim=0)
        steps = (torch.arange(INTEGRATION_STEPS) + 0.5) / INTEGRATION_STEPS
        derivatives = [vmap(lambda v, t=t: jvp(head, (t * end_point,), (v,))[1])(pooled) for t in steps]
        contributions = torch.stack(derivatives).mean(dim=0)
    scaled = torch.cat([contributions, (output - contributions.sum(dim=0))[None]])  # (P + 1, D)
    embedding = _make_features(space, Source(modality, ""), parts).embedding
    scale = float(output.norm() / embedding.norm().clamp_min(1e-12))  # the factor by which the geometry normalises
    scaled = scaled * (len(scaled) / max(scale, 1e-12))
    return Features(embedding, scaled[None], torch.ones(1, len(scaled), dtype=torch.bool), modality)


def pooling_contributions(parts: Tensor, has_max: bool) -> Tensor:
    """Return the contribution of each part to the mean, and with `has_max` to the maximum: (P, W) or (P, 2W)."""
    mean_terms = parts / len(parts)
    if not has_max:
        return mean_terms
    is_max = torch.zeros_like(parts).scatter_(0, parts.argmax(dim=0, keepdim=True), 1.0)
    return torch.cat([mean_terms, parts * is_max], dim=1)


def matchmap_contributions(attribution: Tensor, aggregation: str) -> Tensor:
    """Return the contribution of each region (rows) and frame (columns) to a matchmap's score."""
    if aggregation == "sisa":
        return attribution / attribution.numel()
    axis = 0 if aggregation == "misa" else 1
    is_max = torch.zeros_like(attribution).scatter_(axis, attribution.argmax(dim=axis, keepdim=True), 1.0)
    return attribution * is_max / attribution.shape[1 - axis]


def word_region_contributions(similarity: WordRegion, a: Features, b: Features) -> Tensor:
    """Return the contribution of each region r (rows) and word t (columns) to the score R = log Σ_t exp(γ·cos_t).

    With π = softmax(γ·cos), R = Σ_t π_t (γ·cos_t - log π_t). Every bracket equals R, so word t contributes π_t · R.
    This contribution is divided among the regions: region r gets the fraction α_tr <a_r, b_t> / <c_t, b_t>, or α_tr if
    the denominator is close to 0. α are the attention weights, and c_t = Σ_r α_tr a_r.
    """
    attention = similarity.attention_maps(a, b)[0].T  # (R, T)
    score = similarity(a, b)[0, 0]
    context = attention.T @ a.parts[0]  # (T, D)
    cosine = torch.nn.functional.cosine_similarity(context, b.parts[0], dim=1, eps=1e-8)
    word_weights = (similarity.sharpness * cosine).softmax(dim=0)  # π
    products = attention * (a.parts[0] @ b.parts[0].T)
    column_sums = products.sum(dim=0)
    fractions = torch.where(column_sums.abs() > 1e-3 * products.abs().sum(dim=0), products / column_sums, attention)
    return fractions * (word_weights * score)


def _make_explained_item(space: Space, source: Source, count: int) -> ExplainedItem:
    encoder = space.encoder(source.modality)
    locations = encoder.part_locations(source, count)
    text_content = text.read_source(source) if source.modality == "text" else None
    span = None
    if source.modality == "audio":
        ends = [location[1] for location in locations if location]
        start = source.start or 0.0
        end = max(ends) if ends else min(start + encoder.max_seconds, audio.read_duration(source.path))
        span = (start, min(end, source.end) if source.end is not None else end)
    return ExplainedItem(source.modality, text_content, span, locations)


def _group_parts(item: ExplainedItem) -> list[list[int]]:
    """Group the tokens of each word (up to the next blank); the last group has all parts without a location."""
    groups: dict[int, list[int]] = {}
    unlocated: list[int] = []
    for index, location in enumerate(item.part_locations):
        if not location:
            unlocated.append(index)
        elif item.text is None:
            groups[index] = [index]
        else:
            groups.setdefault(item.text.count(" ", 0, int(location[0])), []).append(index)
    return [*groups.values(), *([unlocated] if unlocated else [])]


def _find_enclosing_range(locations: Sequence[Region]) -> Region:
    """Return the character range from the first to the last token of a word. Return the location of a single part."""
    if len(locations) == 1 or not locations[0]:
        return locations[0]
    return (min(location[0] for location in locations), max(location[1] for location in locations))


def _reduce_groups(values: Tensor, groups: Sequence[Sequence[int]], axis: int, should_sum: bool) -> Tensor:
    """Merge the rows or columns of each group by their sum or mean."""
    selected = [values.index_select(axis, torch.tensor(group)) for group in groups]
    return torch.stack([x.sum(dim=axis) if should_sum else x.mean(dim=axis) for x in selected], dim=axis)
