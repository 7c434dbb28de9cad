"""Everything that routes share: models, sessions, limits, metrics, and the number of requests that are running."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from mnemo.errors import unknown
from mnemo.serving.errors import ApiError, not_found, too_busy
from mnemo.serving.metrics import Metrics
from mnemo.serving.served_model import ServedModel
from mnemo.serving.settings import Settings

SLOWEST_RETRY = 60


class Server:
    def __init__(self, models: list[ServedModel], store: Any, settings: Settings) -> None:
        self.models = {model.name: model for model in models}
        self.store, self.settings = store, settings
        self.metrics = Metrics(models, store, lambda: self.running)
        self.running = 0
        """Requests that compute or wait for their turn"""
        self.stopping = False
        self._usual_seconds = 1.0

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            error = not_found(str(unknown("model", name, self.models)), "model", "model_not_found")
            raise error
        return self.models[name]

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request that computes; refuse it if there are too many or the server is stopping."""
        if self.stopping:
            raise ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")
        if self.running >= self.settings.max_requests:
            retry_after = min(SLOWEST_RETRY, math.ceil(self._usual_seconds))
            raise too_busy(f"{self.running:,} requests are running or waiting: try again later", retry_after)
        self.running += 1
        begin = time.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._usual_seconds += 0.1 * (time.monotonic() - begin - self._usual_seconds)


def server_of(request: Request) -> Server:
    return request.app.state.server
