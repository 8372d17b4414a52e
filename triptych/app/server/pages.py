"""What a browser opens: the page, a run's report, the audit's review; and what a watching machine asks."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from io import BufferedReader
from mimetypes import guess_type
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from triptych.app.server.described import overview
from triptych.app.server.desk import At, Desk
from triptych.app.server.metrics import KIND
from triptych.app.server.problems import Refusal, answers
from triptych.app.server.reviews import Review
from triptych.app.server.served_files import OpenFileResponse, open_without_links
from triptych.app.server.shapes import Health, Overview

router = APIRouter()
PAGE = Path(str(files("triptych.app"))) / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEALTH_SECONDS = 1.0  # for the collection to say how much it holds
NO_REPORT = "no report here; start the server with --report FILE"
FRESH = {"Cache-Control": "no-cache"}  # asked again each time, answered by ETag: a new version is seen at once
# A report or review is one file with everything in it: it may run its own scripts, and reach nothing.
ALONE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page."""
    return _part("index.html")


@router.get("/healthz", tags=["server"])
async def healthz(desk: At) -> Health:
    """Whether the server is well; needs no token, and is answered however busy the server is."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            desk.items = await desk.read(len)
    except (TimeoutError, Refusal):
        return Health(status="busy", items=desk.items, waiting=desk.batches.busy)
    return Health(status="ok", items=desk.items, waiting=desk.batches.busy)


@router.get("/metrics", tags=["server"], responses=answers(), response_class=Response)
async def metrics(desk: At) -> Response:
    """Counters and times, for Prometheus."""
    desk.metrics.waiting.set(desk.batches.busy)
    desk.metrics.items.set(await desk.read(len))
    return Response(desk.metrics.text(), media_type=KIND)


@router.get("/v1/collection", tags=["search"], responses=answers())
async def collection(desk: At) -> Overview:
    """What the collection holds, and the limits of this server."""
    found = await desk.read(overview)
    return found.model_copy(
        update={
            "limits": {name: float(value) for name, value in vars(desk.limits).items()},
            "report": desk.report is not None,
            "review": desk.review is not None,
        }
    )


@router.get("/report", include_in_schema=False)
async def report(desk: At) -> Response:
    """A run's report, where the server was started with one."""
    if desk.report is None:
        raise Refusal(404, NO_REPORT)
    path = desk.report
    try:
        return _alone(path, await desk.run(desk.drawing, lambda: open_without_links(path)))
    except OSError:
        raise Refusal(404, NO_REPORT) from None


@router.get("/review", include_in_schema=False)
async def review_page(desk: At) -> Response:
    """To the audit's review page, where the server was started with one."""
    return RedirectResponse(f"/review{_review(desk).address}", 307)


@router.get("/review/{name:path}", include_in_schema=False)
async def review(desk: At, name: str) -> Response:
    """The review page, and the files it shows."""
    shown = _review(desk)
    found = await desk.run(desk.drawing, lambda: shown.open(name))
    if found is None:
        raise Refusal(
            404,
            f"{name[:200]}: the review page shows nothing by this name, or the file has changed since the page was "
            "read; if so, start the server again",
        )
    return _alone(*found)


@router.get("/favicon.ico", include_in_schema=False)
async def favicon() -> Response:
    """What browsers ask for beside any page, such as a report."""
    return _part("icon.svg")


@router.get("/{name}", include_in_schema=False)
async def part(name: str, request: Request) -> Response:
    """A part of the page: only what the package has."""
    if name not in {path.name for path in PAGE.iterdir()}:
        raise Refusal(404, f"{request.url.path[:200]}: nothing here; /openapi.json lists what there is")
    return _part(name)


def _part(name: str) -> Response:
    return FileResponse(PAGE / name, media_type=KINDS[Path(name).suffix], headers=FRESH)


def _review(desk: Desk) -> Review:
    if desk.review is None:
        raise Refusal(404, "no review here; start the server with --review FOLDER")
    return desk.review


def _alone(path: Path, file: BufferedReader) -> Response:
    policy = {"Content-Security-Policy": ALONE} if path.suffix.lower() in {".html", ".htm"} else {}
    kind = guess_type(path.name)[0] or "application/octet-stream"
    return OpenFileResponse(file, path, kind, {**FRESH, **policy})
