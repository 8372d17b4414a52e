"""Conversion of exceptions to HTTP error responses, with the same messages as on the command line."""

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
CLIENT_CLOSED_REQUEST = 499  # the non-standard status code of nginx


class HTTPError(Exception):
    """An error with an HTTP status code. The message says what is wrong and what to do."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    def to_response(self) -> Response:
        """Return the error as a JSON response."""
        return make_error_response(self.status, self.message, "HTTPError", self.retry_after)


def make_busy_error(problem: str, retry_after: int) -> HTTPError:
    """Return the error for a server that is busy. The client should repeat the request after `retry_after` seconds."""
    return HTTPError(503, f"{problem}; try again in {retry_after} s", retry_after)


class ErrorDetail(BaseModel):
    """The message and the type of an error."""

    message: str = Field(description="what is wrong, which value was given, and what to do")
    type: str = Field(description="class name of the error, as in triptych/errors.py")


class ErrorResponse(BaseModel):
    """The body of every error response, compatible with OpenAI clients."""

    error: ErrorDetail


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route, for the OpenAPI schema."""
    descriptions = {
        400: "malformed request",
        401: "missing or invalid token",
        403: "cross-origin request",
        404: "not found in the collection",
        408: "the request was not received in time",
        410: "the file was deleted or changed since it was indexed",
        413: "request too large",
        415: "unsupported content type or file format",
        416: "range not satisfiable",
        421: "the Host header names another host",
        422: "invalid value, or unreadable file",
        503: "too many concurrent requests; try again after Retry-After seconds",
    }
    always = (400, 401, 403, 408, 413, 421, 422, 503)
    return {code: {"model": ErrorResponse, "description": descriptions[code]} for code in sorted({*always, *statuses})}


def make_error_response(status: int, message: str, error_type: str, retry_after: int | None = None) -> Response:
    """Return an error as a JSON response."""
    headers = {"Retry-After": str(retry_after)} if retry_after else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": {"message": message, "type": error_type}}, status, headers)


def add_exception_handlers(app: FastAPI) -> None:
    """Register the handlers that turn exceptions into error responses."""

    @app.exception_handler(HTTPError)
    def handle_http_error(_: Request, error: HTTPError) -> Response:
        return error.to_response()

    @app.exception_handler(TriptychError)
    def handle_triptych_error(_: Request, error: TriptychError) -> Response:
        status = 500 if isinstance(error, CollectionError) else UNPROCESSABLE
        return make_error_response(status, str(error), type(error).__name__)

    @app.exception_handler(ClientDisconnect)
    def handle_disconnect(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # The client is gone. Only the metrics record the response.

    @app.exception_handler(RequestValidationError)
    def handle_validation_error(_: Request, error: RequestValidationError) -> Response:
        return make_error_response(UNPROCESSABLE, format_validation_errors(error.errors()), "UsageError")

    @app.exception_handler(HTTPException)
    def handle_routing_error(request: Request, error: HTTPException) -> Response:
        status, hint = error.status_code, "/openapi.json lists all routes"
        messages = {404: f"{request.url.path}: not found; {hint}"}
        messages[405] = f"{request.method} is not allowed for this route; {hint}"
        response = make_error_response(status, messages.get(status, str(error.detail)), "UsageError")
        response.headers.update(error.headers or {})
        return response


def format_validation_errors(errors: Sequence[Any]) -> str:
    """Format the first validation error as one sentence, followed by the number of further errors."""
    first = errors[0]
    location = ".".join(str(key) for key in first["loc"] if key not in {"body", "query", "path"}) or "the request"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    value = first.get("input")
    has_value = isinstance(value, str | int | float) and "found" not in first["msg"]
    suffix = f", found {value!r:.80}{more}" if has_value else more
    return f"{location}: {first['msg'].removeprefix('Value error, ')}{suffix}"
