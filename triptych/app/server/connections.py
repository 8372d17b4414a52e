"""Connections: deadlines for what a client sends, a limit for each address, and room for whoever comes next.

Somebody who opens connections and sends half a request on each must not lock others out. So a request's head and body
have to arrive in time; and where there are too many connections, the one that has waited longest for its client is
closed for a newcomer. Only where every connection is being answered is a newcomer turned away, except to /healthz.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from triptych.app.server.errors import make_error_response
from triptych.app.server.limits import Limits

HEALTH_PATH = "/healthz"
FIRST_BYTES_SECONDS = 0.5  # seconds in which a new connection's first bytes are read, however busy the server is
STALLED_SECONDS = 10.0  # seconds without progress after which a client no longer counts as reading its answer
BODY_GRACE_SECONDS = 5.0  # seconds beyond the deadline for a body, in which the application refuses it with a text
HEADER_TIMED_OUT = "the head of the request did not arrive within {seconds:g} s"
TOO_MANY_CONNECTIONS = "{count} connections are open already; try again in {retry} s"


class Connection(H11Protocol):
    """A connection of uvicorn's, with deadlines for requests, closed where it waits for its client and room is needed.

    The application must have its limits as `state.limits`.
    """

    limits: Limits
    last_activity: float  # when anything last came or went, by the event loop's clock
    _awaited_part: Literal["head", "body"] | None = None  # what of a request has begun to arrive, and is not here yet
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock for the first request, and make room for it."""
        super().connection_made(transport)
        app: Any = self.config.app
        self.limits, self.last_activity = app.state.limits, self.loop.time()
        self._set_deadline("head")
        self._evict_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a piece of a request."""
        self.last_activity = self.loop.time()
        super().data_received(data)
        self._set_deadline(self._incomplete_part())

    def on_response_complete(self) -> None:
        """Go on to the next request, of which something may be here already."""
        self.last_activity = self.loop.time()
        super().on_response_complete()
        self._set_deadline(self._incomplete_part())

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self.last_activity = self.loop.time()
        super().resume_writing()

    def is_waiting_for_client(self) -> bool:
        """Whether the next move is the client's, and has been for a while."""
        idle_seconds = self.loop.time() - self.last_activity
        if self.flow.write_paused:
            return idle_seconds > STALLED_SECONDS
        if self.conn.their_state is h11.SEND_BODY:
            return not self.flow.read_paused
        return self.conn.their_state is h11.IDLE and (
            bool(self.conn.trailing_data[0]) or idle_seconds > FIRST_BYTES_SECONDS
        )

    def _incomplete_part(self) -> Literal["head", "body"] | None:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "head" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _set_deadline(self, part: Literal["head", "body"] | None) -> None:
        """Set the deadline for the rest of a request; while the same is awaited it stays, however slowly it comes."""
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
            message = HEADER_TIMED_OUT.format(seconds=self.limits.header_timeout).encode()
            head = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
            self.transport.write(f"{head}content-length: {len(message)}\r\n\r\n".encode() + message)
            self.transport.close()
        else:
            self.transport.abort()

    def _evict_waiting(self) -> None:
        """Close the connection that has waited longest for its client, where there are too many."""
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        same_address = [other for other in others if other._address == self._address]
        if len(same_address) >= self.limits.max_connections_per_address:
            others = same_address
        elif len(others) < self.limits.max_connections:
            return
        longest_waiting = min(
            (other for other in others if other.is_waiting_for_client()),
            key=lambda other: other.last_activity,
            default=None,
        )
        if longest_waiting is not None:
            self.connections.discard(longest_waiting)
            longest_waiting.transport.abort()
        else:
            self.app: Any = _reject_when_full(self.app, len(others), self.limits.retry_after)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""


def _reject_when_full(app: ASGIApp, count: int, retry_after: int) -> ASGIApp:
    """An application that answers only whether the server is well, and that it is full."""

    async def rejecting_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == HEALTH_PATH:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            response = make_error_response(
                503, TOO_MANY_CONNECTIONS.format(count=count, retry=retry_after), "HTTPError", retry_after
            )
            response.headers["Connection"] = "close"
            await response(scope, receive, send)

    return rejecting_app
