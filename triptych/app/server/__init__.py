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
from triptych.app.server import items, maps, pages, problems, searches
from triptych.app.server.desk import Desk
from triptych.app.server.guard import NAMES, Guard
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Meter
from triptych.app.server.reviews import Review
from triptych.app.server.shapes import Asking, ExplainQuery, SearchQuery
from triptych.errors import UsageError
from triptych.search.collection import Collection

if TYPE_CHECKING:
    import uvicorn

ABOUT = """Search a collection of sounds, pictures and texts by any of them.

A query has parts: words, items of the collection, uploaded files; each with a weight, negative for "not like this".
Requests with files are forms: the same JSON in the field `query`, each file under the name its part gives. Errors
have the same texts as on the command line."""


def application(
    collection: Collection,
    limits: Limits | None = None,
    token: str | None = None,
    report: Path | None = None,
    review: Path | None = None,
) -> FastAPI:
    """The server as an ASGI application; with a token, nobody without it is let in."""
    desk = Desk(collection, limits, report, Review(review) if review else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close()

    # The usual documentation pages fetch their scripts from elsewhere; this server works offline.
    app = FastAPI(
        title="triptych", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.desk, app.state.maps, app.state.limits = desk, maps.Maps(), desk.limits
    problems.install(app)
    for router in (searches.router, items.router, maps.router, pages.router):
        app.include_router(router)
    app.add_middleware(Meter, metrics=desk.metrics)
    app.add_middleware(Guard, limits=desk.limits, token=token)
    _describe_forms(app)
    return app


def _describe_forms(app: FastAPI) -> None:
    """Put the shapes of requests that are read by hand into the description."""
    whole = app.openapi()
    known = whole["components"]["schemas"]
    for model in (SearchQuery, ExplainQuery, Asking):
        shape = model.model_json_schema(ref_template="#/components/schemas/{model}")
        known |= {name: part for name, part in shape.pop("$defs", {}).items() if name not in known}
        known[model.__name__] = shape


def token_for(host: str) -> str | None:
    """A fresh token where the address can be reached from other machines; none on this machine alone."""
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return None if name in NAMES or host.startswith("127.") else secrets.token_urlsafe(32)


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, or an error that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(256)  # from here on nobody is turned away, though answers come once everything is loaded
    except OSError as error:
        made.close()
        raise UsageError(f"{host}:{port} cannot be used ({error.strerror}); try another --port, or --port 0") from error
    return made


def server_for(app: FastAPI, **settings: Any) -> uvicorn.Server:
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


def serve(app: FastAPI, at: socket.socket) -> None:
    """Answer until interrupted."""
    server_for(app).run(sockets=[at])
