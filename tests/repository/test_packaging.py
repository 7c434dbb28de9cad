from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from helpers.constraints import constraints
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from mnemo import __version__
from tools.licences import closure

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed as a package here")


def test_version_is_that_of_the_distribution() -> None:
    assert PROJECT["version"] == __version__
    assert installed("mnemo-lm").version == __version__


def test_extras() -> None:
    face = {"transformers", "tokenizers", "datasets", "accelerate", "peft"}
    graphs = {"onnx", "onnxscript", "onnxruntime"}
    server = {"starlette", "uvicorn", "prometheus-client"}
    clients = {"openai", "playwright", "tenacity"}
    tools = {"pytest", "pytest-xdist", "hypothesis", "ruff", "pyright", "hatchling", "hatch-fancy-pypi-readme"}
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


def test_triton_is_that_of_torchs_cuda_builds() -> None:
    """They require one exact version. With another pin, pip finds no solution where torch comes from a public index."""
    triton_of_torch = {"2.13.0": "3.7.1"}
    assert str(constraints()["triton"]) == triton_of_torch[str(constraints()["torch"])]


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
    assert closure(["mnemo-lm[dev]"]) - constraints().keys() == {"mnemo-lm"}  # without NVIDIA's, which torch pins


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
