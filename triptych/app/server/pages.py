"""What a browser opens: the page, a run's report, the audit's review; and what a watching machine asks."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from io import BufferedReader
from mimetypes import guess_type
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.metrics import CONTENT_TYPE
from triptych.app.server.review import ReviewFiles
from triptych.app.server.schemas import CollectionInfo, HealthResponse
from triptych.app.server.serializers import describe_collection
from triptych.app.server.served_files import OpenFileResponse, open_without_links
from triptych.app.server.state import AppState, StateDep

router = APIRouter()
PAGE_FOLDER = Path(str(files("triptych.app"))) / "page"
PAGE_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEALTH_TIMEOUT = 1.0  # for the collection to say how much it holds
NO_REPORT = "no report here; start the server with --report FILE"
REVALIDATE = {"Cache-Control": "no-cache"}  # asked again each time, answered by ETag: a new version is seen at once
# A report or review is one file with everything in it: it may run its own scripts, and reach nothing.
STANDALONE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@router.get("/", include_in_schema=False)
async def read_page() -> Response:
    """The page."""
    return _page_file_response("index.html")


@router.get("/healthz", tags=["server"])
async def check_health(state: StateDep) -> HealthResponse:
    """Whether the server is well; needs no token, and is answered however busy the server is."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT):
            state.last_item_count = await state.read_collection(len)
    except (TimeoutError, HTTPError):
        return HealthResponse(status="busy", items=state.last_item_count, queue_length=state.batcher.queue_length)
    return HealthResponse(status="ok", items=state.last_item_count, queue_length=state.batcher.queue_length)


@router.get("/metrics", tags=["server"], responses=error_responses(), response_class=Response)
async def read_metrics(state: StateDep) -> Response:
    """Counters and times, for Prometheus."""
    state.metrics.queue_length.set(state.batcher.queue_length)
    state.metrics.items.set(await state.read_collection(len))
    return Response(state.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/v1/collection", tags=["search"], responses=error_responses())
async def read_collection_info(state: StateDep) -> CollectionInfo:
    """What the collection holds, and the limits of this server."""
    info = await state.read_collection(describe_collection)
    return info.model_copy(
        update={
            "limits": {name: float(value) for name, value in vars(state.limits).items()},
            "report": state.report is not None,
            "review": state.review is not None,
        }
    )


@router.get("/report", include_in_schema=False)
async def read_report(state: StateDep) -> Response:
    """A run's report, where the server was started with one."""
    if state.report is None:
        raise HTTPError(404, NO_REPORT)
    path = state.report
    try:
        return _standalone_response(path, await state.run(state.preview_executor, lambda: open_without_links(path)))
    except OSError:
        raise HTTPError(404, NO_REPORT) from None


@router.get("/review", include_in_schema=False)
async def redirect_to_review(state: StateDep) -> Response:
    """To the audit's review page, where the server was started with one."""
    return RedirectResponse(f"/review{_require_review(state).url_path}", 307)


@router.get("/review/{name:path}", include_in_schema=False)
async def read_review_file(state: StateDep, name: str) -> Response:
    """The review page, and the files it shows."""
    review_files = _require_review(state)
    path_and_file = await state.run(state.preview_executor, lambda: review_files.open(name))
    if path_and_file is None:
        raise HTTPError(
            404,
            f"{name[:200]}: the review page shows nothing by this name, or the file has changed since the page was "
            "read; if so, start the server again",
        )
    return _standalone_response(*path_and_file)


@router.get("/favicon.ico", include_in_schema=False)
async def read_favicon() -> Response:
    """What browsers ask for beside any page, such as a report."""
    return _page_file_response("icon.svg")


@router.get("/{name}", include_in_schema=False)
async def read_page_file(name: str, request: Request) -> Response:
    """A part of the page: only what the package has."""
    if name not in {path.name for path in PAGE_FOLDER.iterdir()}:
        raise HTTPError(404, f"{request.url.path[:200]}: nothing here; /openapi.json lists what there is")
    return _page_file_response(name)


def _page_file_response(name: str) -> Response:
    return FileResponse(PAGE_FOLDER / name, media_type=PAGE_MEDIA_TYPES[Path(name).suffix], headers=REVALIDATE)


def _require_review(state: AppState) -> ReviewFiles:
    if state.review is None:
        raise HTTPError(404, "no review here; start the server with --review FOLDER")
    return state.review


def _standalone_response(path: Path, file: BufferedReader) -> Response:
    policy = {"Content-Security-Policy": STANDALONE_POLICY} if path.suffix.lower() in {".html", ".htm"} else {}
    media_type = guess_type(path.name)[0] or "application/octet-stream"
    return OpenFileResponse(file, path, media_type, {**REVALIDATE, **policy})
