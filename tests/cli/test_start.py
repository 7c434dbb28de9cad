from __future__ import annotations

import gc

import pytest

from mnemo import start
from mnemo.cli import train
from mnemo.start import started, starting


def test_the_collector_pauses_until_the_command_has_started() -> None:
    assert gc.isenabled()
    with starting():
        assert not gc.isenabled()
        with starting():
            assert not gc.isenabled()
        assert not gc.isenabled()
        started()
        assert gc.isenabled()
        started()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error() -> None:
    with pytest.raises(RuntimeError), starting():
        raise RuntimeError
    assert gc.isenabled() and not start._paused


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with starting():
            started()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_training_starts_without_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(train, "_main", lambda argv: seen.append(gc.isenabled()) or 0)
    assert train.main(["tiny-bytes"]) == 0
    assert seen == [False] and gc.isenabled()
