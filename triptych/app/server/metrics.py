"""What the server has done, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one server; each has a registry of its own, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "triptych_requests_total", "Requests, by route and status", ["route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "triptych_request_seconds", "Seconds to answer, by route", ["route"], registry=self.registry
        )
        self.batch_size = Histogram(
            "triptych_batch_size",
            "Sources that went through the encoder together",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.queue_length = Gauge("triptych_queue_length", "Requests at the encoder", registry=self.registry)
        self.items = Gauge("triptych_items", "Items in the collection", registry=self.registry)

    def render(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Counts every answer, by the route it came from: never by the address, which anybody can make up."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_record)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(time.perf_counter() - started)
