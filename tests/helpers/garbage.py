"""Garbage collections that look at new objects only: libraries and test cases are millions, and stay to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


class OnlyNewObjects:
    """What exists after collecting the tests, or after a test with a whole collection, is not looked at again.

    Later tests import further libraries, each large enough to make whole collections slow. Freezing waits for the end
    of a test, because hypothesis searches the objects after a collection of its own.
    """

    def __init__(self) -> None:
        self.whole = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    def pytest_collection_finish(self) -> None:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)  # almost all objects are freed without a collection
        gc.callbacks.append(self._note)

    def pytest_runtest_logfinish(self) -> None:
        if self.whole:
            gc.collect()
            gc.freeze()
            self.whole = False

    def _note(self, phase: str, collection: dict[str, int]) -> None:
        self.whole |= collection["generation"] == 2
