"""The shape of the source tree: imports point down, nothing can run code from a file, files stay small."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from helpers.code_walk import forbidden, imports, module_name, nodes, restricted_loads

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "mnemo").rglob("*.py"))
MAX_LINES, MAX_FUNCTION_LINES = 600, 60
RESTRICTED = ROOT / "mnemo" / "interop" / "convert" / "restricted_loader.py"
"""The only file that may read pickles, with torch's restricted loader."""

LAYER_ROW = re.compile(r"^\| ((?:`[a-z]+`(?:, )?)+) \|", re.MULTILINE)
LEVELS = [
    set(re.findall(r"`([a-z]+)`", row))
    for row in LAYER_ROW.findall(
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Tour of the layers")[2]
    )
]
"""CONTRIBUTING's table, top to bottom. A package may import its own level and lower ones."""
LEVELS[0].add("__main__")
LEVELS[-1].add("__version__")
KEPT_APART = {("data", "model"), ("data", "inference"), ("data", "memory")}
"""Pairs that must not meet even though the first is higher."""
ADAPTERS = {"hf", "interop"}
"""Outside the core: they may import anything, and few may import them."""
USERS_OF_ADAPTERS = {"cli"}
EVERY_PART = set().union(*LEVELS) | ADAPTERS


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(module: str) -> str:
    """`mnemo.memory.xl` -> `memory`; the package itself -> `` (empty)."""
    return (module.split(".") + [""])[1]


def level(part: str) -> int:
    return next(i for i, parts in enumerate(LEVELS) if part in parts)


def broken_rule(importer: str, imported: str) -> str | None:
    """Why the part `importer` may not import the part `imported`, or None where it may."""
    if importer == imported or importer in ADAPTERS:
        return None
    if imported in ADAPTERS:
        return None if importer in USERS_OF_ADAPTERS else "adapters stay outside the core"
    if (importer, imported) in KEPT_APART:
        return "these two are kept apart"
    return "imports must point down" if level(imported) < level(importer) else None


def violations(tree: ast.Module, module: str, is_package: bool = False) -> list[str]:
    part = part_of(module)
    found = []
    for name, line in imports(tree, module, is_package):
        if name.partition(".")[0] == "transformers" and part != "hf":
            found.append(f"line {line}: transformers is for mnemo.hf only")
        if name.partition(".")[0] != "mnemo" or module == "mnemo":
            continue
        rule = broken_rule(part, part_of(name)) if part_of(name) in EVERY_PART else "import the part, not the package"
        if rule:
            found.append(f"line {line}: {module} imports {name}: {rule}")
    return found


def test_imports_point_down() -> None:
    modules = {path: module_name(path, ROOT) for path in SOURCES}
    parts = {part_of(module) for module in modules.values() if module != "mnemo"}
    assert parts <= EVERY_PART, f"give {parts - EVERY_PART} a place in CONTRIBUTING's table"
    found = [violations(parsed(path), module, path.name == "__init__.py") for path, module in modules.items()]
    assert sum(found, []) == []


def test_nothing_can_run_code_from_a_file() -> None:
    found = {path: forbidden(parsed(path), restricted_load=path == RESTRICTED) for path in SOURCES}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}


def test_the_one_loader_of_pickles_is_the_restricted_one() -> None:
    """It runs as a process of its own, so that nothing imports it but the file that starts it."""
    trees = {path: parsed(path) for path in SOURCES}
    assert [path for path, tree in trees.items() for _ in restricted_loads(tree)] == [RESTRICTED]
    found = {path: {name for name, _ in imports(tree)} for path, tree in trees.items()}
    users = [path for path, modules in found.items() if "mnemo.interop.convert.restricted_loader" in modules]
    assert users == [RESTRICTED.parent / "weight_files.py"]


