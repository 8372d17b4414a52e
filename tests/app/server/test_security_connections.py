"""Incomplete requests and too many connections: they time out or are evicted, and others are answered."""

import asyncio
import re
import socket
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest

from tests.app.server.conftest import run_server, run_server_process
from tests.app.server.http_requests import QUERY, SEARCH, send_raw
from triptych.app.server import create_app
from triptych.app.server.limits import Limits

pytestmark = pytest.mark.slow

HALF_HEAD = b"GET /v1/collection HTTP/1.1\r\nHost: local"
HALF_BODY = (
    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 300\r\n\r\n{"
)
UNREAD_BODY = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300\r\n\r\n{"
NUM_CONNECTIONS = 540  # more than max_connections


def open_connection(stack: ExitStack, address: str, data: bytes) -> socket.socket:
    """Open a connection and send these bytes; the stack closes it."""
    name, port = address.removeprefix("http://").split(":")
    connection = stack.enter_context(socket.create_connection((name, int(port)), timeout=20))
    connection.sendall(data)
    return connection


@pytest.fixture(scope="module")
def process(collection, tmp_path_factory):
    """A server process: its URL, and the file of its stderr."""
    log = tmp_path_factory.mktemp("log") / "errors.txt"
    with run_server_process(collection.folder, log) as address:
        yield address, log


@pytest.mark.parametrize(
    "incomplete", [HALF_HEAD, HALF_BODY, UNREAD_BODY, b""], ids=["head", "body", "unread", "nothing"]
)
def test_incomplete_requests_do_not_block_others(process, incomplete):
    address, _ = process
    with ExitStack() as stack:
        for _ in range(NUM_CONNECTIONS):
            open_connection(stack, address, incomplete)
        for _ in range(5):
            assert httpx.get(f"{address}/healthz", timeout=30).status_code == 200
            assert search_with_retry(address).status_code == 200


def search_with_retry(address: str) -> httpx.Response:
    """Search, and retry once if the server is reading many new connections."""
    response = httpx.post(f"{address}{SEARCH}", json=QUERY, timeout=30)
    if response.status_code == 503:
        time.sleep(float(response.headers["Retry-After"]))
        response = httpx.post(f"{address}{SEARCH}", json=QUERY, timeout=30)
    return response


def test_disconnects_are_not_logged_as_errors(process):
    address, log = process
    form = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    heads = [HALF_HEAD, HALF_BODY, UNREAD_BODY, form + b"Content-Length: 300\r\n\r\n--x\r\n"]
    heads += [HALF_BODY.replace(b"search", b"embeddings"), HALF_BODY.replace(b"search", b"explain")]
    heads += [b"GET /main.js HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    for head in heads:
        with ExitStack() as stack:
            open_connection(stack, address, head)
        with ExitStack() as stack:  # with a connection reset
            connection = open_connection(stack, address, head)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert httpx.post(f"{address}{SEARCH}", json=QUERY, timeout=30).status_code == 200
    assert "Traceback" not in log.read_text()


def send_slowly(connection: socket.socket, pause: float) -> bytes:
    """Send single bytes until the server closes the connection; return what it sent."""
    connection.settimeout(pause)
    received = b""
    for _ in range(200):
        try:
            chunk = connection.recv(4096)
        except TimeoutError:
            try:
                connection.sendall(b"a")
            except OSError:
                return received
        except ConnectionResetError:
            return received
        else:
            if not chunk:
                return received
            received += chunk
    pytest.fail("the connection is still open")


def test_slow_requests_time_out(collection, monkeypatch):
    monkeypatch.setattr("triptych.app.server.security.BODY_GRACE_SECONDS", 0.1)
    limits = Limits(header_timeout=0.5, body_timeout=0.5)
    with run_server(create_app(collection, limits)) as url, ExitStack() as stack:
        assert b" 408 " in send_slowly(open_connection(stack, url, HALF_HEAD), 0.05)
        assert b" 408 " in send_slowly(open_connection(stack, url, b""), 0.05)
        complete = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answers = send_slowly(open_connection(stack, url, complete + HALF_HEAD), 0.05)
        assert b" 200 " in answers
        assert b" 408 " in answers
        assert b" 408 " in send_slowly(open_connection(stack, url, HALF_BODY), 0.05)
        assert b" 200 " in send_slowly(open_connection(stack, url, UNREAD_BODY), 0.05)  # answered, then closed


class BlockingApp:
    """An application that answers /wait only after `release`, and /large with 20 MB."""

    def __init__(self, limits: Limits) -> None:
        self.state = SimpleNamespace(limits=limits)
        self.release, self.num_waiting = threading.Event(), 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/wait":
            self.num_waiting += 1
            while not self.release.is_set():
                await asyncio.sleep(0.01)
        body = b"ok" if scope["path"] != "/large" else bytes(20_000_000)
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def test_new_connections_get_503_while_all_are_busy():
    app = BlockingApp(Limits(max_connections=8, max_connections_per_address=4))
    with run_server(app) as url, ExitStack() as stack:
        busy = [open_connection(stack, url, b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(4)]
        while app.num_waiting < 4:
            time.sleep(0.01)
        full = httpx.get(f"{url}/other", timeout=30)
        assert (full.status_code, full.headers["Retry-After"]) == (503, "2")
        assert re.match(r"\d+ connections are open already", full.json()["error"]["message"])
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
        app.release.set()
        for connection in busy:
            assert b" 200 " in connection.recv(4096)


def test_clients_that_stop_reading_are_evicted(monkeypatch):
    monkeypatch.setattr("triptych.app.server.security.STALLED_SECONDS", 0.2)
    with run_server(BlockingApp(Limits(max_connections_per_address=4))) as url, ExitStack() as stack:
        for _ in range(4):
            connection = open_connection(stack, url, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in connection.recv(100)
        time.sleep(0.5)
        for _ in range(3):
            assert httpx.get(f"{url}/other", timeout=30).text == "ok"


def test_health_reports_busy_collection(collection, monkeypatch):
    monkeypatch.setattr("triptych.app.server.pages.HEALTH_TIMEOUT", 0.2)
    release, app = threading.Event(), create_app(collection)
    with run_server(app) as url:
        app.state.app_state.collection_executor.pool.submit(release.wait, 30)
        try:
            health = httpx.get(f"{url}/healthz", timeout=20).json()
            assert (health["status"], health["items"]) == ("busy", len(collection))
        finally:
            release.set()
        assert httpx.get(f"{url}/healthz", timeout=20).json()["status"] == "ok"


def test_content_length_with_transfer_encoding_is_rejected(address):
    body = b'{"parts": [{"text": "a"}]}'
    head = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert " 400 " in send_raw(address, head + both)[0]
