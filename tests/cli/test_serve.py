"""`mnemo serve`: its arguments, and mistakes that end with one line."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest
from helpers.tiny_runs import tiny_run

from mnemo.cli import main, serve
from mnemo.cli.serve import Args, checked, named_models, settings_of
from mnemo.errors import MnemoError
from mnemo.serving.settings import Settings


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line that a wrong command prints."""
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("mnemo: error: ")
    return error.splitlines()[-1]


def test_libraries_that_are_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name in ("starlette", "uvicorn") else object())
    expected = "the server needs starlette, uvicorn: in a checkout of Mnemo, pip install '.[serve]'"
    assert refused([], capsys) == f"mnemo: error: {expected}"


def test_without_a_run_the_shipped_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(named_models(())) == ["novels-small"]
    assert "using novels-small, which comes with mnemo" in capsys.readouterr().err


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run()
    monkeypatch.chdir(tmp_path)  # a folder without runs, also after `make demo`
    assert named_models((str(run), f"other={run}", "novels-small")) == {
        "run": run,
        "other": run,
        "novels-small": named_models(("novels-small",))["novels-small"],
    }
    with pytest.raises(MnemoError, match="two models are named 'run': name one by NAME="):
        named_models((str(run), str(run)))
    with pytest.raises(MnemoError, match="no run 'nosuch'"):
        named_models(("a=nosuch",))


def test_every_flag_reaches_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MNEMO_API_KEY", raising=False)
    assert settings_of(Args()) == Settings()
    changed = Args(
        host="0.0.0.0",
        port=1,
        api_key="k",
        allow_host=("a",),
        allow_origin=("http://a",),
        max_requests=2,
        max_tokens=3,
        max_body=4,
        max_upload=5,
        session_memory=6,
        max_sessions=7,
        timeout=8,
        shutdown_timeout=9,
    )
    before, after = (dataclasses.asdict(settings_of(args)) for args in (Args(), changed))
    assert {name for name in before if before[name] == after[name]} == {"max_choices", "upload_seconds"}


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNEMO_API_KEY", "from-outside")
    settings, _ = checked(Args(runs=(str(tiny_run()),), host="0.0.0.0"))
    assert settings.api_key == "from-outside"
    assert settings_of(Args(api_key="given")).api_key == "given"


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        message = refused([str(tiny_run()), "--port", port], capsys)
    assert message.endswith(f"127.0.0.1 port {port} is in use by another program: choose another with --port")


def test_a_transformers_model_without_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    plain = Path(__file__).parents[1] / "models" / "tinystories-656K"
    message = refused([str(plain), "--port", "0", "--sessions", str(tmp_path / "sessions")], capsys)
    assert "without memory: mnemo.hf.add_memory adds it" in message


def test_a_folder_of_sessions_that_cannot_be_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused([str(tiny_run()), "--port", "0", "--sessions", str(tmp_path / "file")], capsys)
