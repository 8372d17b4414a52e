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

from triptych.app.server.described import hit_answers, item_answer
from triptych.app.server.desk import At, Piece, where_of
from triptych.app.server.problems import Refusal, answers
from triptych.app.server.shapes import (
    Embedding,
    EmbeddingsAnswer,
    EmbeddingsQuery,
    ExplainAnswer,
    ExplainQuery,
    HitAnswer,
    PartReason,
    SearchAnswer,
    SearchQuery,
    Side,
)
from triptych.app.server.uploads import received
from triptych.contracts import Features, Modality, Source
from triptych.search import explain as reasons
from triptych.search.collection import Collection
from triptych.search.query import Query, Ready
from triptych.search.relevance import RELEVANT

router = APIRouter(prefix="/v1", tags=["search"])
DIGITS = 6


def body(model: type[Any]) -> dict[str, Any]:
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


@router.post("/search", openapi_extra=body(SearchQuery), responses=answers(404, 415))
async def search(desk: At, request: Request) -> SearchAnswer:
    """The most relevant items for a query of words, files and items, each with a weight; negative: not like this."""
    started = time.perf_counter()
    async with received(request, SearchQuery, desk.limits) as (query, files):
        pieces = await desk.pieces(query.parts, files)
        asked, want = Query(tuple(piece.part for piece in pieces)), list(dict.fromkeys(query.want))

        def work(collection: Collection) -> tuple[list[HitAnswer], str | None]:
            roots, k, own = desk.roots.of(collection), min(query.k, desk.limits.hits), query.include_query
            found = collection.search(asked, want, k, where_of(query.where, roots), include_query=own)
            return hit_answers(found, roots), None if own else collection.note_on_own_items(asked)

        hits, left_out = await desk.read(work)
    notes = [note for piece in pieces if (note := _note(piece, desk.collection))]
    notes += [left_out] if left_out else []
    return SearchAnswer(hits=hits, line=RELEVANT, seconds=time.perf_counter() - started, notes=notes)


def _note(piece: Piece, collection: Collection) -> str | None:
    """What is worth knowing of how a part was used."""
    if piece.source.modality != "audio" or not isinstance(piece.part.what, Ready):
        return None
    longest = collection.space.encoder("audio").seconds
    return f"of a sound the first {longest:g} s are heard" if longest < 3600 else None


@router.post("/embeddings", responses=answers())
async def embeddings(desk: At, query: EmbeddingsQuery) -> EmbeddingsAnswer:
    """Vectors of texts, in the shape OpenAI's clients ask for and read."""
    width = desk.collection.space.recipe.space.width
    if query.dimensions not in {None, width}:
        raise Refusal(422, f"dimensions: {query.dimensions}; this space has {width}")
    found = await desk.batches.embed([Source("text", words) for words in query.input])
    data = [
        Embedding(index=i, embedding=_written(features.embedding[0], query.encoding_format))
        for i, features in enumerate(found)
    ]
    return EmbeddingsAnswer(data=data, model=query.model)


def _written(vector: torch.Tensor, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.float().numpy().astype("<f4").tobytes()).decode()
    return vector.float().tolist()


@router.post("/explain", openapi_extra=body(ExplainQuery), responses=answers(404, 410, 415))
async def explain(desk: At, request: Request) -> ExplainAnswer:
    """How much each part of the query and each part of a hit add to the score, and where those parts lie."""
    async with received(request, ExplainQuery, desk.limits) as (query, files):
        entry = await desk.entry(query.item)
        items = [entry, *[await desk.entry(part.item) for part in query.parts if part.item]]
        # What is read again must be what the score is of.
        kept_files = {one.item.source: one for one in items if isinstance(one.item.source.content, Path)}
        pieces = await desk.pieces(query.parts, files)
        kept = await desk.read(lambda collection: collection.features(query.item))
        asked = [await desk.read(lambda c, piece=piece: _features(c, piece)) for piece in pieces]

        def work(paths: Sequence[Path]) -> list[PartReason]:
            opened = {s: replace(s, content=path) for s, path in zip(kept_files, paths, strict=True)}
            space, found = desk.collection.space, []
            hit = opened.get(entry.item.source, entry.item.source)
            for piece, features in zip(pieces, asked, strict=True):
                score = float(space.scores(features, piece.source.modality, kept, hit.modality))
                with desk.batches.workers.sandbox():  # it reads uploads again
                    told = reasons.explain(space, opened.get(piece.source, piece.source), hit, score)
                found.append(_reason(told, piece))
            return found

        parts = await desk.use_files(desk.thinking, list(kept_files.values()), work)
    return ExplainAnswer(item=item_answer(entry), parts=parts, how=reasons.how(desk.collection.space))


def _features(collection: Collection, piece: Piece) -> Features:
    what = piece.part.what
    if isinstance(what, Ready):
        return what.features
    return collection.features(str(what))


def _reason(told: reasons.Explanation, piece: Piece) -> PartReason:
    table = told.contributions
    return PartReason(
        part=piece.number,
        score=told.score,
        weight=piece.part.weight,
        total=float(table.sum()),
        rest=told.rest,
        query=_side(told.query, table.sum(dim=1)),
        hit=_side(told.hit, table.sum(dim=0)),
        pairs=[[round(value, DIGITS) for value in row] for row in table.tolist()],
        heat=[[round(value, DIGITS) for value in row] for row in told.heat.tolist()],
    )


def _side(side: reasons.Side, contributions: torch.Tensor) -> Side:
    modality: Modality = side.modality
    return Side(
        modality=modality,
        text=side.text,
        span=side.span,
        places=[list(place) for place in side.places],
        contributions=[round(value, DIGITS) for value in contributions.tolist()],
    )
