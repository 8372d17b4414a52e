"""The HTTP server: search API and search page of a collection. `create_app` builds the application, `serve` runs it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from triptych import __version__
from triptych.app.server import errors, items, pages, search
from triptych.app.server.limits import Limits
from triptych.app.server.schemas import ExplainRequest, QueryRequest, SearchRequest
from triptych.app.server.security import LOOPBACK_NAMES, Connection, SecurityMiddleware
from triptych.app.server.served_files import ReviewFiles
from triptych.app.server.state import AppState, MetricsMiddleware
from triptych.errors import UsageError
from triptych.search.collection import Collection

if TYPE_CHECKING:
    import uvicorn

DESCRIPTION = """Search a collection of audio, images, videos and texts with queries of any modality.

A query has one or several parts: texts, items of the collection, uploaded files. Each part has a weight; a negative
weight excludes similar items. A request with files is a multipart form: the field `query` contains the same JSON,
and `file` of a query part is the name of the form field that contains the file. Error messages are the same as on
the command line."""


def create_app(
    collection: Collection,
    limits: Limits | None = None,
    token: str | None = None,
    report: Path | None = None,
    review: Path | None = None,
) -> FastAPI:
    """Create the ASGI application. If a token is given, every request must contain the token."""
    state = AppState(collection, limits, report, ReviewFiles(review) if review else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()

    # The documentation pages of FastAPI load scripts from a CDN. They are disabled because this server works offline.
    app = FastAPI(
        title="triptych", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.app_state, app.state.map_cache, app.state.limits = state, search.MapCache(), state.limits
    errors.add_exception_handlers(app)
    for router in (search.router, items.router, pages.router):
        app.include_router(router)
    app.add_middleware(MetricsMiddleware, metrics=state.metrics)
    app.add_middleware(SecurityMiddleware, limits=state.limits, token=token)
    _add_form_schemas(app)
    return app


def _add_form_schemas(app: FastAPI) -> None:
    """Add the schemas of JSON and form requests, which the routes parse without FastAPI, to the OpenAPI schema."""
    openapi = app.openapi()
    schemas = openapi["components"]["schemas"]
    for model in (SearchRequest, ExplainRequest, QueryRequest):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {name: definition for name, definition in schema.pop("$defs", {}).items() if name not in schemas}
        schemas[model.__name__] = schema


def make_token(host: str) -> str | None:
    """Return a random token if the address is reachable from other machines; None for loopback addresses."""
    host_name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return None if host_name in LOOPBACK_NAMES or host.startswith("127.") else secrets.token_urlsafe(32)


def check_linked_pages(report: Path | None, review: Path | None) -> None:
    """Raise a UsageError if the report or the review page does not exist."""
    if report is not None and not report.is_file():
        raise UsageError(f"--report {report}: no such file; `triptych report` writes a report")
    if review is not None and not ReviewFiles(review).page.is_file():
        raise UsageError(f"--review {review}: this folder contains no review.html; `triptych audit` writes it")


def format_url(host: str, listener: socket.socket, token: str | None) -> str:
    """Return the URL of the search page, which contains the token if there is one."""
    host_name = f"[{host}]" if ":" in host else host
    return f"http://{host_name}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise a UsageError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(256)  # clients can connect now; they get responses once the server has started
    except OSError as error:
        listener.close()
        raise UsageError(f"{host}:{port} cannot be used ({error.strerror}); try another --port, or --port 0") from error
    return listener


def create_server(app: FastAPI, **settings: Any) -> uvicorn.Server:
    """Create a uvicorn server with connection limits."""
    import uvicorn

    # proxy_headers=False: clients must not be able to forge their address.
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=32_768,
        **settings,
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until interrupted."""
    create_server(app).run(sockets=[listener])
