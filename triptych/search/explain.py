"""Why a hit: how much each part of the query and each part of the hit add to the score, and where those parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.func import jvp, vmap

from triptych.data.loader import collate
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source
from triptych.media import audio, text
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.space import Space

INTEGRATION_STEPS = 32  # of the integral along the head, where it is not linear
METHOD_DESCRIPTIONS = {
    "pooled": "An item's vector is the sum of its parts' vectors, so the score is a sum over pairs of parts: each pair "
    "adds the product of its two vectors. What the network adds whatever the parts are is the rest.",
    "matchmap": "Every part is compared with every part of the other side; those comparisons are the heat. Of each "
    "moment only the best region counts, by its share in the mean.",
    "word_region": "Each word looks at the regions that speak for it; that attention is the heat. A word adds its "
    "share in the score, spread over the regions it looks at.",
}


@dataclass(frozen=True)
class ExplainedItem:
    """One side of an explanation: where its parts lie; words are put together from their pieces.

    Parts that lie nowhere (the start and end marks of a text, its padding, the class token of a picture) are put
    together as well. They come last, as one part with an empty place: their share belongs to the item as a whole.
    """

    modality: Modality
    text: str | None  # what the places of a text count characters of
    span: tuple[float, float] | None  # seconds of a sound that were heard
    part_locations: Sequence[Region]


@dataclass(frozen=True)
class Explanation:
    """How a score comes about: score = contributions.sum() + rest.

    heat is what to light up, on the similarity's own scale; in pooled spaces it is the contributions themselves.
    """

    query: ExplainedItem
    hit: ExplainedItem
    contributions: Tensor  # (Q, H)
    attribution: Tensor  # (Q, H)
    score: float
    residual: float


@torch.inference_mode()
def explain(space: Space, query: Source, hit: Source, score: float | None = None) -> Explanation:
    """Take the score of a query and a hit apart; `score` is the one that was shown, should it differ by rounding."""
    space.eval()
    parts = {source: _encode_parts(space, source) for source in (query, hit)}
    # Not every similarity is symmetric: as in training, it gets the two in the order of MODALITIES.
    is_swapped = MODALITIES.index(query.modality) > MODALITIES.index(hit.modality)
    a, b = (hit, query) if is_swapped else (query, hit)
    contributions, attribution, method = _compute_contributions(space, a, parts[a], b, parts[b])
    if is_swapped:
        contributions, attribution = contributions.T, attribution.T
    query_features, hit_features = (_make_features(space, source, parts[source]) for source in (query, hit))
    sides = [_make_explained_item(space, source, parts[source].shape[1]) for source in (query, hit)]
    for axis, side in enumerate(sides):
        groups = _group_parts(side)
        if groups != [[number] for number in range(len(side.part_locations))]:
            locations = [_merge_locations([side.part_locations[i] for i in group]) for group in groups]
            sides[axis] = replace(side, part_locations=locations)
            contributions = _reduce_groups(contributions, groups, axis, should_sum=True)
            attribution = _reduce_groups(attribution, groups, axis, should_sum=method == "pooled")
    computed_score = float(space.scores(query_features, hit_features))
    shown_score = computed_score if score is None else score
    return Explanation(
        sides[0], sides[1], contributions, attribution, shown_score, shown_score - float(contributions.sum())
    )


def describe_method(space: Space) -> str:
    """How the contributions in a space come about, in plain words."""
    methods = {Matchmap: "matchmap", WordRegion: "word_region"}
    return METHOD_DESCRIPTIONS[methods.get(type(space.similarity), "pooled")]


def _encode_parts(space: Space, source: Source) -> Tensor:
    """What the encoder makes of a source: (1, P, W), real parts alone."""
    encoder = space.encoder(source.modality)
    parts, mask = encoder(*collate([encoder.prepare(source)]))
    return parts[:, mask[0]]


def _make_features(space: Space, source: Source, parts: Tensor) -> Features:
    return space(source.modality, parts, torch.ones(parts.shape[:2], dtype=torch.bool), input_kind="parts")


def _compute_contributions(
    space: Space, a: Source, a_parts: Tensor, b: Source, b_parts: Tensor
) -> tuple[Tensor, Tensor, str]:
    """What every pair of parts adds to the score (A, B), the heat (A, B), and which kind of sum it is."""
    similarity = space.similarity
    if isinstance(similarity, Matchmap):
        attribution = similarity.attribution(_make_features(space, a, a_parts), _make_features(space, b, b_parts))[0]
        return matchmap_contributions(attribution, similarity.reduction), attribution, "matchmap"
    if isinstance(similarity, WordRegion):
        a_features, b_features = _make_features(space, a, a_parts), _make_features(space, b, b_parts)
        return (
            word_region_contributions(similarity, a_features, b_features),
            similarity.attribution(a_features, b_features)[0],
            "word_region",
        )
    a_features, b_features = (
        decompose_embedding(space, a.modality, a_parts),
        decompose_embedding(space, b.modality, b_parts),
    )
    contributions = similarity.attribution(a_features, b_features)[0]
    if isinstance(similarity, Mahalanobis) and similarity.form == "rooted":
        contributions = contributions / (abs(float(similarity(a_features, b_features))) or 1.0)  # -√gap = -gap / √gap
    contributions = contributions[:-1, :-1]  # the last of each is what belongs to no part
    return contributions, contributions, "pooled"


def decompose_embedding(space: Space, modality: Modality, parts: Tensor) -> Features:
    """An item as parts (1, P + 1, D) whose mean is its embedding exactly; the last is what belongs to no part.

    embedding = h(Σ_p x_p) / scale with x_p the part's own share of what is pooled. Where the head h is linear, part p
    has h(x_p); else it has what it adds along the straight way from nothing:
    h(x) = h(0) + Σ_p ∫₀¹ J_h(t·x) x_p dt   (integrated gradients, by the midpoint rule; its error goes to the last)
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
    scale = float(output.norm() / embedding.norm().clamp_min(1e-12))  # what the geometry divided by
    scaled = scaled * (len(scaled) / max(scale, 1e-12))
    return Features(embedding, scaled[None], torch.ones(1, len(scaled), dtype=torch.bool), modality)


