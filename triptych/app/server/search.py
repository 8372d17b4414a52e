"""Routes for search, embeddings, explanations and the map of the collection."""

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from triptych.app.server import schemas
from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.items import make_hit_responses, make_item_response
from triptych.app.server.queries import ResolvedPart, make_filter, make_request_body, receive_request, resolve_parts
from triptych.app.server.state import AppState, StateDep
from triptych.explain import ExplainedItem, Explanation, describe_method, explain
from triptych.interfaces import Source
from triptych.search import query as search_queries
from triptych.search.collection import Collection
from triptych.search.projection import project_2d
from triptych.search.query import EmbeddedQuery
from triptych.search.ranking import RELEVANCE_THRESHOLD
from triptych.search.store import Version

router = APIRouter(prefix="/v1")
DECIMALS = 6  # decimal places of contributions in explanations
MAX_POINTS = 4000  # maximum number of points of each modality on the map
MAX_NAME_CHARACTERS = 80  # maximum length of the name of a point on the map
NUM_NEIGHBOURS = 5  # number of hits that determine the position of a query on the map
WAIT_SECONDS = 0.3  # seconds to wait for the map before the response is "pending"


@router.post(
    "/search",
    tags=["search"],
    openapi_extra=make_request_body(schemas.SearchRequest),
    responses=error_responses(404, 415),
)
async def search(state: StateDep, request: Request) -> schemas.SearchResponse:
    """Search by texts, files and items. Each part has a weight. A negative weight excludes similar items."""
    started = time.perf_counter()
    async with receive_request(request, schemas.SearchRequest, state.limits) as (query, files):
        resolved_parts = await resolve_parts(state, query.parts, files)
        search_query = _make_query(resolved_parts)
        modalities, k = list(dict.fromkeys(query.modalities)), min(query.k, state.limits.max_hits)

        def work(collection: Collection) -> tuple[list[schemas.HitResponse], str | None]:
            item_filter = make_filter(query.filter, collection)
            hits = collection.search(
                search_query, modalities, k, item_filter=item_filter, include_query=query.include_query
            )
            note = None if query.include_query else collection.describe_excluded_items(search_query)
            return make_hit_responses(hits), note

        hits, excluded_note = await state.run_with_collection(work)
    notes = [_describe_truncation(resolved, state.collection) for resolved in resolved_parts]
    return schemas.SearchResponse(
        hits=hits,
        relevance_threshold=RELEVANCE_THRESHOLD,
        seconds=time.perf_counter() - started,
        notes=[note for note in (*notes, excluded_note) if note],
    )


def _make_query(resolved_parts: Sequence[ResolvedPart]) -> search_queries.Query:
    return search_queries.Query(tuple(resolved.part for resolved in resolved_parts))


def _describe_truncation(resolved: ResolvedPart, collection: Collection) -> str | None:
    """Return a note if the part is audio and the encoder truncates long audio."""
    if resolved.source.modality != "audio" or not isinstance(resolved.part.value, EmbeddedQuery):
        return None
    max_seconds = collection.space.encoder("audio").max_seconds
    return f"audio queries are truncated to {max_seconds:g} s" if max_seconds < 3600 else None


@router.post("/embeddings", tags=["search"], responses=error_responses())
async def create_embeddings(state: StateDep, query: schemas.EmbeddingsRequest) -> schemas.EmbeddingsResponse:
    """Embed texts. Request and response have the format of the OpenAI API."""
    embed_dim = state.collection.space.recipe.space.embed_dim
    if query.dimensions not in {None, embed_dim}:
        raise HTTPError(422, f"dimensions is {query.dimensions}; this space has {embed_dim} dimensions")
    batch_features = await state.batcher.embed([Source("text", text) for text in query.input])
    vectors = [_encode_vector(features.embedding[0], query.encoding_format) for features in batch_features]
    data = [schemas.Embedding(index=i, embedding=vector) for i, vector in enumerate(vectors)]
    return schemas.EmbeddingsResponse(data=data, model=query.model)


def _encode_vector(vector: torch.Tensor, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.float().numpy().astype("<f4").tobytes()).decode()
    return vector.float().tolist()


@router.post(
    "/explain",
    tags=["search"],
    openapi_extra=make_request_body(schemas.ExplainRequest),
    responses=error_responses(404, 410, 415),
)
async def explain_hit(state: StateDep, request: Request) -> schemas.ExplainResponse:
    """Explain the score of a hit: return contributions and locations of the parts of the query and of the hit."""
    async with receive_request(request, schemas.ExplainRequest, state.limits) as (query, files):
        entry = await state.find_item(query.item)
        items = [entry, *[await state.find_item(part.item) for part in query.parts if part.item]]
        # Indexed files are decoded again, so they must not have changed since they were indexed.
        entries_by_source = {stored.source: stored for stored in items if isinstance(stored.source.content, Path)}
        resolved_parts = await resolve_parts(state, query.parts, files)
        hit_features = await state.run_with_collection(lambda collection: collection.load_features(query.item))
        query_features = [
            await state.run_with_collection(lambda c, resolved=resolved: c.embed_part(resolved.part).features)
            for resolved in resolved_parts
        ]

        def work(paths: Sequence[Path]) -> list[schemas.PartExplanation]:
            opened = {s: replace(s, content=path) for s, path in zip(entries_by_source, paths, strict=True)}
            space, explanations = state.collection.space, []
            hit_source = opened.get(entry.source, entry.source)
            for resolved, features in zip(resolved_parts, query_features, strict=True):
                score = float(space.scores(features, hit_features))
                with state.batcher.workers.sandbox():  # uploads are decoded again, in worker processes
                    explanation = explain(space, opened.get(resolved.source, resolved.source), hit_source, score)
                explanations.append(_make_part_explanation(explanation, resolved))
            return explanations

        parts = await state.run_with_files(state.explain_executor, list(entries_by_source.values()), work)
    return schemas.ExplainResponse(
        item=make_item_response(entry), parts=parts, method=describe_method(state.collection.space)
    )


