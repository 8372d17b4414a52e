"""Malicious requests are rejected: sizes, timeouts, malformed input, DNS rebinding, cross-origin, missing token."""

import json
import re

import httpx
import pytest

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import QUERY, SEARCH, check_error, send_raw
from triptych.app.server import create_app
from triptych.app.server.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("still_well")]


# Sizes
def test_large_content_length_is_rejected(client):
    assert "at most" in check_error(
        client.post(SEARCH, content=b" " * 1_000_001, headers={"Content-Type": "application/json"}), 413
    )


def test_large_chunked_body_is_rejected(client):
    def endless():
        for _ in range(2000):
            yield b" " * 1000

    check_error(client.post(SEARCH, content=endless(), headers={"Content-Type": "application/json"}), 413)


@pytest.mark.parametrize("length", ["-5", "1e9", "99999999999999999999999999", "0x10", "٣"])
def test_invalid_content_length_is_rejected(address, length):
    head, _ = send_raw(
        address, f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{}}".encode()
    )
    assert re.search(r" 4\d\d ", head)


def test_incomplete_body_times_out(collection):
    with run_server(create_app(collection, Limits(body_timeout=0.3))) as url:
        head, _ = send_raw(url, f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{{".encode())
        assert " 408 " in head


def test_header_size_limit(address):
    head, _ = send_raw(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
    assert not head or re.search(r" 4\d\d ", head)


def test_duplicate_content_length_is_rejected(address):
    head, _ = send_raw(
        address,
        f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 60\r\n\r\n"
        "{}\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    )
    assert re.search(r" 4\d\d ", head)


# Malformed requests
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"parts": []}', b'{"parts": [{}]}',
        b'{"parts": [{"text": ""}]}', b'{"parts": [{"text": "a", "item": "0123456789abcdef"}]}',
        b'{"parts": [{"text": "a", "weight": NaN}]}', b'{"parts": [{"text": "a", "weight": 1e400}]}',
        b'{"parts": [{"text": "a", "weight": 0}]}', b'{"parts": [{"text": "a"}], "k": 1000000000}',
        b'{"parts": [{"text": "a"}], "k": -1}', b'{"parts": [{"text": "a"}], "k": "5; DROP TABLE"}',
        b'{"parts": [{"text": "a"}], "modalities": ["smell"]}', b'{"parts": [{"text": "a"}], "__proto__": 1}',
        b'{"parts": [{"file": "f"}]}', b'{"parts": [{"item": "../../etc/passwd"}]}',
        b'{"parts": [{"text": "a"}], "filter": {"min_duration": -1}}',
        b'{"parts": [{"text": "a"}], "filter": {"since": "soon"}}',
        b"[" * 100_000, b'{"parts":' * 5000, b'{"parts": [{"text": "\\ud800"}]}', b'{"parts": [{"text": "\\u0000"}]}',
        b'{"parts": [' + b'{"text": "a"},' * 50 + b'{"text": "a"}]}',
        b'{"parts": [{"text": "' + b"a" * 20_000 + b'"}]}',
    ],
    ids=lambda value: value[:40].decode("latin-1"),
)  # fmt: skip
def test_malformed_requests_are_rejected(client, content):
    check_error(client.post(SEARCH, content=content, headers={"Content-Type": "application/json"}), 400, 404, 422)


@pytest.mark.parametrize(
    "folder", ["'; DROP TABLE items; --", "' OR ''='", "../../..", "/etc", "world/../../..", "\u0000", "a" * 4000]
)
def test_filter_values_cannot_inject_sql(client, folder):
    before = client.get("/healthz").json()["items"]
    answer = client.post(SEARCH, json={**QUERY, "filter": {"folder": folder}})
    assert answer.status_code == 422
    answer = client.post(SEARCH, json={**QUERY, "filter": {"columns": {folder: folder}}})
    assert answer.status_code in {200, 422}
    assert not answer.json().get("hits")
    assert client.get("/healthz").json()["items"] == before


@pytest.mark.parametrize(
    "content_type",
    [
        "text/xml",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "image/png",
    ],
)
def test_unsupported_content_types_are_rejected(client, content_type):
    check_error(client.post(SEARCH, content=b"parts=1", headers={"Content-Type": content_type}), 400, 415, 422)


def test_form_with_too_many_fields_is_rejected(client):
    check_error(client.post(SEARCH, data={f"a{i}": "b" for i in range(1000)}, files={"f": b"x"}), 400)


def test_form_without_named_file_is_rejected(client):
    form = {"query": json.dumps({"parts": [{"file": "missing"}]})}
    assert "no file 'missing'" in check_error(client.post(SEARCH, data=form, files={"f": b"x"}), 400)


@pytest.mark.parametrize(
    "byte_range",
    [
        "bytes=9-2",
        "bytes=99999999999-",
        "bytes=" + ",".join(f"{i}-{i}" for i in range(500)),
        "bytes=a-b",
        "lines=1-2",
        "bytes=-99999999999999999999",
    ],
)
def test_invalid_ranges(client, ids, byte_range):
    answer = client.get(f"/v1/items/{ids['audio']}/media", headers={"Range": byte_range})
    assert answer.status_code in {200, 206, 400, 416}
    assert len(answer.content) < 300_000


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND"])
def test_unsupported_methods_are_rejected(client, ids, method):
    assert client.request(method, f"/v1/items/{ids['image']}").status_code in {400, 404, 405}


def test_override_headers_are_ignored(client):
    headers = {
        "X-HTTP-Method-Override": "DELETE",
        "X-Original-URL": "/metrics",
        "X-Rewrite-URL": "/metrics",
        "X-Forwarded-Host": "evil.example",
    }
    answer = client.get("/healthz", headers=headers)
    assert answer.json()["status"] == "ok"
    assert "evil" not in answer.text


# Other sites, other hosts, missing token
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:8765",
        "127.0.0.2",
        "0.0.0.0",
        "",
        "localhost@evil.example",
        "[::2]",
        "127.0.0.1:8901, evil.example",
        "[::1]evil.example",
        "[::1",
        "127.0.0.1:x",
        "localhost:80:80",
    ],
)
def test_dns_rebinding_is_rejected(client, host):
    """The browser believes that it talks to another site."""
    check_error(client.get("/v1/collection", headers={"Host": host}), 421, 400, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1:1",
        "file://",
        "http://localhost.evil.example",
        "http://evil.example/://{host}",
        "http://evil.example@{host}",
        "ftp://{host}",
        "{host}",
    ],
)
def test_cross_origin_requests_are_rejected(client, ids, origin):
    origin = origin.format(host=client.base_url.netloc.decode())
    check_error(client.post(SEARCH, json=QUERY, headers={"Origin": origin}), 403)


