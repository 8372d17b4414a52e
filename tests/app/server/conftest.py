"""One small collection for all tests of the server, and servers that really listen."""

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
    """The address of a server that runs on a thread of its own while the block lasts."""
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
    """The address of `triptych serve` as a process of its own while the block lasts; its stderr goes to `log`."""
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
    """Another test process may be uploading as well: what is left of uploads is looked for in a folder of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("uploads")))
        yield


@pytest.fixture(scope="session")
def review(tmp_path_factory):
    """A folder as an audit leaves it, which shows a file that lies elsewhere; with a secret beside both."""
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
    for name in ("folds/fold-0.jsonl", "notes.txt"):  # of the audit's folder, and of no concern to the page
        (folder / name).write_text("the secret")
    (folder.parent / "secret.txt").write_text("the secret")
    (folder / "way-out.txt").symlink_to(folder.parent / "secret.txt")
    return folder


@pytest.fixture(scope="session")
def address(collection, review):
    """A server on this machine alone."""
    report = review.parent / "report.html"
    report.write_text("<!doctype html><title>report</title><h1>the report</h1>")
    with run_server(create_app(collection, report=report, review=review)) as where:
        yield where


@pytest.fixture(scope="session")
def client(address):
    """Asks that server."""
    with httpx.Client(base_url=address, timeout=30) as made:
        yield made


@pytest.fixture(scope="session")
def ids(client):
    """An id of each modality."""
    found = {}
    for modality in ("image", "audio", "text"):
        answer = client.post("/v1/search", json={"parts": [{"text": "a bell rings"}], "modalities": [modality], "k": 1})
        found[modality] = answer.json()["hits"][0]["id"]
    return found


@pytest.fixture(scope="module")  # while it runs, no other event loop can run on this thread
def browser():
    """A real Chromium."""
    from playwright.sync_api import sync_playwright

    from tests.app.server.chromium import CHROMIUM, CHROMIUM_ARGS

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield made
        made.close()


@pytest.fixture
def open_page(browser, address):
    """Opens the page; at the end nothing may have gone wrong in it, and nothing may have been asked of other places."""
    from playwright.sync_api import expect

    contexts, wrong = [], []

    def opened(query="", width=1280, height=860, scheme="light", wait=True):
        context = browser.new_context(
            base_url=address,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            permissions=["microphone"],
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith((address, "blob:", "data:")) else None)
        page.goto(f"/{query}")
        if wait:
            expect(page.locator(".hit, .empty, .map-legend li").first).to_be_visible(timeout=120_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def still_well(client):
    """After an attack the server answers as before, and has kept nothing."""
    yield
    assert client.post(SEARCH, json=QUERY).status_code == 200
    assert not list(Path(tempfile.gettempdir()).glob("triptych-upload-*"))