def _make_part_explanation(explanation: Explanation, resolved: ResolvedPart) -> schemas.PartExplanation:
    contributions = explanation.contributions
    return schemas.PartExplanation(
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


def _make_side_response(side: ExplainedItem, contributions: torch.Tensor) -> schemas.SideResponse:
    return schemas.SideResponse(
        modality=side.modality,
        text=side.text,
        span=side.span,
        locations=[list(location) for location in side.part_locations],
        contributions=[round(value, DECIMALS) for value in contributions.tolist()],
        classes=[
            schemas.ClassResponse(
                name=c.name, weight=round(c.weight, DECIMALS), contribution=round(c.contribution, DECIMALS)
            )
            for c in side.classes
        ],
    )


@dataclass(frozen=True)
class CollectionMap:
    """The map of one version of the collection."""

    version: Version | None
    items: list[schemas.ItemResponse]
    positions: np.ndarray  # (N, 2)
    index: dict[str, int]  # item id -> row of positions


class MapCache:
    """The current map. The map is computed at the first request, and again when the collection has changed."""

    def __init__(self) -> None:
        self.current: CollectionMap | None = None
        self.task: asyncio.Task[None] | None = None

    async def load_latest(self, state: AppState) -> CollectionMap | None:
        """Return the map, or None if it is still being computed."""
        version = await state.run_with_collection(lambda c: c.store.refresh() if c.store else None)
        if self.current is not None and self.current.version == version:
            return self.current
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._compute(state, version))
        await asyncio.wait([self.task], timeout=WAIT_SECONDS)
        if self.task.done():
            self.task.result()
            return self.current
        return None

    async def _compute(self, state: AppState, version: Version | None) -> None:
        items, vectors = await state.run_with_collection(_sample_items)
        # No timeout: the map is computed once per version of the collection, for all requests.
        work = asyncio.get_running_loop().run_in_executor(state.explain_executor.pool, project_2d, vectors)
        positions = np.concatenate([*await work, np.empty((0, 2))])
        self.current = CollectionMap(version, items, positions, {item.id: index for index, item in enumerate(items)})


def _sample_items(collection: Collection) -> tuple[list[schemas.ItemResponse], list[np.ndarray]]:
    items, vectors = list[schemas.ItemResponse](), list[np.ndarray]()
    for modality in collection.space.modalities:
        entries, sampled_vectors = collection.sample(modality, MAX_POINTS)
        if entries:
            items += map(make_item_response, entries)
            vectors.append(sampled_vectors)
    return items, vectors


@router.get(
    "/map",
    tags=["map"],
    responses={**error_responses(), 202: {"model": schemas.MapPending}},
    response_model=schemas.MapResponse,
)
async def read_map(
    state: StateDep, request: Request, column: Annotated[str, Query(max_length=200)] = ""
) -> schemas.MapResponse | Response:
    """Return a 2-D map on which similar items are close. Status 202: the map is being computed, repeat the request."""
    collection_map: CollectionMap | None = await request.app.state.map_cache.load_latest(state)
    if collection_map is None:
        return _pending_response()
    values = [", ".join(item.columns.get(column, [])) for item in collection_map.items] if column else None
    return schemas.MapResponse(
        total=await state.run_with_collection(len),
        ids=[item.id for item in collection_map.items],
        names=[(item.text or item.name)[:MAX_NAME_CHARACTERS] for item in collection_map.items],
        modalities=[item.modality for item in collection_map.items],
        x=collection_map.positions[:, 0].round(4).tolist(),
        y=collection_map.positions[:, 1].round(4).tolist(),
        values=values,
        legend=[value for value, _ in Counter(values or []).most_common(50) if value],
    )


@router.post(
    "/map",
    tags=["map"],
    openapi_extra=make_request_body(schemas.QueryRequest),
    responses={**error_responses(404, 415), 202: {"model": schemas.MapPending}},
    response_model=schemas.MapPosition,
)
async def locate_query(state: StateDep, request: Request) -> schemas.MapPosition | Response:
    """Return the position of a query on the map: the medoid of its best hits. Status 202: repeat the request."""
    async with receive_request(request, schemas.QueryRequest, state.limits) as (query, files):
        search_query = _make_query(await resolve_parts(state, query.parts, files))
        hits = await state.run_with_collection(
            lambda collection: collection.search(search_query, k=50, include_query=True)
        )
    collection_map: CollectionMap | None = await request.app.state.map_cache.load_latest(state)
    if collection_map is None:
        return _pending_response()
    index = collection_map.index
    neighbours = [hit for hit in hits if hit.id in index][:NUM_NEIGHBOURS]
    if not neighbours:
        raise HTTPError(422, "no item on the map is similar to this query")
    positions = collection_map.positions[[index[hit.id] for hit in neighbours]]
    x, y = _weighted_medoid(positions, np.array([hit.relevance + 1e-6 for hit in neighbours]))
    return schemas.MapPosition(x=float(x), y=float(y), neighbours=[hit.id for hit in neighbours])


def _weighted_medoid(positions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the position with the smallest weighted sum of distances. A mean could fall between two clusters."""
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)  # (N, N)
    return positions[np.argmin(distances @ weights)]


def _pending_response() -> Response:
    return JSONResponse(schemas.MapPending().model_dump(), 202, {"Retry-After": "1"})
