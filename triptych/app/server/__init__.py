"""The server: the collection over HTTP, and the page. `application` puts it together, `serve` runs it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from triptych import __version__
from triptych.app.server import errors, items, maps, pages, search
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import MetricsMiddleware
from triptych.app.server.review import ReviewFiles
from triptych.app.server.schemas import ExplainRequest, QueryRequest, SearchRequest
from triptych.app.server.security import LOOPBACK_NAMES, SecurityMiddleware
from triptych.app.server.state import AppState
from triptych.errors import UsageError
from triptych.search.collection import Collection

if TYPE_CHECKING:
    import uvicorn

DESCRIPTION = """Search a collection of sounds, pictures and texts by any of them.

A query has parts: words, items of the collection, uploaded files; each with a weight, negative for "not like this".
Requests with files are forms: the same JSON in the field `query`, each file under the name its part gives. Errors
have the same texts as on the command line."""


def create_app(
    collection: Collection,
    limits: Limits | None = None,
    token: str | None = None,
    report: Path | None = None,
    review: Path | None = None,
) -> FastAPI:
    """The server as an ASGI application; with a token, nobody without it is let in."""
    state = AppState(collection, limits, report, ReviewFiles(review) if review else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()

    # The usual documentation pages fetch their scripts from elsewhere; this server works offline.
    app = FastAPI(
        title="triptych", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.app_state, app.state.maps, app.state.limits = state, maps.MapCache(), state.limits
    errors.add_exception_handlers(app)
    for router in (search.router, items.router, maps.router, pages.router):
        app.include_router(router)
    app.add_middleware(MetricsMiddleware, metrics=state.metrics)
    app.add_middleware(SecurityMiddleware, limits=state.limits, token=token)
    _add_form_schemas(app)
    return app


def _add_form_schemas(app: FastAPI) -> None:
    """Put the shapes of requests that are read by hand into the description."""
    openapi = app.openapi()
    schemas = openapi["components"]["schemas"]
    for model in (SearchRequest, ExplainRequest, QueryRequest):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {name: definition for name, definition in schema.pop("$defs", {}).items() if name not in schemas}
        schemas[model.__name__] = schema


def make_token(host: str) -> str | None:
    """A fresh token where the address can be reached from other machines; none on this machine alone."""
    host_name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return None if host_name in LOOPBACK_NAMES or host.startswith("127.") else secrets.token_urlsafe(32)


def check_linked_pages(report: Path | None, review: Path | None) -> None:
    """Raise a UsageError if the report or the review page does not exist."""
    if report is not None and not report.is_file():
        raise UsageError(f"--report {report}: no such file; `triptych report` writes one")
    if review is not None and not ReviewFiles(review).page.is_file():
        raise UsageError(f"--review {review}: no review.html there; `triptych audit` writes one")


def format_url(host: str, listener: socket.socket, token: str | None) -> str:
    """Return the URL of the page, with the token if there is one."""
    host_name = f"[{host}]" if ":" in host else host
    return f"http://{host_name}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, or an error that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(256)  # from here on nobody is turned away, though answers come once everything is loaded
    except OSError as error:
        listener.close()
        raise UsageError(f"{host}:{port} cannot be used ({error.strerror}); try another --port, or --port 0") from error
    return listener


def create_server(app: FastAPI, **settings: Any) -> uvicorn.Server:
    """A uvicorn server for the application, with our connections."""
    import uvicorn

    from triptych.app.server.connections import Connection

    # proxy_headers off: nobody may tell us another address than the one they come from.
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
    """Answer until interrupted."""
    create_server(app).run(sockets=[listener])
