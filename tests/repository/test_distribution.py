"""The wheel and the source distribution, built from the tree: their files and the page for a package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from mnemo import __version__

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("mnemo", "tests", "tools", "examples", "docs", "results", ".ci", ".github")
"""Folders whose files the tests use."""
LINK = re.compile(r'\[[^\]]*\]\((?!https?:)[^)]*\)|(?:src|href)="(?!https?:)')
"""Relative links and pictures, in Markdown or HTML."""


FAST = """
import functools, gzip, sys
gzip.GzipFile = functools.partial(gzip.GzipFile, compresslevel=1)
from hatchling.cli import hatchling
sys.exit(hatchling())
"""
"""`python -m hatchling`, which spends less time on compressing"""


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-c", FAST, "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def source_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_string(wheel.read(f"mnemo_lm-{__version__}.dist-info/METADATA").decode())


def files_of(folder: str) -> set[str]:
    """Files of a folder of the tree, without bytecode."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """Templates, page assets and trained models too, which a list of patterns could leave out."""
    names = {name for name in wheel.namelist() if not name.startswith(f"mnemo_lm-{__version__}.dist-info/")}
    assert names == files_of("mnemo")
    needed = {"report/templates/page.html.j2", "serving/studio/assets/index.html", "py.typed"}
    needed |= {"serving/studio/assets/vendor/preact.mjs", "shipped/novels-small/weights.safetensors"}
    assert {f"mnemo/{name}" for name in needed} <= names


def test_the_wheel_has_all_licence_texts(wheel: zipfile.ZipFile) -> None:
    licences = {Path(name).name for name in wheel.namelist() if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "htm.txt", "preact.txt", "uplot.txt"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_source_distribution_has_what_its_tests_need(folder: str, source_files: set[str]) -> None:
    assert files_of(folder) - source_files == set()


def test_the_source_distribution_has_the_files_of_the_root(source_files: set[str]) -> None:
    roots = {"Makefile", "constraints.txt", "pyproject.toml", "LICENSE", "CITATION.cff", ".pre-commit-config.yaml"}
    roots |= {path.name for path in ROOT.glob("*.md")}
    assert roots <= source_files
    assert {name.partition("/")[0] for name in source_files if "/" in name} == set(FOLDERS)


def test_the_page_of_an_index_has_no_links_that_lead_nowhere(metadata: Message) -> None:
    """An index shows the README alone: relative links and pictures would be broken."""
    text = metadata.get_payload()
    assert isinstance(text, str) and text.startswith("# Mnemo\n") and len(text) > 2000
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")) != []
    assert LINK.findall(text) == []


def test_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("mnemo-lm", __version__)
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