def pooling_contributions(parts: Tensor, has_max: bool) -> Tensor:
    """Each part's own share of what is pooled, (P, W) or (P, 2W): of the mean a P-th, of the maximum where it wins."""
    mean_terms = parts / len(parts)
    if not has_max:
        return mean_terms
    is_max = torch.zeros_like(parts).scatter_(0, parts.argmax(dim=0, keepdim=True), 1.0)
    return torch.cat([mean_terms, parts * is_max], dim=1)


def matchmap_contributions(attribution: Tensor, aggregation: str) -> Tensor:
    """What each region (rows) and frame (columns) adds to a matchmap's score: the winners' share in the mean."""
    if aggregation == "sisa":
        return attribution / attribution.numel()
    axis = 0 if aggregation == "misa" else 1
    is_max = torch.zeros_like(attribution).scatter_(axis, attribution.argmax(dim=axis, keepdim=True), 1.0)
    return attribution * is_max / attribution.shape[1 - axis]


def word_region_contributions(similarity: WordRegion, a: Features, b: Features) -> Tensor:
    """What each region (rows) and word (columns) adds to R = log Σ_t exp(γ·cos_t).

    With π = softmax(γ·cos): R = Σ_t π_t (γ·cos_t - log π_t) and every bracket is R, so word t adds π_t · R; region r
    has of that the share of α_tr <a_r, b_t> in <c_t, b_t>, or of α where that is too near to 0.
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
        ends = [place[1] for place in locations if place]
        start = source.start or 0.0
        end = max(ends) if ends else min(start + encoder.max_seconds, audio.read_duration(Path(source.content)))
        span = (start, min(end, source.end) if source.end is not None else end)
    return ExplainedItem(source.modality, text_content, span, locations)


def _group_parts(item: ExplainedItem) -> list[list[int]]:
    """Which parts are shown as one: the pieces of a word (up to the next space); last, all parts that lie nowhere."""
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


def _merge_locations(locations: Sequence[Region]) -> Region:
    """The place of a group: that of its only part, from the first to the last piece of a word, or nowhere."""
    if len(locations) == 1 or not locations[0]:
        return locations[0]
    return (min(place[0] for place in locations), max(place[1] for place in locations))


def _reduce_groups(values: Tensor, groups: Sequence[Sequence[int]], axis: int, should_sum: bool) -> Tensor:
    """Rows or columns of one word put together: their sum, or their mean."""
    selected = [values.index_select(axis, torch.tensor(group)) for group in groups]
    return torch.stack([x.sum(dim=axis) if should_sum else x.mean(dim=axis) for x in selected], dim=axis)
