"""Who may ask, how much may arrive and how long it may take: in front of every route.

On this machine alone (loopback) there is no token; then a page of another site, open in the same browser, must not
reach us: the Host must be a name of this machine (a stranger's name that resolves here is refused), and an Origin or
Sec-Fetch-Site of another site is refused. Elsewhere a token is demanded, as a Bearer header, or as a cookie that
opening /?token=… sets.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.app.server.errors import HTTPError, make_error_response
from triptych.app.server.limits import Limits

TOKEN_COOKIE = "triptych_token"  # noqa: S105
TOKEN_PAGE = Path(str(files("triptych.app"))) / "page" / "token.html"
LINGER_SECONDS, LINGER_BYTES = 1.0, 16_000_000
PUBLIC_PATHS = {"/healthz", "/style.css", "/icon.svg"}  # without the token: what watching machines and its own page ask
TOO_MANY_UPLOADS = "{count} requests with files are being worked on already; try again in {retry} s"
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
    """Refuses what may not be asked before any route sees it, and puts safe headers on every answer."""

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None = None) -> None:
        self.app, self.limits, self.token = app, limits, token
        self._active_uploads = 0  # requests with files that are being worked on

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
            response = self._authorise(scope, headers)
            if response:
                await response(scope, receive, send_with_headers)
                return
            with self._count_upload(headers):
                await self.app(scope, self._limit_body(headers, receive), send_with_headers)
        except HTTPError as error:
            if not has_started:
                await _drain(receive)
                response = make_error_response(error.status, error.message, "HTTPError", error.retry_after)
                response.headers["Connection"] = "close"  # what is left of the request is not read
                await response(scope, receive, send_with_headers)

    def _authorise(self, scope: Scope, headers: Headers) -> Response | None:
        """Nothing where the request may go on, an answer where a token is handed in; else a Refusal."""
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may have counted by the other one
            raise HTTPError(400, "both Content-Length and Transfer-Encoding; send one of them")
        self._check_origin(scope, headers)
        if self.token is None:
            host = headers.get("host", "")
            if parse_host_name(host) not in LOOPBACK_NAMES:
                raise HTTPError(
                    421, f"Host {host[:80]!r} is not this machine; open http://127.0.0.1 or http://localhost"
                )
            return None
        if scope["path"] in PUBLIC_PATHS:
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and token and self._is_valid_token(token):
            response = RedirectResponse("/", 303)
            response.set_cookie(TOKEN_COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return response
        if not self._is_valid_token(_bearer_token(headers) or _cookie_token(headers)):
            if scope["path"] == "/" and "text/html" in headers.get("accept", ""):
                return HTMLResponse(TOKEN_PAGE.read_text(encoding="utf-8"), 401)
            raise HTTPError(
                401,
                "a token is needed: send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in a browser; "
                "`triptych serve` has shown it when it started",
            )
        return None

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what another site's page asks for; following a link to the page itself is no such thing."""
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        is_page_navigation = (
            scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        )
        if site not in {"none", "same-origin"} and not is_page_navigation:
            raise HTTPError(403, f"asked by another site ({site}); open the page itself")
        allowed_origins = {
            f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")
        }  # https: by a proxy
        if origin is not None and origin.lower() not in allowed_origins:
            raise HTTPError(403, f"Origin {origin[:80]!r} is another site than {headers.get('host', '')[:80]!r}")

    def _is_valid_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), (self.token or "").encode())

    @contextmanager
    def _count_upload(self, headers: Headers) -> Iterator[None]:
        """Count a request with files while it lasts; a Refusal where there are too many already."""
        if not _is_multipart(headers):
            yield
            return
        if self._active_uploads >= self.limits.max_uploads:
            retry_after = self.limits.retry_after
            raise HTTPError(503, TOO_MANY_UPLOADS.format(count=self._active_uploads, retry=retry_after), retry_after)
        self._active_uploads += 1
        try:
            yield
        finally:
            self._active_uploads -= 1

    def _limit_body(self, headers: Headers, receive: Receive) -> Receive:
        """The request as it arrives, within size and time."""
        max_bytes = self.limits.max_upload_bytes if _is_multipart(headers) else self.limits.max_json_bytes
        content_length = headers.get("content-length", "0")
        if not content_length.isascii() or not content_length.isdigit():
            raise HTTPError(400, f"Content-Length {content_length[:20]!r} is no number")
        if int(content_length[:20]) > max_bytes:
            raise HTTPError(
                413, f"{int(content_length[:20]) / 1e6:,.1f} MB; at most {max_bytes / 1e6:g} MB in one request"
            )
        deadline, received_bytes = asyncio.get_running_loop().time() + self.limits.body_timeout, 0

        async def receive_within_limits() -> Message:
            nonlocal received_bytes
            if received_bytes < 0:
                return await receive()  # everything is here: only the end of the connection can come
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPError(408, f"not arrived within {self.limits.body_timeout:g} s") from None
            received_bytes += len(message.get("body", b""))
            if received_bytes > max_bytes:
                raise HTTPError(413, f"more than {max_bytes / 1e6:g} MB in one request")
            if not message.get("more_body"):
                received_bytes = -1
            return message

        return receive_within_limits


async def _drain(receive: Receive) -> None:
    """Take in a little of what is still coming: a connection closed at once is reset, and the answer lost with it."""
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
    """Whether a request may carry files."""
    return headers.get("content-type", "").lower().startswith("multipart/form-data")


def parse_host_name(host: str) -> str:
    """The name in a Host header, without the port; nothing where it is no name with at most a port after it."""
    match = HOST_PATTERN.fullmatch(host)
    return match["name"].lower() if match else ""


def _bearer_token(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _cookie_token(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(TOKEN_COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""
