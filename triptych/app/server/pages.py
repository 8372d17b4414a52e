"""Routes for the search page, the report of a run, the review page of an audit, collection info, health and metrics."""

import asyncio
from collections import Counter
from importlib.resources import files
from io import BufferedReader
from mimetypes import guess_type
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.items import make_item_response
from triptych.app.server.schemas import CollectionInfo, HealthResponse
from triptych.app.server.served_files import OpenFileResponse, ReviewFiles, open_without_links
from triptych.app.server.state import AppState, StateDep
from triptych.interfaces import MODALITIES, Modality
from triptych.search.collection import Collection
from triptych.search.query import quote_sql

router = APIRouter()
PAGE_FOLDER = Path(str(files("triptych.app"))) / "page"
PAGE_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEALTH_TIMEOUT = 1.0  # seconds to wait for the collection before /healthz answers "busy"
SAMPLE_SIZE = 2000  # number of sampled items per modality, which provide the columns, folders and examples
MAX_COLUMN_VALUES = 60  # columns with more distinct values cannot be used as a filter
NUM_EXAMPLES = 4  # number of example queries on the search page
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_REPORT = "the server has no report; start it with --report FILE"
REVALIDATE = {"Cache-Control": "no-cache"}  # browsers revalidate by ETag, so updates are visible at once
# Reports and review pages are self-contained: they may run inline scripts, but may not send requests.
STANDALONE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@router.get("/", include_in_schema=False)
async def read_page() -> Response:
    """Return the search page."""
    return _page_file_response("index.html")


@router.get("/healthz", tags=["server"])
async def check_health(state: StateDep) -> HealthResponse:
    """Return the state of the server. This route needs no token and answers even if the server is busy."""
    status = "ok"
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT):
            state.last_item_count = await state.run_with_collection(len)
    except (TimeoutError, HTTPError):
        status = "busy"
    return HealthResponse(status=status, items=state.last_item_count, queue_length=state.batcher.queue_length)


@router.get("/metrics", tags=["server"], responses=error_responses(), response_class=Response)
async def read_metrics(state: StateDep) -> Response:
    """Return the metrics in the Prometheus text format."""
    state.metrics.queue_length.set(state.batcher.queue_length)
    state.metrics.items.set(await state.run_with_collection(len))
    return Response(state.metrics.format_prometheus(), media_type=PROMETHEUS_TYPE)


@router.get("/v1/collection", tags=["search"], responses=error_responses())
async def read_collection_info(state: StateDep) -> CollectionInfo:
    """Return the contents of the collection and the limits of this server."""
    info = await state.run_with_collection(describe_collection)
    limits = {name: float(value) for name, value in vars(state.limits).items()}
    links = {"report": state.report is not None, "review": state.review is not None}
    return info.model_copy(update={"limits": limits, **links})


@router.get("/report", include_in_schema=False)
async def read_report(state: StateDep) -> Response:
    """Return the report that the server was started with."""
    if state.report is None:
        raise HTTPError(404, NO_REPORT)
    path = state.report
    try:
        return _standalone_response(path, await state.run(state.preview_executor, lambda: open_without_links(path)))
    except OSError:
        raise HTTPError(404, NO_REPORT) from None


@router.get("/review", include_in_schema=False)
async def redirect_to_review(state: StateDep) -> Response:
    """Redirect to the review page that the server was started with."""
    return RedirectResponse(f"/review{_require_review(state).url_path}", 307)


@router.get("/review/{name:path}", include_in_schema=False)
async def read_review_file(state: StateDep, name: str) -> Response:
    """Return the review page or a file that the review page links to."""
    review_files = _require_review(state)
    path_and_file = await state.run(state.preview_executor, lambda: review_files.open(name))
    if path_and_file is None:
        problem = "the review page does not link to this file, or the file has changed since the page was read"
        raise HTTPError(404, f"{name[:200]}: {problem}; if the file has changed, restart the server")
    return _standalone_response(*path_and_file)


@router.get("/favicon.ico", include_in_schema=False)
async def read_favicon() -> Response:
    """Return the icon that browsers request for every page."""
    return _page_file_response("icon.svg")


@router.get("/{name}", include_in_schema=False)
async def read_page_file(name: str, request: Request) -> Response:
    """Return a script, stylesheet or image of the search page."""
    if name not in {path.name for path in PAGE_FOLDER.iterdir()}:
        raise HTTPError(404, f"{request.url.path[:200]}: not found; /openapi.json lists all routes")
    return _page_file_response(name)


def _page_file_response(name: str) -> Response:
    return FileResponse(PAGE_FOLDER / name, media_type=PAGE_MEDIA_TYPES[Path(name).suffix], headers=REVALIDATE)


def _require_review(state: AppState) -> ReviewFiles:
    if state.review is None:
        raise HTTPError(404, "the server has no review page; start it with --review FOLDER")
    return state.review


def _standalone_response(path: Path, file: BufferedReader) -> Response:
    policy = {"Content-Security-Policy": STANDALONE_POLICY} if path.suffix.lower() in {".html", ".htm"} else {}
    media_type = guess_type(path.name)[0] or "application/octet-stream"
    return OpenFileResponse(file, path, media_type, {**REVALIDATE, **policy})


def describe_collection(collection: Collection) -> CollectionInfo:
    """Return the counts of the collection, and columns, folders and examples of a sample of items.

    The caller fills in the fields `limits`, `report` and `review`.
    """
    counts: dict[Modality, int] = {}
    columns: dict[str, Counter[str]] = {}
    folders: Counter[str] = Counter()
    examples: list[str] = []
    for modality in MODALITIES:
        if modality not in collection.space.modalities or collection.store is None:
            continue
        counts[modality] = collection.store.count(f"modality = {quote_sql(modality)}")
        entries, _ = collection.sample(modality, SAMPLE_SIZE)
        for entry in entries:
            for name, values in entry.columns.items():
                columns.setdefault(name, Counter()).update(values)
            response = make_item_response(entry)
            if response.folder:
                folders[response.folder] += 1
            examples += [text for text in (*entry.captions[:1], response.text) if text and 12 < len(text) < 90]
    step = max(1, len(examples) // NUM_EXAMPLES)
    return CollectionInfo(
        name=Path(collection.uri).resolve().name if "://" not in collection.uri else collection.uri,
        items=sum(counts.values()),
        modalities={modality: count for modality, count in counts.items() if count},
        folders=[name for name, _ in folders.most_common(MAX_COLUMN_VALUES)],
        columns={name: sorted(values) for name, values in columns.items() if 1 < len(values) <= MAX_COLUMN_VALUES},
        examples=list(dict.fromkeys(examples[step // 2 :: step]))[:NUM_EXAMPLES],
        similarity=collection.space.recipe.space.similarity.name,
        embed_dim=collection.space.recipe.space.embed_dim,
        fingerprint=collection.fingerprint,
        limits={},
        report=False,
        review=False,
    )
