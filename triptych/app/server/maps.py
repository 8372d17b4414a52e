"""The map of the collection, and where a query lands on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from triptych.app.server.described import item_answer
from triptych.app.server.desk import At, Desk
from triptych.app.server.problems import Refusal, answers
from triptych.app.server.searches import body
from triptych.app.server.shapes import Asking, Drawing, ItemAnswer, Landing, MapAnswer
from triptych.app.server.uploads import received
from triptych.search import query as asking
from triptych.search.collection import Collection
from triptych.search.map import project
from triptych.search.store import Version

router = APIRouter(prefix="/v1", tags=["map"])
POINTS = 4000  # of each modality that are drawn
NAME = 80  # characters of a point's name
NEAR = 5  # hits among which a query is put
PATIENCE = 0.3  # seconds to wait before saying that the map is being drawn


@dataclass(frozen=True)
class Drawn:
    """A map of one version of the collection."""

    version: Version | None
    items: list[ItemAnswer]
    places: np.ndarray  # (N, 2)
    index: dict[str, int]


class Maps:
    """The newest map, drawn at the first question and when the collection has changed."""

    def __init__(self) -> None:
        self.drawn: Drawn | None = None
        self.task: asyncio.Task[None] | None = None

    async def newest(self, desk: Desk) -> Drawn | None:
        """The map, if it is ready soon."""
        version = await desk.read(lambda c: c.store.refresh() if c.store else None)
        if self.drawn is not None and self.drawn.version == version:
            return self.drawn
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._draw(desk, version))
        await asyncio.wait([self.task], timeout=PATIENCE)
        if self.task.done():
            self.task.result()
            return self.drawn
        return None

    async def _draw(self, desk: Desk, version: Version | None) -> None:
        items, keys = await desk.read(_sampled)
        # No time limit: this is nobody's request, and is done once.
        work = asyncio.get_running_loop().run_in_executor(desk.thinking.pool, project, keys)
        places = np.concatenate([*await work, np.empty((0, 2))])
        self.drawn = Drawn(version, items, places, {item.id: place for place, item in enumerate(items)})


def _sampled(collection: Collection) -> tuple[list[ItemAnswer], list[np.ndarray]]:
    items, keys = list[ItemAnswer](), list[np.ndarray]()
    for modality in collection.space.modalities:
        entries, some = collection.sample(modality, POINTS)
        if entries:
            items += map(item_answer, entries)
            keys.append(some)
    return items, keys


@router.get("/map", responses={**answers(), 202: {"model": Drawing}}, response_model=MapAnswer)
async def show(desk: At, request: Request, column: Annotated[str, Query(max_length=200)] = "") -> MapAnswer | Response:
    """Items on a plane, what is alike together; 202 while it is being drawn: ask again."""
    drawn = await _maps(request).newest(desk)
    if drawn is None:
        return _later()
    values = [", ".join(item.columns.get(column, [])) for item in drawn.items] if column else None
    return MapAnswer(
        total=await desk.read(len),
        ids=[item.id for item in drawn.items],
        names=[(item.text or item.name)[:NAME] for item in drawn.items],
        modalities=[item.modality for item in drawn.items],
        x=drawn.places[:, 0].round(4).tolist(),
        y=drawn.places[:, 1].round(4).tolist(),
        values=values,
        legend=[value for value, _ in Counter(values or []).most_common(50) if value],
    )


@router.post(
    "/map",
    openapi_extra=body(Asking),
    responses={**answers(404, 415), 202: {"model": Drawing}},
    response_model=Landing,
)
async def land(desk: At, request: Request) -> Landing | Response:
    """Where a query lies on the map: on the one of its best hits that the others lie nearest to; 202: ask again."""
    async with received(request, Asking, desk.limits) as (query, files):
        pieces = await desk.pieces(query.parts, files)
        whole = asking.Query(tuple(piece.part for piece in pieces))
        hits = await desk.read(lambda collection: collection.search(whole, k=50, include_query=True))
    drawn = await _maps(request).newest(desk)
    if drawn is None:
        return _later()
    near = [(drawn.index[hit.id], hit) for hit in hits if hit.id in drawn.index][:NEAR]
    if not near:
        raise Refusal(422, "nothing on the map is like this query")
    x, y = _middle(drawn.places[[place for place, _ in near]], np.array([hit.relevance + 1e-6 for _, hit in near]))
    return Landing(x=float(x), y=float(y), near=[hit.id for _, hit in near])


def _middle(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The place with the least weighted distance to the others: a mean may lie between two clusters, in neither."""
    apart = np.linalg.norm(places[:, None] - places, axis=2)  # (N, N)
    return places[np.argmin(apart @ weights)]


def _later() -> Response:
    return JSONResponse(Drawing().model_dump(), 202, {"Retry-After": "1"})


def _maps(request: Request) -> Maps:
    return request.app.state.maps
