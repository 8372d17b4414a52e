"""Errors to answers: the texts of the command line, each with its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from triptych.errors import CollectionError, TriptychError

UNREADABLE = 422
GONE = 499  # nobody is there for the answer; the number that proxies log


class Refusal(Exception):  # noqa: N818 - it is what the visitor meets, not a mistake of ours
    """An answer other than the one asked for: a status, what is wrong and what to do."""

    def __init__(self, status: int, message: str, retry: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry = status, message, retry


class Problem(BaseModel):
    """What is wrong."""

    message: str = Field(description="what is wrong, what was found, what to do")
    type: str = Field(description="the kind of error, as in triptych/errors.py")


class ProblemAnswer(BaseModel):
    """Every answer that is not the one asked for, in the shape OpenAI's clients read."""

    error: Problem


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer instead, for the OpenAPI description."""
    said = {
        400: "the request makes no sense as it stands",
        401: "the token is missing or wrong",
        403: "the request comes from another site",
        404: "nothing by this name is in the collection",
        408: "the request took too long to arrive",
        410: "the file has gone or changed since it was indexed",
        413: "larger than the server takes",
        415: "of a kind the server does not take",
        416: "the file has no such range",
        421: "the request names another host than this one",
        422: "something in it cannot be read",
        503: "too many requests at once; try again after the seconds in Retry-After",
    }
    always = (400, 401, 403, 408, 413, 421, 422, 503)
    return {status: {"model": ProblemAnswer, "description": said[status]} for status in sorted({*always, *statuses})}


def answer(status: int, message: str, kind: str, retry: int | None = None) -> Response:
    """One problem as JSON."""
    headers = {"Retry-After": str(retry)} if retry else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": {"message": message, "type": kind}}, status, headers)


def install(app: FastAPI) -> None:
    """Make an application answer with these texts."""

    @app.exception_handler(Refusal)
    def refuse(_: Request, error: Refusal) -> Response:
        return answer(error.status, error.message, "Refusal", error.retry)

    @app.exception_handler(TriptychError)
    def explain(_: Request, error: TriptychError) -> Response:
        status = 500 if isinstance(error, CollectionError) else UNREADABLE
        return answer(status, str(error), type(error).__name__)

    @app.exception_handler(ClientDisconnect)
    def leave(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=GONE)  # for the metrics: nobody reads it

    @app.exception_handler(RequestValidationError)
    def correct(_: Request, error: RequestValidationError) -> Response:
        return answer(UNREADABLE, sentence(error.errors()), "UsageError")

    @app.exception_handler(HTTPException)
    def route(request: Request, error: HTTPException) -> Response:
        said = {404: f"{request.url.path}: nothing here; /openapi.json lists what there is"}
        said[405] = f"{request.method} is not answered here; /openapi.json lists what is"
        given = answer(error.status_code, said.get(error.status_code, str(error.detail)), "UsageError")
        given.headers.update(error.headers or {})
        return given


def sentence(errors: Sequence[Any]) -> str:
    """The first thing that is wrong with a request, as one sentence, and how many more there are."""
    first = errors[0]
    place = ".".join(str(step) for step in first["loc"] if step not in {"body", "query", "path"}) or "the request"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    found = first.get("input")
    shown = f", found {found!r:.80}" if isinstance(found, str | int | float) and "found" not in first["msg"] else ""
    return f"{place}: {first['msg'].removeprefix('Value error, ')}{shown}{more}"
