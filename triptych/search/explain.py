"""Why a hit: how much each part of the query and each part of the hit add to the score, and where those parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.func import jvp, vmap

from triptych.contracts import MODALITIES, Features, Modality, Place, Source
from triptych.data.loader import collate
from triptych.media import audio, text
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.space import Space

STEPS = 32  # of the integral along the head, where it is not linear
HOW = {
    "pooled": "An item's vector is the sum of its parts' vectors, so the score is a sum over pairs of parts: each pair "
    "adds the product of its two vectors. What the network adds whatever the parts are is the rest.",
    "matchmap": "Every part is compared with every part of the other side; those comparisons are the heat. Of each "
    "moment only the best region counts, by its share in the mean.",
    "word_region": "Each word looks at the regions that speak for it; that attention is the heat. A word adds its "
    "share in the score, spread over the regions it looks at.",
}


@dataclass(frozen=True)
class Side:
    """One side of an explanation: where its parts lie; words are put together from their pieces.

    Parts that lie nowhere (the start and end marks of a text, its padding, the class token of a picture) are put
    together as well. They come last, as one part with an empty place: their share belongs to the item as a whole.
    """

    modality: Modality
    text: str | None  # what the places of a text count characters of
    span: tuple[float, float] | None  # seconds of a sound that were heard
    places: Sequence[Place]


@dataclass(frozen=True)
class Explanation:
    """How a score comes about: score = contributions.sum() + rest.

    heat is what to light up, on the similarity's own scale; in pooled spaces it is the contributions themselves.
    """

    query: Side
    hit: Side
    contributions: Tensor  # (Q, H)
    heat: Tensor  # (Q, H)
    score: float
    rest: float


@torch.inference_mode()
def explain(space: Space, query: Source, hit: Source, score: float | None = None) -> Explanation:
    """Take the score of a query and a hit apart; `score` is the one that was shown, should it differ by rounding."""
    space.eval()
    found = {source: _parts(space, source) for source in (query, hit)}
    # Not every similarity is symmetric: as in training, it gets the two in the order of MODALITIES.
    turned = MODALITIES.index(query.modality) > MODALITIES.index(hit.modality)
    a, b = (hit, query) if turned else (query, hit)
    contributions, heat, kind = _shares(space, a, found[a], b, found[b])
    if turned:
        contributions, heat = contributions.T, heat.T
    asked, answer = (_features(space, source, found[source]) for source in (query, hit))
    sides = [_side(space, source, found[source].shape[1]) for source in (query, hit)]
    for axis, side in enumerate(sides):
        groups = _groups(side)
        if groups != [[number] for number in range(len(side.places))]:
            places = [_around([side.places[i] for i in group]) for group in groups]
            sides[axis] = replace(side, places=places)
            contributions = _joined(contributions, groups, axis, total=True)
            heat = _joined(heat, groups, axis, total=kind == "pooled")
    own = float(space.scores(asked, query.modality, answer, hit.modality))
    shown = own if score is None else score
    return Explanation(sides[0], sides[1], contributions, heat, shown, shown - float(contributions.sum()))


def how(space: Space) -> str:
    """How the contributions in a space come about, in plain words."""
    kinds = {Matchmap: "matchmap", WordRegion: "word_region"}
    return HOW[kinds.get(type(space.similarity), "pooled")]


def _parts(space: Space, source: Source) -> Tensor:
    """What the encoder makes of a source: (1, P, W), real parts alone."""
    encoder = space.encoder(source.modality)
    found, mask = encoder(*collate([encoder.prepare(source)]))
    return found[:, mask[0]]


def _features(space: Space, source: Source, found: Tensor) -> Features:
    return space(source.modality, found, torch.ones(found.shape[:2], dtype=torch.bool), given="parts")


def _shares(space: Space, a: Source, a_found: Tensor, b: Source, b_found: Tensor) -> tuple[Tensor, Tensor, str]:
    """What every pair of parts adds to the score (A, B), the heat (A, B), and which kind of sum it is."""
    similarity = space.similarity
    if isinstance(similarity, Matchmap):
        heat = similarity.heat(_features(space, a, a_found), _features(space, b, b_found))[0]
        return matchmap_shares(heat, similarity.kind), heat, "matchmap"
    if isinstance(similarity, WordRegion):
        one, other = _features(space, a, a_found), _features(space, b, b_found)
        return word_region_shares(similarity, one, other), similarity.heat(one, other)[0], "word_region"
    one, other = unfolded(space, a.modality, a_found), unfolded(space, b.modality, b_found)
    shares = similarity.heat(one, other)[0]
    if isinstance(similarity, Mahalanobis) and similarity.form == "rooted":
        shares = shares / (abs(float(similarity(one, other))) or 1.0)  # -√gap = -gap / √gap
    shares = shares[:-1, :-1]  # the last of each is what belongs to no part
    return shares, shares, "pooled"


def unfolded(space: Space, modality: Modality, found: Tensor) -> Features:
    """An item as parts (1, P + 1, D) whose mean is its embedding exactly; the last is what belongs to no part.

    embedding = h(Σ_p x_p) / scale with x_p the part's own share of what is pooled. Where the head h is linear, part p
    has h(x_p); else it has what it adds along the straight way from nothing:
    h(x) = h(0) + Σ_p ∫₀¹ J_h(t·x) x_p dt   (integrated gradients, by the midpoint rule; its error goes to the last)
    """
    x = shares_of_pool(found[0], space.recipe.space.pooling == "mean_max")  # (P, W')

    def head(z: Tensor) -> Tensor:
        return space.shared(space.heads[modality](z))

    whole = head(x.sum(dim=0))
    linear = head(x)
    if torch.allclose(linear.sum(dim=0), whole, atol=1e-6 * float(whole.abs().max())):
        shares = linear
    else:
        point = x.sum(dim=0)
        times = (torch.arange(STEPS) + 0.5) / STEPS
        along = [vmap(lambda v, t=t: jvp(head, (t * point,), (v,))[1])(x) for t in times]
        shares = torch.stack(along).mean(dim=0)
    parts = torch.cat([shares, (whole - shares.sum(dim=0))[None]])  # (P + 1, D)
    embedding = _features(space, Source(modality, ""), found).embedding
    scale = float(whole.norm() / embedding.norm().clamp_min(1e-12))  # what the geometry divided by
    parts = parts * (len(parts) / max(scale, 1e-12))
    return Features(embedding, parts[None], torch.ones(1, len(parts), dtype=torch.bool))


def shares_of_pool(found: Tensor, wide: bool) -> Tensor:
    """Each part's own share of what is pooled, (P, W) or (P, 2W): of the mean a P-th, of the maximum where it wins."""
    share = found / len(found)
    if not wide:
        return share
    wins = torch.zeros_like(found).scatter_(0, found.argmax(dim=0, keepdim=True), 1.0)
    return torch.cat([share, found * wins], dim=1)


