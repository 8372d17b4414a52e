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

from triptych.app.server.limits import Limits
from triptych.app.server.problems import Refusal, answer

COOKIE = "triptych_token"
TOKEN_PAGE = Path(str(files("triptych.app"))) / "page" / "token.html"
LINGER_SECONDS, LINGER_BYTES = 1.0, 16_000_000
OPEN = {"/healthz", "/style.css", "/icon.svg"}  # without the token: what watching machines and its own page ask
CROWDED = "{count} requests with files are being worked on already; try again in {retry} s"
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
NAMES = {"localhost", "127.0.0.1", "[::1]"}
CLOSED = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-src 'self'; frame-ancestors 'self'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Content-Security-Policy": CLOSED,
}


class Guard:
    """Refuses what may not be asked before any route sees it, and puts safe headers on every answer."""

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None = None) -> None:
        self.app, self.limits, self.token = app, limits, token
        self._forms = 0  # requests with files that are being worked on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        begun = False

        async def closed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)
            await send(message)

        try:
            response = self._welcome(scope, headers)
            if response:
                await response(scope, receive, closed)
                return
            with self._admitted(headers):
                await self.app(scope, self._bounded(headers, receive), closed)
        except Refusal as error:
            if not begun:
                await _drain(receive)
                response = answer(error.status, error.message, "Refusal", error.retry)
                response.headers["Connection"] = "close"  # what is left of the request is not read
                await response(scope, receive, closed)

    def _welcome(self, scope: Scope, headers: Headers) -> Response | None:
        """Nothing where the request may go on, an answer where a token is handed in; else a Refusal."""
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may have counted by the other one
            raise Refusal(400, "both Content-Length and Transfer-Encoding; send one of them")
        self._check_origin(scope, headers)
        if self.token is None:
            host = headers.get("host", "")
            if host_name(host) not in NAMES:
                raise Refusal(421, f"Host {host[:80]!r} is not this machine; open http://127.0.0.1 or http://localhost")
            return None
        if scope["path"] in OPEN:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and given and self._is_right(given):
            response = RedirectResponse("/", 303)
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return response
        if not self._is_right(_bearer(headers) or _cookie(headers)):
            if scope["path"] == "/" and "text/html" in headers.get("accept", ""):
                return HTMLResponse(TOKEN_PAGE.read_text(encoding="utf-8"), 401)
            raise Refusal(
                401,
                "a token is needed: send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in a browser; "
                "`triptych serve` has shown it when it started",
            )
        return None

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what another site's page asks for; following a link to the page itself is no such thing."""
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        is_visit = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in {"none", "same-origin"} and not is_visit:
            raise Refusal(403, f"asked by another site ({site}); open the page itself")
        own = {f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")}  # https: by a proxy
        if origin is not None and origin.lower() not in own:
            raise Refusal(403, f"Origin {origin[:80]!r} is another site than {headers.get('host', '')[:80]!r}")

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())

    @contextmanager
    def _admitted(self, headers: Headers) -> Iterator[None]:
        """Count a request with files while it lasts; a Refusal where there are too many already."""
        if not _is_form(headers):
            yield
            return
        if self._forms >= self.limits.uploads:
            retry = self.limits.retry_seconds
            raise Refusal(503, CROWDED.format(count=self._forms, retry=retry), retry)
        self._forms += 1
        try:
            yield
        finally:
            self._forms -= 1

    def _bounded(self, headers: Headers, receive: Receive) -> Receive:
        """The request as it arrives, within size and time."""
        most = self.limits.upload_bytes if _is_form(headers) else self.limits.json_bytes
        said = headers.get("content-length", "0")
        if not said.isascii() or not said.isdigit():
            raise Refusal(400, f"Content-Length {said[:20]!r} is no number")
        if int(said[:20]) > most:
            raise Refusal(413, f"{int(said[:20]) / 1e6:,.1f} MB; at most {most / 1e6:g} MB in one request")
        deadline, taken = asyncio.get_running_loop().time() + self.limits.arrival_seconds, 0

        async def bounded() -> Message:
            nonlocal taken
            if taken < 0:
                return await receive()  # everything is here: only the end of the connection can come
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Refusal(408, f"not arrived within {self.limits.arrival_seconds:g} s") from None
            taken += len(message.get("body", b""))
            if taken > most:
                raise Refusal(413, f"more than {most / 1e6:g} MB in one request")
            if not message.get("more_body"):
                taken = -1
            return message

        return bounded


async def _drain(receive: Receive) -> None:
    """Take in a little of what is still coming: a connection closed at once is reset, and the answer lost with it."""
    taken = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while taken < LINGER_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def _is_form(headers: Headers) -> bool:
    """Whether a request may carry files."""
    return headers.get("content-type", "").lower().startswith("multipart/form-data")


def host_name(host: str) -> str:
    """The name in a Host header, without the port; nothing where it is no name with at most a port after it."""
    parts = HOST.fullmatch(host)
    return parts["name"].lower() if parts else ""


def _bearer(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
