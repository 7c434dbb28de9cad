"""The model knows no mechanism by name, nor does anything that works with every mechanism."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from helpers.code_walk import imports, module_name

from mnemo.memory import AnyInputMemory, AnyMemory

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = {kind.__name__: kind for kind in (*get_args(AnyMemory), *get_args(AnyInputMemory))}
PACKAGES = {kind.__module__ for kind in CONFIGURATIONS.values()}
"""The package of each mechanism: its configuration, and `modules.py` with its states and modules."""
MAY_NAME = {
    "mnemo/memory": "the mechanisms themselves",
    "mnemo/recipes": "published configurations",
    "mnemo/papers": "experiments with a mechanism",
    "mnemo/bench": "speed of a mechanism beside its published code",
    "mnemo/interop": "checkpoints and reference values of a mechanism",
    "mnemo/cost/measured_shares.py": "measured speed of a mechanism",
    "mnemo/analysis/lamemo_alpha.py": "the look-ahead memory's coefficient",
    "mnemo/hf/memory_tokens": "memory tokens in other models",
    "mnemo/hf/tuning": "the memory that a model gets",
    "mnemo/cli/demo_training.py": "the demonstration's configurations",
    "mnemo/report": "names of mechanisms in stored recipes, for captions",
    "mnemo/__init__.py": "the public names",
}
SOURCES = [
    path
    for path in sorted((ROOT / "mnemo").rglob("*.py"))
    if not any(path.is_relative_to(ROOT / allowed) for allowed in MAY_NAME)
]


def classes(package: str) -> set[str]:
    files = (ROOT / package.replace(".", "/")).glob("*.py")
    nodes = [node for path in files for node in ast.parse(path.read_text(encoding="utf-8")).body]
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)}


def is_inside(name: str) -> bool:
    """Whether a module or a name in it belongs to a mechanism's package."""
    return any(name == package or name.startswith(f"{package}.") for package in PACKAGES)


CLASSES = set().union(*map(classes, PACKAGES))


def named(source: str, module: str = "") -> list[str]:
    """Mechanisms that a file imports, or whose name it compares with something."""
    tree = ast.parse(source)
    found = [
        name
        for name, _ in imports(tree, module)
        if is_inside(name) or (name.startswith("mnemo.memory.") and name.rpartition(".")[2] in CLASSES)
    ]
    compared = [part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)]
    strings = [node.value for node in compared if isinstance(node, ast.Constant)]
    return found + [text for text in strings if isinstance(text, str) and text in CONFIGURATIONS]


def test_the_walk_knows_every_mechanism() -> None:
    assert {
        "XL",
        "Lookahead",
        "Compressive",
        "Infinite",
        "LSTM",
        "QRNN",
        "Associative",
        "MemoryTokens",
        "WriteTokens",
    } == CONFIGURATIONS.keys()
    assert {"XLStage", "InfiniteStage", "OpenLookahead", "TokensState", "RecurrentMemory"} <= CLASSES
    assert all((ROOT / allowed).exists() for allowed in MAY_NAME)
    assert ROOT / "mnemo/model/model.py" in SOURCES and ROOT / "mnemo/training/distributed.py" in SOURCES


def test_no_mechanism_is_named() -> None:
    found = {path: named(path.read_text(encoding="utf-8"), module_name(path, ROOT)) for path in SOURCES}
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from mnemo.memory import XL",
        "from mnemo.memory import Plan, TokensState",
        "from mnemo.memory.xl.modules import XLStage",
        "from mnemo.memory.xl import modules",
        "import mnemo.memory.infinite",
        "from mnemo.memory import lookahead",
        "type(memory).__name__ == 'Compressive'",
    ],
)
def test_the_walk_sees_a_name(source: str) -> None:
    assert len(named(source)) == 1


@pytest.mark.parametrize(
    "source",
    ["from mnemo.memory import AnyMemory, Plan", "from mnemo.memory.protocol import Stage", "label = 'XL'"],
)
def test_the_walk_lets_the_protocol_pass(source: str) -> None:
    assert named(source) == []
