"""Search, embeddings, and why a hit."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter, Request

from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.schemas import (
    Embedding,
    EmbeddingsRequest,
    EmbeddingsResponse,
    ExplainRequest,
    ExplainResponse,
    HitResponse,
    PartExplanation,
    SearchRequest,
    SearchResponse,
    SideResponse,
)
from triptych.app.server.serializers import make_hit_responses, make_item_response
from triptych.app.server.state import ResolvedPart, StateDep, make_filter
from triptych.app.server.uploads import receive_request
from triptych.interfaces import Features, Modality, Source
from triptych.search import explain as search_explain
from triptych.search.collection import Collection
from triptych.search.query import EmbeddedQuery, Query
from triptych.search.relevance import RELEVANCE_THRESHOLD

router = APIRouter(prefix="/v1", tags=["search"])
DECIMALS = 6


def make_request_body(model: type[Any]) -> dict[str, Any]:
    """A request as JSON, or as a form with the same JSON in `query` beside the files its parts name."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    form = {
        "type": "object",
        "required": ["query"],
        "properties": {"query": {"type": "string", "description": f"a {model.__name__} as JSON"}},
        "additionalProperties": {"type": "string", "format": "binary"},
    }
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("/search", openapi_extra=make_request_body(SearchRequest), responses=error_responses(404, 415))
async def search(state: StateDep, request: Request) -> SearchResponse:
    """The most relevant items for a query of words, files and items, each with a weight; negative: not like this."""
    started = time.perf_counter()
    async with receive_request(request, SearchRequest, state.limits) as (query, files):
        resolved_parts = await state.resolve_parts(query.parts, files)
        search_query, modalities = (
            Query(tuple(resolved.part for resolved in resolved_parts)),
            list(dict.fromkeys(query.modalities)),
        )

        def work(collection: Collection) -> tuple[list[HitResponse], str | None]:
            roots, k, include_query = (
                state.root_cache.load_roots(collection),
                min(query.k, state.limits.max_hits),
                query.include_query,
            )
            hits = collection.search(
                search_query, modalities, k, make_filter(query.filter, roots), include_query=include_query
            )
            return make_hit_responses(hits, roots), None if include_query else collection.describe_excluded_items(
                search_query
            )

        hits, own_items_note = await state.read_collection(work)
    notes = [note for resolved in resolved_parts if (note := _describe_truncation(resolved, state.collection))]
    notes += [own_items_note] if own_items_note else []
    return SearchResponse(
        hits=hits, relevance_threshold=RELEVANCE_THRESHOLD, seconds=time.perf_counter() - started, notes=notes
    )


def _describe_truncation(resolved: ResolvedPart, collection: Collection) -> str | None:
    """What is worth knowing of how a part was used."""
    if resolved.source.modality != "audio" or not isinstance(resolved.part.value, EmbeddedQuery):
        return None
    max_seconds = collection.space.encoder("audio").max_seconds
    return f"of a sound the first {max_seconds:g} s are heard" if max_seconds < 3600 else None


@router.post("/embeddings", responses=error_responses())
async def create_embeddings(state: StateDep, query: EmbeddingsRequest) -> EmbeddingsResponse:
    """Vectors of texts, in the shape OpenAI's clients ask for and read."""
    embed_dim = state.collection.space.recipe.space.embed_dim
    if query.dimensions not in {None, embed_dim}:
        raise HTTPError(422, f"dimensions: {query.dimensions}; this space has {embed_dim}")
    batch_features = await state.batcher.embed([Source("text", text) for text in query.input])
    data = [
        Embedding(index=i, embedding=_encode_vector(features.embedding[0], query.encoding_format))
        for i, features in enumerate(batch_features)
    ]
    return EmbeddingsResponse(data=data, model=query.model)


def _encode_vector(vector: torch.Tensor, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.float().numpy().astype("<f4").tobytes()).decode()
    return vector.float().tolist()


@router.post("/explain", openapi_extra=make_request_body(ExplainRequest), responses=error_responses(404, 410, 415))
async def explain_hit(state: StateDep, request: Request) -> ExplainResponse:
    """How much each part of the query and each part of a hit add to the score, and where those parts lie."""
    async with receive_request(request, ExplainRequest, state.limits) as (query, files):
        entry = await state.find_item(query.item)
        items = [entry, *[await state.find_item(part.item) for part in query.parts if part.item]]
        # What is read again must be what the score is of.
        entries_by_source = {
            stored.item.source: stored for stored in items if isinstance(stored.item.source.content, Path)
        }
        resolved_parts = await state.resolve_parts(query.parts, files)
        hit_features = await state.read_collection(lambda collection: collection.load_features(query.item))
        query_features = [
            await state.read_collection(lambda c, resolved=resolved: _part_features(c, resolved))
            for resolved in resolved_parts
        ]

        def work(paths: Sequence[Path]) -> list[PartExplanation]:
            opened = {s: replace(s, content=path) for s, path in zip(entries_by_source, paths, strict=True)}
            space, explanations = state.collection.space, []
            hit_source = opened.get(entry.item.source, entry.item.source)
            for resolved, features in zip(resolved_parts, query_features, strict=True):
                score = float(space.scores(features, hit_features))
                with state.batcher.workers.sandbox():  # it reads uploads again
                    explanation = search_explain.explain(
                        space, opened.get(resolved.source, resolved.source), hit_source, score
                    )
                explanations.append(_make_part_explanation(explanation, resolved))
            return explanations

        parts = await state.run_with_files(state.explain_executor, list(entries_by_source.values()), work)
    return ExplainResponse(
        item=make_item_response(entry), parts=parts, method=search_explain.describe_method(state.collection.space)
    )


def _part_features(collection: Collection, resolved: ResolvedPart) -> Features:
    query_input = resolved.part.value
    if isinstance(query_input, EmbeddedQuery):
        return query_input.features
    return collection.load_features(str(query_input))


def _make_part_explanation(explanation: search_explain.Explanation, resolved: ResolvedPart) -> PartExplanation:
    contributions = explanation.contributions
    return PartExplanation(
        part_index=resolved.part_index,
        score=explanation.score,
        weight=resolved.part.weight,
        total=float(contributions.sum()),
        residual=explanation.residual,
        query=_make_side_response(explanation.query, contributions.sum(dim=1)),
        hit=_make_side_response(explanation.hit, contributions.sum(dim=0)),
        pair_contributions=[[round(value, DECIMALS) for value in row] for row in contributions.tolist()],
        attribution=[[round(value, DECIMALS) for value in row] for row in explanation.attribution.tolist()],
    )


def _make_side_response(side: search_explain.ExplainedItem, contributions: torch.Tensor) -> SideResponse:
    modality: Modality = side.modality
    return SideResponse(
        modality=modality,
        text=side.text,
        span=side.span,
        locations=[list(location) for location in side.part_locations],
        contributions=[round(value, DECIMALS) for value in contributions.tolist()],
    )
