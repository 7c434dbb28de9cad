"""Static analysis of source files: imports of a module, and calls that could run code from a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "runpy", "shelve", "_pickle"}
TORCH_LOAD = {"torch.load", "torch.serialization.load"}
FORBIDDEN_CALLS = {
    *TORCH_LOAD,
    "__import__",
    "compile",
    "eval",
    "exec",
    "numpy.lib.format.read_array",
    "pandas.read_pickle",
    "torch.distributed.checkpoint.FileSystemReader",  # its metadata are a pickle
    "torch.distributed.checkpoint.filesystem.FileSystemReader",
    "torch.distributed.checkpoint.format_utils.dcp_to_torch_save",
    "torch.distributed.checkpoint.format_utils.torch_save_to_dcp",
    "torch.export.load",
    "torch.hub.load",
    "torch.hub.load_state_dict_from_url",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "yaml.full_load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
}
SHARDED_LOAD = {
    f"torch.distributed.checkpoint.{name}" for name in ("load", "state_dict_loader.load", "load_state_dict")
}
"""Functions that load a pickle by default."""


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """All parts of a tree, found once for all rules."""
    return list(ast.walk(tree))


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str = "", is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Every imported name with its line: `from a import b` gives a.b, because b may be a module."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - 1 if is_package else node.level
    return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])


def forbidden(tree: ast.AST, restricted_load: bool = False) -> list[str]:
    """All calls and imports in the tree that could run code from a file.

    `restricted_load`: torch.load(..., weights_only=True) may be called, in these words and not in others.
    """
    allowed = set(restricted_loads(tree)) if restricted_load else set()
    found = [
        f"line {line}: imports {name}" for name, line in imports(tree) if name.partition(".")[0] in FORBIDDEN_MODULES
    ]
    aliases = _aliases(tree)
    for node in nodes(tree):
        if node in allowed:
            continue
        if isinstance(node, ast.Call):
            found.extend(f"line {node.lineno}: {reason}" for reason in _forbidden_call(node, aliases))
        elif isinstance(node, ast.Attribute) and _dotted(node, aliases) in FORBIDDEN_CALLS:
            found.append(f"line {node.lineno}: uses {_dotted(node, aliases)}")
    return found


def restricted_loads(tree: ast.AST) -> Iterator[ast.expr]:
    """Functions of the calls that load nothing but tensors."""
    aliases = _aliases(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Call) and _dotted(node.func, aliases) in TORCH_LOAD:
            words = {word.arg: word.value for word in node.keywords}
            restricted = words.get("weights_only")
            if (
                isinstance(restricted, ast.Constant)
                and restricted.value is True
                and isinstance(node.func, ast.Attribute)
            ):
                yield node.func


def _forbidden_call(call: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    name = _dotted(call.func, aliases)
    if isinstance(call.func, ast.Name) and name in FORBIDDEN_CALLS:
        yield f"calls {name}"
    if name in SHARDED_LOAD and "storage_reader" not in {keyword.arg for keyword in call.keywords}:
        yield f"calls {name} without a storage_reader"
    for keyword in call.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg == "allow_pickle" and not is_false:
            yield f"calls {name} with allow_pickle"


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Full name of each local name, as in `import numpy as np` or `from torch import load as read`."""
    aliases = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            aliases.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return aliases


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return "?"
