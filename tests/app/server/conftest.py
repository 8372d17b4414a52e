"""Fixtures of the server: real servers, HTTP clients and a browser."""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.app.server.http_requests import QUERY, SEARCH
from triptych.app.server import bind_socket, create_app, create_server


@contextmanager
def run_server(app):
    """Run a server on a thread; yield its URL."""
    with bind_socket("127.0.0.1", 0) as listener:
        server = create_server(app, timeout_graceful_shutdown=1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def run_server_process(folder: Path, log: Path):
    """Run `triptych serve` as a process; yield its URL. Its stderr goes to `log`."""
    command = [sys.executable, "-m", "triptych", "serve", str(folder), "--port", "0"]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            line = process.stdout.readline() if process.stdout else ""
            url = re.search(r"http://[\d.]+:\d+", line)
            assert url, log.read_text()
            yield url.group()
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="session", autouse=True)
def own_uploads(tmp_path_factory):
    """Use a private temporary folder: other test processes may be uploading, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("uploads")))
        yield


@pytest.fixture(scope="session")
def review(tmp_path_factory):
    """The folder of an audit whose page links to a file elsewhere; other files must not be served."""
    folder = tmp_path_factory.mktemp("audited") / "review"
    folder.mkdir()
    (folder.parent / "shown").mkdir()
    (folder.parent / "shown" / "a b.txt").write_text("what is shown")
    (folder.parent / "shown" / "other.txt").write_text("the secret")
    data = {"media": [{"url": "../shown/a%20b.txt#t=1,2", "name": "a b.txt"}]}
    block = f"<script type=application/json>{json.dumps(data)}</script>"
    (folder / "review.html").write_text(f"<!doctype html><title>review</title><h1>the review</h1>{block}")
    (folder / ".hidden").write_text("hidden")
    (folder / "folds").mkdir()
    for name in ("folds/fold-0.jsonl", "notes.txt"):  # in the audit's folder, but not linked by the page
        (folder / name).write_text("the secret")
    (folder.parent / "secret.txt").write_text("the secret")
    (folder / "way-out.txt").symlink_to(folder.parent / "secret.txt")
    return folder


@pytest.fixture(scope="session")
def address(collection, review):
    """The URL of a server on the loopback interface."""
    report = review.parent / "report.html"
    report.write_text("<!doctype html><title>report</title><h1>the report</h1>")
    with run_server(create_app(collection, report=report, review=review)) as url:
        yield url


@pytest.fixture(scope="session")
def client(address):
    """An HTTP client of that server."""
    with httpx.Client(base_url=address, timeout=30) as http_client:
        yield http_client


@pytest.fixture(scope="session")
def ids(client):
    """The id of one item of each modality."""
    item_ids = {}
    for modality in ("image", "audio", "text"):
        answer = client.post("/v1/search", json={"parts": [{"text": "a bell rings"}], "modalities": [modality], "k": 1})
        item_ids[modality] = answer.json()["hits"][0]["id"]
    return item_ids


@pytest.fixture(scope="module")  # while it runs, no other event loop can run on this thread
def browser():
    """Chromium."""
    from playwright.sync_api import sync_playwright

    from tests.app.server.chromium import CHROMIUM, CHROMIUM_ARGS

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, address):
    """Open the page; on teardown, fail on console errors and on requests to other hosts."""
    from playwright.sync_api import expect

    contexts, problems = [], []

    def open_in_browser(query="", width=1280, height=860, scheme="light", wait=True):
        context = browser.new_context(
            base_url=address,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            permissions=["microphone"],
        )
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request", lambda r: problems.append(r.url) if not r.url.startswith((address, "blob:", "data:")) else None
        )
        page.goto(f"/{query}")
        if wait:
            expect(page.locator(".hit, .empty, .map-legend li").first).to_be_visible(timeout=120_000)
        return page

    yield open_in_browser
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def still_well(client):
    """After a test the server still answers, and no upload is left."""
    yield
    assert client.post(SEARCH, json=QUERY).status_code == 200
    assert not list(Path(tempfile.gettempdir()).glob("triptych-upload-*"))