def test_cross_origin_simple_form_is_rejected(client):
    headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    check_error(client.post(SEARCH, content=json.dumps(QUERY), headers=headers), 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_embedding_is_rejected(client, ids, site):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    check_error(client.get(f"/v1/items/{ids['image']}/thumbnail", headers=headers), 403)
    navigation = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=navigation).status_code == 200
    check_error(client.get(f"/v1/items/{ids['image']}/media", headers=navigation), 403)


def test_security_headers_on_every_response(client, ids):
    for path in ("/", "/v1/collection", f"/v1/items/{ids['image']}/media", "/nothing", "/v1/items/x"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers


@pytest.fixture(scope="module")
def token_client(collection):
    with run_server(create_app(collection, token="right-token")) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer right-toke",
        "Bearer right-tokenn",
        "Basic right-token",
        "Bearer right-token\u00e9",
        "right-token",
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/v1/collection", "/metrics", "/openapi.json", "/main.js", "/report", "/v1/items/0123456789abcdef"]
)
def test_requests_without_token_are_rejected(token_client, authorization, path):
    headers = {"Authorization": authorization.encode()} if authorization else {}
    answer = token_client.get(path, headers=headers)
    assert "token is needed" in check_error(answer, 401)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_browser_without_token_sees_token_form(token_client):
    page = token_client.get("/", headers={"Accept": "text/html,*/*"})
    assert page.status_code == 401
    assert 'name="token"' in page.text
    assert token_client.get("/style.css").status_code == 200


def test_token_is_accepted_by_header_or_cookie(token_client):
    assert token_client.get("/healthz").status_code == 200
    assert token_client.get("/v1/collection", headers={"Authorization": "Bearer right-token"}).status_code == 200
    check_error(
        token_client.get("/v1/collection?token=right-token"), 401
    )  # proxies log URLs; a token in the URL is accepted only on /
    check_error(token_client.get("/?token=wrong"), 401)
    navigation = token_client.get("/?token=right-token")
    assert navigation.status_code == 303
    assert navigation.headers["Location"] == "/"
    cookie = navigation.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token_client.get("/v1/collection", headers={"Cookie": cookie.split(";")[0]}).status_code == 200
    check_error(token_client.get("/v1/collection", headers={"Cookie": "triptych_token=wrong"}), 401)
    token_client.cookies.clear()
