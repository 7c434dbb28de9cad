"""Numbers about the server in the format of Prometheus, at `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemo.serving.served_model import ServedModel

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Metrics:
    """The registry of one server; requests are counted as they end, the rest is collected when it is fetched."""

    def __init__(self, models: list[ServedModel], store: Any, running: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Present(models, store, running))
        self.requests = Counter(
            "mnemo_requests", "Answered requests", ("method", "path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "mnemo_request_seconds",
            "Time from the start of a request to the end of its answer",
            ("path",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "mnemo_first_token_seconds",
            "Time from the start of a completion to its first text",
            ("model",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.cancelled = Counter(
            "mnemo_cancelled_requests", "Requests whose client disconnected before the end", registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Present(Collector):
    """Numbers that engines and the store know at any time."""

    def __init__(self, models: list[ServedModel], store: Any, running: Callable[[], int]) -> None:
        self.models, self.store, self.running = models, store, running

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("mnemo_running_requests", "Requests that compute or wait", self.running())
        if self.store is not None:
            yield GaugeMetricFamily("mnemo_sessions", "Sessions in memory and on disk", self.store.count())
        yield from self._of_engines()

    def _of_engines(self) -> Iterator[Metric]:
        families = {
            "rows": GaugeMetricFamily("mnemo_rows", "Most texts that are written at once", labels=["model"]),
            "writing": GaugeMetricFamily("mnemo_texts_writing", "Texts that are being written", labels=["model"]),
            "reading": GaugeMetricFamily("mnemo_texts_reading", "Texts that are being read", labels=["model"]),
            "queued": GaugeMetricFamily("mnemo_queued_jobs", "Jobs that wait for a row or a turn", labels=["model"]),
            "tokens_read": CounterMetricFamily("mnemo_tokens_read", "Tokens read", labels=["model"]),
            "tokens_written": CounterMetricFamily("mnemo_tokens_written", "Tokens written", labels=["model"]),
            "steps": CounterMetricFamily("mnemo_steps", "Steps of the engine", labels=["model"]),
            "passes": CounterMetricFamily("mnemo_passes", "Passes that read texts", labels=["model"]),
        }
        for model in self.models:
            stats = model.engine.stats()
            for name, family in families.items():
                family.add_metric([model.name], getattr(stats, name))
        yield from families.values()


class Measured:
    """Middleware that counts and times every request by its route, not by its path, which clients choose."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: list[Any]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.monotonic(), ["none"]

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            path = route_path(self.routes, scope)
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(method, path, status[0]).inc()
            self.metrics.seconds.labels(path).observe(time.monotonic() - begin)


def route_path(routes: list[Any], scope: Scope) -> str:
    """The pattern of the route that a request matches, such as `/v1/sessions/{id}`."""
    for route in routes:
        match, _ = route.matches(scope)
        if match is not Match.NONE:
            return getattr(route, "path", "other")
    return "other"


def metrics_routes() -> list[Route]:
    return [Route("/metrics", _metrics, methods=["GET"])]


async def _metrics(request: Request) -> Response:
    metrics: Metrics = request.app.state.server.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