def matchmap_shares(heat: Tensor, kind: str) -> Tensor:
    """What each region (rows) and frame (columns) adds to a matchmap's score: the winners' share in the mean."""
    if kind == "sisa":
        return heat / heat.numel()
    axis = 0 if kind == "misa" else 1
    best = torch.zeros_like(heat).scatter_(axis, heat.argmax(dim=axis, keepdim=True), 1.0)
    return heat * best / heat.shape[1 - axis]


def word_region_shares(similarity: WordRegion, a: Features, b: Features) -> Tensor:
    """What each region (rows) and word (columns) adds to R = log Σ_t exp(γ·cos_t).

    With π = softmax(γ·cos): R = Σ_t π_t (γ·cos_t - log π_t) and every bracket is R, so word t adds π_t · R; region r
    has of that the share of α_tr <a_r, b_t> in <c_t, b_t>, or of α where that is too near to 0.
    """
    attention = similarity.attention_maps(a, b)[0].T  # (R, T)
    score = similarity(a, b)[0, 0]
    context = attention.T @ a.parts[0]  # (T, D)
    cosine = torch.nn.functional.cosine_similarity(context, b.parts[0], dim=1, eps=1e-8)
    words = (similarity.sharpness * cosine).softmax(dim=0)  # π
    products = attention * (a.parts[0] @ b.parts[0].T)
    whole = products.sum(dim=0)
    spread = torch.where(whole.abs() > 1e-3 * products.abs().sum(dim=0), products / whole, attention)
    return spread * (words * score)


def _side(space: Space, source: Source, count: int) -> Side:
    encoder = space.encoder(source.modality)
    places = encoder.places(source, count)
    words = text.words(source) if source.modality == "text" else None
    span = None
    if source.modality == "audio":
        ends = [place[1] for place in places if place]
        start = source.start or 0.0
        heard = max(ends) if ends else min(start + encoder.seconds, audio.duration(Path(source.content)))
        span = (start, min(heard, source.end) if source.end is not None else heard)
    return Side(source.modality, words, span, places)


def _groups(side: Side) -> list[list[int]]:
    """Which parts are shown as one: the pieces of a word (up to the next space); last, all parts that lie nowhere."""
    groups: dict[int, list[int]] = {}
    nowhere: list[int] = []
    for number, place in enumerate(side.places):
        if not place:
            nowhere.append(number)
        elif side.text is None:
            groups[number] = [number]
        else:
            groups.setdefault(side.text.count(" ", 0, int(place[0])), []).append(number)
    return [*groups.values(), *([nowhere] if nowhere else [])]


def _around(places: Sequence[Place]) -> Place:
    """The place of a group: that of its only part, from the first to the last piece of a word, or nowhere."""
    if len(places) == 1 or not places[0]:
        return places[0]
    return (min(place[0] for place in places), max(place[1] for place in places))


def _joined(values: Tensor, groups: Sequence[Sequence[int]], axis: int, total: bool) -> Tensor:
    """Rows or columns of one word put together: their sum, or their mean."""
    joined = [values.index_select(axis, torch.tensor(group)) for group in groups]
    return torch.stack([x.sum(dim=axis) if total else x.mean(dim=axis) for x in joined], dim=axis)
