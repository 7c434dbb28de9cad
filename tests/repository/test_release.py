"""Files that a release consists of agree with each other: versions, dates, Pythons, citation, licences, CI."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.constraints import constraints
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from mnemo import __version__
from tools import licences

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def load_yaml(path: str) -> Any:
    return yaml.safe_load(text(path))


def releases() -> dict[str, str]:
    """Dates of the releases in the changelog, newest first."""
    return dict(re.findall(r"^## \[([\d.]+)\] - (\S+)$", text("CHANGELOG.md"), re.MULTILINE))


def test_changelog_has_all_releases_newest_first() -> None:
    assert list(releases()) == ["0.2.0", "0.1.0"] and list(releases())[0] == __version__


def test_breaking_changes_come_first() -> None:
    order = ["Breaking changes", "Added", "Changed", "Fixed"]
    sections = dict(re.findall(r"^## \[(.+?)\](.*?)(?=^## \[|\Z)", text("CHANGELOG.md"), re.MULTILINE | re.DOTALL))
    found = {name: re.findall(r"^### (.+)$", section, re.MULTILINE) for name, section in sections.items()}
    assert found[__version__] == order
    unreleased = found.get("Unreleased", [])
    assert unreleased == [title for title in order if title in unreleased]


def test_citation_is_of_this_release() -> None:
    citation = load_yaml("CITATION.cff")
    assert citation["version"] == __version__ and str(citation["date-released"]) == releases()[__version__]
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["license"] in PROJECT["license"]
    assert all(citation[field] for field in ("message", "title", "authors"))  # required by the schema


def test_citation_names_the_four_papers() -> None:
    papers = load_yaml("CITATION.cff")["references"]
    assert [(paper["authors"][0]["family-names"], paper["year"]) for paper in papers] == [
        ("Dai", 2019),
        ("Rae", 2020),
        ("Bulatov", 2022),
        ("Ji", 2022),
    ]
    for paper in papers:
        assert paper["type"] == "conference-paper" and paper["title"] and paper["url"].startswith("https://")
        assert all({"family-names", "given-names"} == author.keys() for author in paper["authors"])


def test_supported_pythons_are_the_same_everywhere() -> None:
    every = [f"3.{minor}" for minor in range(8, 20)]
    assert [version for version in every if version in SpecifierSet(PROJECT["requires-python"])] == PYTHONS
    prefix = "Programming Language :: Python :: 3."
    assert [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if line.startswith(prefix)] == PYTHONS
    assert load_yaml(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    makefile = text("Makefile")
    assert "CANDIDATES = python3 " + " ".join(f"python{version}" for version in reversed(PYTHONS)) in makefile
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in makefile and "3.11, 3.12 or 3.13" in makefile


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_name_the_newest_python(page: str) -> None:
    assert PYTHONS[-1] in text(page) and "3.11 or 3.12" not in text(page)


def test_public_ci_runs_the_same_script() -> None:
    steps = load_yaml(".github/workflows/ci.yml")["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100, "the script must be executable"


def test_actions_are_pinned_to_commits() -> None:
    uses = re.findall(r"uses: (.+)", text(".github/workflows/ci.yml"))
    assert uses and [line for line in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_hooks_run_offline() -> None:
    config = load_yaml(".pre-commit-config.yaml")
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} <= {"system", "pygrep", "fail"}
    assert {"ruff-check", "ruff-format"} <= {hook["id"] for hook in hooks}


def test_the_newest_version_gets_security_fixes() -> None:
    minor = __version__.rpartition(".")[0]
    assert f"| {minor} | yes |" in text("SECURITY.md")


def listed() -> dict[str, str]:
    """Licences by package, from the page."""
    return dict(re.findall(r"^\| `([\w.-]+)` \| (.+?) \|", text("docs/licences.md"), re.MULTILINE))


def test_licences_of_all_direct_dependencies_are_listed() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| .+ \| ([\w, ]+) \|$", text("docs/licences.md"), re.MULTILINE)
    assert {name: groups.split(", ") for name, groups in rows} == licences.direct()


@pytest.mark.parametrize("name", sorted(licences.direct()))
def test_licences_of_what_a_dependency_needs_are_listed(name: str) -> None:
    try:
        needed = licences.closure([name])
    except importlib.metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed here")
    assert needed - listed().keys() == set()


def test_listed_licences_are_those_of_the_pinned_versions() -> None:
    found = {str(canonicalize_name(each.name)): each for each in importlib.metadata.distributions()}
    pinned = {name: str(version) for name, version in constraints().items()}
    same = {name for name in listed() if name in found and pinned.get(name) == found[name].version.partition("+")[0]}
    assert len(same) > 5
    assert {name: licences.licence(found[name]) for name in same} == {name: listed()[name] for name in same}


def test_licences_of_files_in_the_package_are_listed() -> None:
    page = text("docs/licences.md")
    assert [name for name, _, _ in licences.vendored()] == ["preact", "htm", "uplot"]
    assert all(f"| `{name}` {version} | {kind} |" in page for name, version, kind in licences.vendored())
    assert all(f"`mnemo/shipped/{name}`" in page for name in licences.shipped_names())


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT\nLicense: other\n", "MIT"),
        ("License: BSD\nClassifier: License :: OSI Approved :: BSD License\n", "BSD"),
        (f"License: {'text ' * 50}\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("Name: x\n", "not stated in the metadata"),
    ],
)
def test_licence_of_a_package(metadata: str, licence: str, tmp_path: Path) -> None:
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata)
    assert licences.licence(importlib.metadata.Distribution.at(folder)) == licence
