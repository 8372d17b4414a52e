"""The map of the collection, and where a query lands on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.schemas import ItemResponse, MapPending, MapPosition, MapResponse, QueryRequest
from triptych.app.server.search import make_request_body
from triptych.app.server.serializers import make_item_response
from triptych.app.server.state import AppState, StateDep
from triptych.app.server.uploads import receive_request
from triptych.search import query as search_queries
from triptych.search.collection import Collection
from triptych.search.projection import project_2d
from triptych.search.store import Version

router = APIRouter(prefix="/v1", tags=["map"])
MAX_POINTS = 4000  # of each modality that are drawn
MAX_NAME_CHARACTERS = 80  # characters of a point's name
NUM_NEIGHBOURS = 5  # hits among which a query is put
WAIT_SECONDS = 0.3  # seconds to wait before saying that the map is being drawn


@dataclass(frozen=True)
class CollectionMap:
    """A map of one version of the collection."""

    version: Version | None
    items: list[ItemResponse]
    positions: np.ndarray  # (N, 2)
    index: dict[str, int]


class MapCache:
    """The newest map, drawn at the first question and when the collection has changed."""

    def __init__(self) -> None:
        self.current: CollectionMap | None = None
        self.task: asyncio.Task[None] | None = None

    async def load_latest(self, state: AppState) -> CollectionMap | None:
        """The map, if it is ready soon."""
        version = await state.read_collection(lambda c: c.store.refresh() if c.store else None)
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
        items, keys = await state.read_collection(_sample_items)
        # No time limit: this is nobody's request, and is done once.
        work = asyncio.get_running_loop().run_in_executor(state.explain_executor.pool, project_2d, keys)
        positions = np.concatenate([*await work, np.empty((0, 2))])
        self.current = CollectionMap(version, items, positions, {item.id: index for index, item in enumerate(items)})


def _sample_items(collection: Collection) -> tuple[list[ItemResponse], list[np.ndarray]]:
    items, vectors = list[ItemResponse](), list[np.ndarray]()
    for modality in collection.space.modalities:
        entries, sampled_vectors = collection.sample(modality, MAX_POINTS)
        if entries:
            items += map(make_item_response, entries)
            vectors.append(sampled_vectors)
    return items, vectors


@router.get("/map", responses={**error_responses(), 202: {"model": MapPending}}, response_model=MapResponse)
async def read_map(
    state: StateDep, request: Request, column: Annotated[str, Query(max_length=200)] = ""
) -> MapResponse | Response:
    """Items on a plane, what is alike together; 202 while it is being drawn: ask again."""
    collection_map = await _map_cache(request).load_latest(state)
    if collection_map is None:
        return _pending_response()
    values = [", ".join(item.columns.get(column, [])) for item in collection_map.items] if column else None
    return MapResponse(
        total=await state.read_collection(len),
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
    openapi_extra=make_request_body(QueryRequest),
    responses={**error_responses(404, 415), 202: {"model": MapPending}},
    response_model=MapPosition,
)
async def locate_query(state: StateDep, request: Request) -> MapPosition | Response:
    """Where a query lies on the map: on the one of its best hits that the others lie nearest to; 202: ask again."""
    async with receive_request(request, QueryRequest, state.limits) as (query, files):
        resolved_parts = await state.resolve_parts(query.parts, files)
        search_query = search_queries.Query(tuple(resolved.part for resolved in resolved_parts))
        hits = await state.read_collection(lambda collection: collection.search(search_query, k=50, include_query=True))
    collection_map = await _map_cache(request).load_latest(state)
    if collection_map is None:
        return _pending_response()
    neighbours = [(collection_map.index[hit.id], hit) for hit in hits if hit.id in collection_map.index][
        :NUM_NEIGHBOURS
    ]
    if not neighbours:
        raise HTTPError(422, "nothing on the map is like this query")
    x, y = _weighted_medoid(
        collection_map.positions[[index for index, _ in neighbours]],
        np.array([hit.relevance + 1e-6 for _, hit in neighbours]),
    )
    return MapPosition(x=float(x), y=float(y), neighbours=[hit.id for _, hit in neighbours])


def _weighted_medoid(positions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The place with the least weighted distance to the others: a mean may lie between two clusters, in neither."""
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)  # (N, N)
    return positions[np.argmin(distances @ weights)]


def _pending_response() -> Response:
    return JSONResponse(MapPending().model_dump(), 202, {"Retry-After": "1"})


def _map_cache(request: Request) -> MapCache:
    return request.app.state.maps
