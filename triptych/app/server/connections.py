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

from triptych.app.server.limits import Limits
from triptych.app.server.problems import answer

HEALTH = "/healthz"
UNREAD = 0.5  # seconds in which a new connection's first bytes are read, however busy the server is
STALLED = 10.0  # seconds without progress after which a client no longer counts as reading its answer
GRACE = 5.0  # seconds beyond the deadline for a body, in which the application refuses it with a text
LATE = "the head of the request did not arrive within {seconds:g} s"
FULL = "{count} connections are open already; try again in {retry} s"


class Connection(H11Protocol):
    """A connection of uvicorn's, with deadlines for requests, closed where it waits for its client and room is needed.

    The application must have its limits as `state.limits`.
    """

    limits: Limits
    moved: float  # when anything last came or went, by the event loop's clock
    _awaited: Literal["head", "body"] | None = None  # what of a request has begun to arrive, and is not here yet
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock for the first request, and make room for it."""
        super().connection_made(transport)
        app: Any = self.config.app
        self.limits, self.moved = app.state.limits, self.loop.time()
        self._await("head")
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a piece of a request."""
        self.moved = self.loop.time()
        super().data_received(data)
        self._await(self._missing())

    def on_response_complete(self) -> None:
        """Go on to the next request, of which something may be here already."""
        self.moved = self.loop.time()
        super().on_response_complete()
        self._await(self._missing())

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self.moved = self.loop.time()
        super().resume_writing()

    def is_waiting(self) -> bool:
        """Whether the next move is the client's, and has been for a while."""
        since = self.loop.time() - self.moved
        if self.flow.write_paused:
            return since > STALLED
        if self.conn.their_state is h11.SEND_BODY:
            return not self.flow.read_paused
        return self.conn.their_state is h11.IDLE and (bool(self.conn.trailing_data[0]) or since > UNREAD)

    def _missing(self) -> Literal["head", "body"] | None:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "head" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _await(self, what: Literal["head", "body"] | None) -> None:
        """Set the deadline for the rest of a request; while the same is awaited it stays, however slowly it comes."""
        if what == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited, self._deadline = what, None
        if what is not None:
            seconds = self.limits.head_seconds if what == "head" else self.limits.arrival_seconds + GRACE
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self._awaited == "head":
            message = LATE.format(seconds=self.limits.head_seconds).encode()
            head = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
            self.transport.write(f"{head}content-length: {len(message)}\r\n\r\n".encode() + message)
            self.transport.close()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its client, where there are too many."""
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        same = [other for other in others if other._address == self._address]
        if len(same) >= self.limits.address_connections:
            others = same
        elif len(others) < self.limits.connections:
            return
        longest = min((other for other in others if other.is_waiting()), key=lambda other: other.moved, default=None)
        if longest is not None:
            self.connections.discard(longest)
            longest.transport.abort()
        else:
            self.app: Any = _turn_away(self.app, len(others), self.limits.retry_seconds)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""


def _turn_away(app: ASGIApp, count: int, retry: int) -> ASGIApp:
    """An application that answers only whether the server is well, and that it is full."""

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == HEALTH:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            response = answer(503, FULL.format(count=count, retry=retry), "Refusal", retry)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)

    return full
