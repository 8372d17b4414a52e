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

UNPROCESSABLE = 422
CLIENT_CLOSED_REQUEST = 499  # nobody is there for the answer; the number that proxies log


class HTTPError(Exception):
    """An answer other than the one asked for: a status, what is wrong and what to do."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str = Field(description="what is wrong, what was found, what to do")
    type: str = Field(description="the kind of error, as in triptych/errors.py")


class ErrorResponse(BaseModel):
    """Every answer that is not the one asked for, in the shape OpenAI's clients read."""

    error: ErrorDetail


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer instead, for the OpenAPI description."""
    descriptions = {
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
    return {
        status: {"model": ErrorResponse, "description": descriptions[status]} for status in sorted({*always, *statuses})
    }


def make_error_response(status: int, message: str, error_type: str, retry_after: int | None = None) -> Response:
    """One problem as JSON."""
    headers = {"Retry-After": str(retry_after)} if retry_after else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": {"message": message, "type": error_type}}, status, headers)


def add_exception_handlers(app: FastAPI) -> None:
    """Make an application answer with these texts."""

    @app.exception_handler(HTTPError)
    def handle_http_error(_: Request, error: HTTPError) -> Response:
        return make_error_response(error.status, error.message, "HTTPError", error.retry_after)

    @app.exception_handler(TriptychError)
    def handle_triptych_error(_: Request, error: TriptychError) -> Response:
        status = 500 if isinstance(error, CollectionError) else UNPROCESSABLE
        return make_error_response(status, str(error), type(error).__name__)

    @app.exception_handler(ClientDisconnect)
    def handle_disconnect(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # for the metrics: nobody reads it

    @app.exception_handler(RequestValidationError)
    def handle_validation_error(_: Request, error: RequestValidationError) -> Response:
        return make_error_response(UNPROCESSABLE, format_validation_errors(error.errors()), "UsageError")

    @app.exception_handler(HTTPException)
    def handle_routing_error(request: Request, error: HTTPException) -> Response:
        messages = {404: f"{request.url.path}: nothing here; /openapi.json lists what there is"}
        messages[405] = f"{request.method} is not answered here; /openapi.json lists what is"
        response = make_error_response(
            error.status_code, messages.get(error.status_code, str(error.detail)), "UsageError"
        )
        response.headers.update(error.headers or {})
        return response


def format_validation_errors(errors: Sequence[Any]) -> str:
    """The first thing that is wrong with a request, as one sentence, and how many more there are."""
    first = errors[0]
    location = ".".join(str(key) for key in first["loc"] if key not in {"body", "query", "path"}) or "the request"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    value = first.get("input")
    value_text = (
        f", found {value!r:.80}" if isinstance(value, str | int | float) and "found" not in first["msg"] else ""
    )
    return f"{location}: {first['msg'].removeprefix('Value error, ')}{value_text}{more}"
