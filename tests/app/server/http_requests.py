"""Helpers that send requests, well-formed or not, and check error responses."""

import json
import re
import socket

import httpx
import pytest

SEARCH = "/v1/search"
QUERY_TEXT = "a bell rings"
QUERY = {"parts": [{"text": QUERY_TEXT}], "k": 3}


def check_error(answer: httpx.Response, *statuses: int) -> str:
    """Check the status of an error response and that it leaks no internals; return its message."""
    assert answer.status_code in statuses, f"{answer.status_code}: {answer.text[:300]}"
    message = answer.json()["error"]["message"]
    assert message
    assert "Traceback" not in message
    assert "triptych-upload-" not in message
    return message


def search(client, *parts, **settings):
    answer = client.post(SEARCH, json={"parts": list(parts), **settings})
    assert answer.status_code == 200, answer.text
    return answer.json()


def upload(client, name: str, data: bytes, content_type: str = "application/octet-stream") -> httpx.Response:
    query = json.dumps({"parts": [{"file": "f"}], "k": 3})
    return client.post(SEARCH, data={"query": query}, files={"f": (name, data, content_type)})


def send_raw(address: str, data: bytes) -> tuple[str, bytes]:
    """Send raw bytes; return the status line and the body of the response."""
    name, port = address.removeprefix("http://").split(":")
    with socket.create_connection((name, int(port)), timeout=10) as connection:
        received = b""
        try:
            connection.sendall(data)
            while not is_complete(received) and (chunk := connection.recv(65_536)):
                received += chunk
        except ConnectionResetError:
            pass
        except TimeoutError:
            pytest.fail(f"no answer within 10 s; so far {received[:200]!r}")
    head, _, body = received.partition(b"\r\n\r\n")
    return head.decode("latin-1").split("\r\n")[0], body


def is_complete(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end and length and len(body) >= int(length.group(1)))
