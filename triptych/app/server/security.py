"""Protection of the server: authentication, cross-origin checks, size and time limits, connection limits.

On a loopback address no token is required. To protect the server from pages of other sites in the same browser, the
Host header must be a loopback name (against DNS rebinding), and requests with the Origin or Sec-Fetch-Site of another
site are rejected. On other addresses a token is required, as a Bearer header or as the cookie that /?token=… sets.

A client that opens connections and sends incomplete requests must not prevent other clients from connecting. The
headers and the body of a request have deadlines. If there are too many connections, the connection that has waited
longest for its client is closed. If no connection is waiting, new connections are rejected, except for /healthz.
"""

import asyncio
import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from triptych.app.server.errors import HTTPError, make_busy_error
from triptych.app.server.limits import Limits

TOKEN_COOKIE = "triptych_token"  # noqa: S105
TOKEN_PAGE = Path(str(files("triptych.app"))) / "page" / "token.html"
LINGER_SECONDS, LINGER_BYTES = 1.0, 16_000_000  # limits on the rest of a rejected request that is read
HEALTH_PATH = "/healthz"
PUBLIC_PATHS = {HEALTH_PATH, "/style.css", "/icon.svg"}  # served without a token, for monitoring and the token page
FIRST_BYTES_SECONDS = 0.5  # time after which a new connection without data may be closed
STALLED_SECONDS = 10.0  # time without progress after which a client counts as not reading its response
BODY_GRACE_SECONDS = 5.0  # time after the body deadline in which the application can still send a 408 response
HOST_PATTERN = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-src 'self'; frame-ancestors 'self'"
)
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
}