def test_the_table_of_layers_names_every_package_once() -> None:
    packages = {
        path.stem for path in (ROOT / "mnemo").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert packages - {"__init__"} == EVERY_PART - {"__version__"}
    assert sum(map(len, LEVELS)) + len(ADAPTERS) == len(EVERY_PART)


def test_files_stay_small() -> None:
    paths = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_functions_stay_short() -> None:
    """Kernels aside, which cannot be divided without cost."""
    functions = [(path, node) for path in SOURCES for node in nodes(parsed(path))]
    long = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node)
        if lines_of(node) > MAX_FUNCTION_LINES
    }
    assert long == set()


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    known = {module_name(path, ROOT) for path in SOURCES}
    graph = {module_name(path, ROOT): import_time_modules(path, known) for path in SOURCES}
    while ready := [module for module, needs in graph.items() if not needs & graph.keys()]:
        for module in ready:
            del graph[module]
    assert graph == {}, "these modules form or lead into a circle"


def import_time_modules(path: Path, known: set[str]) -> set[str]:
    """Those of the known modules that importing `path` imports; imports inside functions come later."""
    top = ast.Module([node for node in parsed(path).body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    module, is_package = module_name(path, ROOT), path.name == "__init__.py"
    found = {name if name in known else name.rpartition(".")[0] for name, _ in imports(top, module, is_package)}
    return (found & known) - {module}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mnemo.ops.cpu.eager", "from mnemo.cli import main"),
        ("mnemo.model", "def f():\n    import mnemo.training"),
        ("mnemo.model", "from mnemo import data"),
        ("mnemo.data.streams", "from mnemo.model import Model"),
        ("mnemo.memory.xl", "from ..layers import Layer"),
        ("mnemo.training", "from mnemo import Model"),
        ("mnemo.training", "import mnemo.hf"),
        ("mnemo.training", "from transformers import AutoModel"),
    ],
)
def test_the_walk_sees_a_wrong_import(module: str, source: str) -> None:
    assert len(violations(ast.parse(source), module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mnemo.cli.train", "from mnemo.training import train\nimport torch"),
        ("mnemo.cli.convert", "from mnemo.interop.convert import main"),
        ("mnemo.hf.modeling", "import transformers\nfrom mnemo.model import Model"),
        ("mnemo.memory.xl", "from . import protocol\nfrom mnemo.ops import relative_attention"),
    ],
)
def test_the_walk_lets_right_imports_pass(module: str, source: str) -> None:
    assert violations(ast.parse(source), module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=True)",
        "from torch import load as read\nread('x')",
        "import torch\nread = torch.load",
        "import pickle",
        "def f():\n    from pickle import loads",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "eval('1')",
        "exec('1')",
        "import yaml\nyaml.load('x', Loader=loader)",
        "import shelve",
        "import marshal",
        "from joblib import load",
        "from dill import loads",
        "import torch\ntorch.jit.load('x')",
        "import torch.hub\ntorch.hub.load('x', 'y')",
        "import torch\ntorch.hub.load_state_dict_from_url('x')",
        "compile('1', 'x', 'eval')",
        "__import__('os')",
        "import torch.distributed.checkpoint as dcp\ndcp.load({}, checkpoint_id='x')",
        "import torch.distributed.checkpoint as dcp\nreader = dcp.FileSystemReader",
        "from torch.distributed.checkpoint import FileSystemReader\nFileSystemReader('x')",
    ],
)
def test_the_walk_sees_what_can_run_code(source: str) -> None:
    assert len(forbidden(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import torch.distributed.checkpoint as dcp\ndcp.load({}, storage_reader=reader)",
        "torch.compile(f)",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "json.load(f)",
    ],
)
def test_the_walk_lets_harmless_calls_pass(source: str) -> None:
    assert forbidden(ast.parse(source)) == []


def test_only_the_restricted_loader_is_excepted() -> None:
    for source, count in (
        ("import torch\ntorch.load('x', weights_only=True)", 0),
        ("import torch\ntorch.load('x', weights_only=False)", 1),
        ("import torch\ntorch.load('x', weights_only=flag)", 1),
        ("import torch\ntorch.load('x')", 1),
        ("import torch\nread = torch.load", 1),
    ):
        assert len(forbidden(ast.parse(source), restricted_load=True)) == count, source
