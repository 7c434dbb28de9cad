from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from mnemo import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def constraints() -> dict[str, Version]:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in pins, f"{name} is pinned twice"
            pins[canonicalize_name(name)] = Version(version)
    return pins


def installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed as a package here")


def test_version_is_that_of_the_distribution() -> None:
    assert PROJECT["version"] == __version__
    assert installed("mnemo-lm").version == __version__


def test_changelog_has_the_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_extras() -> None:
    face = {"transformers", "tokenizers", "datasets", "accelerate", "peft"}
    graphs = {"onnx", "onnxscript", "onnxruntime"}
    server = {"starlette", "uvicorn", "prometheus-client"}
    clients = {"openai", "playwright", "tenacity"}
    tools = {"pytest", "pytest-xdist", "hypothesis", "ruff", "pyright"}
    site = {"furo", "myst-parser", "sphinx"}
    wanted = {
        "bpe": {"tokenizers"},
        "hf": face,
        "onnx": graphs,
        "serve": server,
        "harness": {"lm-eval"},
        "docs": site,
        "track": {"wandb", "trackio"},
        "dev": tools | face | graphs | server | clients | site | {"lm-eval", "triton"},
    }
    assert {extra: {Requirement(line).name for line in lines} for extra, lines in EXTRAS.items()} == wanted


def test_torch_is_a_range_for_users_and_pinned_for_developers() -> None:
    (torch_range,) = [line for line in PROJECT["dependencies"] if line.startswith("torch")]
    assert torch_range == "torch>=2.11,<2.14"
    assert constraints()["torch"] == Version("2.13.0")


def test_pins_are_public_versions() -> None:
    """A local tag such as +cpu names a build that other machines cannot install."""
    assert [name for name, version in constraints().items() if version.local] == []


@pytest.mark.parametrize(
    "line", [*PROJECT["dependencies"], *EXTRAS["bpe"], *EXTRAS["hf"], *EXTRAS["serve"], *EXTRAS["dev"]]
)
def test_pins_lie_in_the_ranges(line: str) -> None:
    requirement = Requirement(line)
    assert requirement.specifier, f"{requirement.name} has no range"
    assert constraints()[canonicalize_name(requirement.name)] in requirement.specifier


def test_everything_that_dev_installs_is_pinned() -> None:
    if Version(installed("torch").version).public != "2.13.0":
        pytest.skip("another torch than the pinned one is installed")
    assert requirements_of(["mnemo-lm[dev]"]) - constraints().keys() == {"mnemo-lm"}


def requirements_of(roots: list[str]) -> set[str]:
    """Names of all installed packages that the roots need, directly or through others."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        line = waiting.pop()
        if line not in seen:
            seen.add(line)
            waiting.extend(_direct_requirements(Requirement(line)))
    return {canonicalize_name(Requirement(line).name) for line in seen}


def _direct_requirements(requirement: Requirement) -> Iterator[str]:
    for line in installed(requirement.name).requires or []:
        needed = Requirement(line)
        applies = [_applies(needed, extra) for extra in ("", *requirement.extras)]
        # An exact requirement is a pin already: torch names its CUDA libraries so.
        if any(applies) and not str(needed.specifier).startswith("=="):
            yield needed.name + (f"[{','.join(sorted(needed.extras))}]" if needed.extras else "")


def _applies(requirement: Requirement, extra: str) -> bool:
    environment = {**default_environment(), "extra": extra}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def test_the_wheel_has_every_file_of_the_package() -> None:
    """Templates and style sheets too, which a list of patterns could leave out."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert config["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["mnemo"]}
    assert (ROOT / "mnemo" / "report" / "templates" / "page.html.j2").is_file()


def test_command_is_declared() -> None:
    assert PROJECT["scripts"] == {"mnemo": "mnemo.cli:main"}


def test_make_installs_with_the_constraints() -> None:
    """Without them pip resolves torch to gigabytes of another build."""
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert installs and all("-c constraints.txt" in line for line in installs)


def test_hints_name_extras_and_no_package_index() -> None:
    """Mnemo is installed from source: no text may say that an index has it."""
    sources = [*(ROOT / "mnemo").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    assert [path for path, text in texts.items() if "mnemo-lm" in text] == []
    named = re.findall(r"install_command\('([^']+)'\)|pip install '\.\[([\w,]+)\]'", "".join(texts.values()))
    extras = {extra for pair in named for names in pair if names for extra in names.split(",")}
    assert {"bpe", "hf", "onnx", "harness", "track"} <= extras <= EXTRAS.keys()


def test_vendored_files_name_their_source_and_licence() -> None:
    vendor = ROOT / "mnemo" / "serving" / "studio" / "assets" / "vendor"
    table = re.findall(r"^\| `(\S+)` \| `(\S+)` \| [\d.]+ \|", (vendor / "VENDORED.md").read_text(), re.MULTILINE)
    assert {name for name, _ in table} == {path.name for path in vendor.iterdir()} - {"VENDORED.md", "licences"}
    assert {package for _, package in table} == {path.stem for path in (vendor / "licences").iterdir()}