class SecurityMiddleware:
    """Rejects unauthorised and oversized requests before any route, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None = None) -> None:
        self.app, self.limits, self.token = app, limits, token
        self._active_uploads = 0  # requests with files that are in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                response_headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    response_headers.setdefault(name, value)
            await send(message)

        try:
            if response := self._authorise(scope, headers):
                await response(scope, receive, send_with_headers)
                return
            with self._count_upload(headers):
                await self.app(scope, self._limit_body(headers, receive), send_with_headers)
        except HTTPError as error:
            if not has_started:
                await _drain(receive)
                response = error.to_response()
                response.headers["Connection"] = "close"  # the rest of the request is not read
                await response(scope, receive, send_with_headers)

    def _authorise(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None if the request is allowed, or a response about the token. Otherwise raise an HTTPError."""
        if "content-length" in headers and "transfer-encoding" in headers:  # request smuggling
            raise HTTPError(400, "the request has both Content-Length and Transfer-Encoding; send only one")
        self._check_origin(scope, headers)
        if self.token is None:
            host = headers.get("host", "")
            if parse_host_name(host) not in LOOPBACK_NAMES:
                hint = "open http://127.0.0.1 or http://localhost"
                raise HTTPError(421, f"Host {host[:80]!r} is not a loopback name; {hint}")
            return None
        if scope["path"] in PUBLIC_PATHS:
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and token and self._is_valid_token(token):
            response = RedirectResponse("/", 303)
            response.set_cookie(TOKEN_COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return response
        cookie = HTTPConnection(scope).cookies.get(TOKEN_COOKIE, "")
        if not self._is_valid_token(_bearer_token(headers) or cookie):
            if scope["path"] == "/" and "text/html" in headers.get("accept", ""):
                return HTMLResponse(TOKEN_PAGE.read_text(encoding="utf-8"), 401)
            raise HTTPError(
                401,
                "a token is needed: send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in a browser; "
                "`triptych serve` prints the token when it starts",
            )
        return None

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Reject requests from pages of other sites. Links from other sites to the search page are allowed."""
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        is_navigation = headers.get("sec-fetch-mode") == "navigate"
        is_link = is_navigation and scope["method"] == "GET" and scope["path"] == "/"
        if site not in {"none", "same-origin"} and not is_link:
            raise HTTPError(403, f"cross-site request ({site}); open the search page directly")
        host = headers.get("host", "")
        allowed_origins = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}  # https: behind a proxy
        if origin is not None and origin.lower() not in allowed_origins:
            raise HTTPError(403, f"Origin {origin[:80]!r} does not match Host {host[:80]!r}")

    def _is_valid_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), (self.token or "").encode())

    @contextmanager
    def _count_upload(self, headers: Headers) -> Iterator[None]:
        """Count a request with files while it is in progress. Raise an HTTPError if too many are in progress."""
        if not _is_multipart(headers):
            yield
            return
        if self._active_uploads >= self.limits.max_uploads:
            problem = f"{self._active_uploads} requests with files are in progress"
            raise make_busy_error(problem, self.limits.retry_after)
        self._active_uploads += 1
        try:
            yield
        finally:
            self._active_uploads -= 1

    def _limit_body(self, headers: Headers, receive: Receive) -> Receive:
        """Return a `receive` function that enforces the limits on body size and time."""
        max_bytes = self.limits.max_upload_bytes if _is_multipart(headers) else self.limits.max_json_bytes
        content_length = headers.get("content-length", "0")
        if not content_length.isascii() or not content_length.isdigit():
            raise HTTPError(400, f"Content-Length {content_length[:20]!r} is not a number")
        limit = f"at most {max_bytes / 1e6:g} MB are allowed"
        if (num_bytes := int(content_length[:20])) > max_bytes:
            raise HTTPError(413, f"the request has {num_bytes / 1e6:,.1f} MB; {limit}")
        deadline, received_bytes = asyncio.get_running_loop().time() + self.limits.body_timeout, 0

        async def receive_within_limits() -> Message:
            nonlocal received_bytes
            if received_bytes < 0:
                return await receive()  # the body is complete; only a disconnect can follow
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPError(408, f"the request body did not arrive within {self.limits.body_timeout:g} s") from None
            received_bytes += len(message.get("body", b""))
            if received_bytes > max_bytes:
                raise HTTPError(413, f"the request is too large; {limit}")
            if not message.get("more_body"):
                received_bytes = -1
            return message

        return receive_within_limits


async def _drain(receive: Receive) -> None:
    """Read part of the remaining request. If the connection were closed at once, the client could lose the response."""
    received_bytes = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while received_bytes < LINGER_BYTES:
                message = await receive()
                received_bytes += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def _is_multipart(headers: Headers) -> bool:
    """Return whether a request may contain files."""
    return headers.get("content-type", "").lower().startswith("multipart/form-data")


def parse_host_name(host: str) -> str:
    """Return the host name of a Host header without the port, or an empty string if the header is malformed."""
    match = HOST_PATTERN.fullmatch(host)
    return match["name"].lower() if match else ""


def _bearer_token(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


class Connection(H11Protocol):
    """A uvicorn connection with deadlines for requests. A connection that waits for its client can be closed.

    The application must store its limits in `app.state.limits`.
    """

    limits: Limits
    last_activity: float  # time of the last data in either direction, by the event loop's clock
    _awaited_part: Literal["head", "body"] | None = None  # the part of a request that is incomplete
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Set the deadline for the first request. If there are too many connections, close another connection."""
        super().connection_made(transport)
        app: Any = self.config.app
        self.limits, self.last_activity = app.state.limits, self.loop.time()
        self._set_deadline("head")
        self._evict_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive data of a request."""
        self.last_activity = self.loop.time()
        super().data_received(data)
        self._set_deadline(self._incomplete_part())

    def on_response_complete(self) -> None:
        """Set the deadline for the next request, part of which may have arrived already."""
        self.last_activity = self.loop.time()
        super().on_response_complete()
        self._set_deadline(self._incomplete_part())

    def resume_writing(self) -> None:
        """Record that the client reads its response."""
        self.last_activity = self.loop.time()
        super().resume_writing()

    def is_waiting_for_client(self) -> bool:
        """Return whether the connection waits for its client to send or read data."""
        idle_seconds = self.loop.time() - self.last_activity
        if self.flow.write_paused:
            return idle_seconds > STALLED_SECONDS
        if self.conn.their_state is h11.SEND_BODY:
            return not self.flow.read_paused
        has_data = bool(self.conn.trailing_data[0])
        return self.conn.their_state is h11.IDLE and (has_data or idle_seconds > FIRST_BYTES_SECONDS)

    def _incomplete_part(self) -> Literal["head", "body"] | None:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "head" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _set_deadline(self, part: Literal["head", "body"] | None) -> None:
        """Set the deadline for a part of a request. Further data of the same part does not extend the deadline."""
        if part == self._awaited_part:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited_part, self._deadline = part, None
        if part is not None:
            timeout = self.limits.header_timeout if part == "head" else self.limits.body_timeout + BODY_GRACE_SECONDS
            self._deadline = self.loop.call_later(timeout, self._on_deadline)

    def _on_deadline(self) -> None:
        if self.transport.is_closing():
            return
        if self._awaited_part == "head":
            message = f"the request headers did not arrive within {self.limits.header_timeout:g} s".encode()
            head = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
            self.transport.write(f"{head}content-length: {len(message)}\r\n\r\n".encode() + message)
            self.transport.close()
        else:
            self.transport.abort()

    def _evict_waiting(self) -> None:
        """If there are too many connections, close the connection that has waited longest for its client."""
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        same_address = [other for other in others if other._address == self._address]
        if len(same_address) >= self.limits.max_connections_per_address:
            others = same_address
        elif len(others) < self.limits.max_connections:
            return
        waiting = [other for other in others if other.is_waiting_for_client()]
        if waiting:
            longest_waiting = min(waiting, key=lambda other: other.last_activity)
            self.connections.discard(longest_waiting)
            longest_waiting.transport.abort()
        else:
            self.app: Any = _reject_when_full(self.app, len(others), self.limits.retry_after)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""


def _reject_when_full(app: ASGIApp, count: int, retry_after: int) -> ASGIApp:
    """Return an application that answers 503 to all requests except the health check."""

    async def rejecting_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == HEALTH_PATH:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            response = make_busy_error(f"{count} connections are open already", retry_after).to_response()
            response.headers["Connection"] = "close"
            await response(scope, receive, send)

    return rejecting_app
