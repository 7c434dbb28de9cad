"""The examples of docs/serving.md and docs/sessions.md work as they are shown."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.doc_pages import ROOT, run_block
from helpers.http_server import RunningServer, running, serial
from helpers.tiny_runs import tiny_run

from mnemo.serving.store import SessionStore
from mnemo.session.text_run import with_tokenizer
from mnemo.storage.run_folder import open_run

PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("serving.md", "sessions.md"))
ADDRESS = "http://127.0.0.1:8000"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = serial(with_tokenizer(open_run(tiny_run(), device="cpu")), "novels-small")
    with running([model], SessionStore(tmp_path_factory.mktemp("store"), [model.sessions])) as server:
        yield server


@pytest.mark.parametrize("number", range(len(fenced("py"))))
def test_python(server: RunningServer, number: int) -> None:
    run_block(readable(fenced("py")[number].replace(ADDRESS, server.url)))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", range(len(fenced("sh"))))
def test_commands(server: RunningServer, number: int, tmp_path: Path) -> None:
    script = "set -e -o pipefail\n" + readable(fenced("sh")[number].replace(ADDRESS, server.url))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and '"error"' not in done.stdout, done
    assert '"text":' in done.stdout


def readable(example: str) -> str:
    """The example with letters that the tiny model has in its vocabulary."""
    return (
        example.replace("It was late in the evening.", "the cat sat")
        .replace("It was a dark", "the dog saw")
        .replace("Once", "a tree")
        .replace(" He said", " and the rain")
    )


def test_there_are_examples_of_both_kinds() -> None:
    assert len(fenced("py")) == len(fenced("sh")) == 3
