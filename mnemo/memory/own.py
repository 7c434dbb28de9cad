"""Mechanisms from outside of the package: defined in a file that the user names, or in an installed package.

    @mechanism
    @dataclass(frozen=True, kw_only=True)
    class Average: ...

`mnemo VERB --import my_memory.py` executes that file. Packages name the class of a configuration as an entry point of
the group `mnemo.memories`. A file is executed only if the user names it: a run records the file that it needs, and
never executes it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from mnemo.config import kind_name
from mnemo.errors import MnemoError, one_line
from mnemo.memory import plan
from mnemo.memory.configuration import Layerless

GROUP = "mnemo.memories"
"""Group of entry points."""
COMPARED = {"Flash": "mnemo.bench.alternatives.flash", "GatedDelta": "mnemo.bench.alternatives.gated_delta"}
"""Mechanisms of this package that are only known if a run has one of them, and their modules: these import this one, so
they are imported by name."""
T = TypeVar("T", bound=type)


class ImportNeeded(MnemoError):
    """A run has a memory whose file or package has not been imported."""


class Origin(NamedTuple):
    kind: Literal["file", "package", "module"]
    name: str


_origins: dict[type, Origin] = {}
_importing: list[Origin] = []
"""The file or package that is being imported, if any."""


def mechanism(cls: T) -> T:
    """Add the configuration of a mechanism to those that a plan may name. Decorates a frozen dataclass."""
    _check_configuration(cls)
    names = {kind_name(each) for each in plan.BUILT_IN}
    if kind_name(cls) in names:
        raise MnemoError(f"there is a memory '{kind_name(cls)}' already: choose another name for {cls.__name__}")
    for earlier in [each for each in _origins if each.__name__ == cls.__name__]:
        del _origins[earlier]  # the same file or module was imported again
    _origins[cls] = _importing[-1] if _importing else Origin("module", cls.__module__)
    plan.set_mechanisms(*plan.BUILT_IN, *_origins)
    return cls


def _check_configuration(cls: type) -> None:
    builder = "build" if issubclass(cls, Layerless) else "stage"
    lacking = [name for name in ("traits", "check", "published", builder) if getattr(cls, name, None) is None]
    if not dataclasses.is_dataclass(cls) or lacking:
        reason = f"it has no {', '.join(lacking)}" if lacking else "it is not a dataclass"
        raise MnemoError(f"{cls.__name__} is not the configuration of a memory: {reason}")


def own_mechanisms() -> dict[str, type]:
    """Configurations from outside of the package, by their name on the command line."""
    return {kind_name(cls): cls for cls in _origins}


def imported_files() -> list[str]:
    """The files of --import whose mechanisms are known."""
    return list(dict.fromkeys(origin.name for origin in _origins.values() if origin.kind == "file"))


def origins(used: plan.Plan) -> list[dict[str, str]]:
    """What a run with this plan has to import: name of the class, and its file, package or module."""
    classes = dict.fromkeys((type(used.long), type(used.short)))
    return [{"name": cls.__name__, _origins[cls].kind: _origins[cls].name} for cls in classes if cls in _origins]


def require_imports(recorded: Any, where: str) -> None:
    """Raise an error that names what to import, if a mechanism that a run has recorded is missing."""
    if recorded is None:
        return
    if not isinstance(recorded, list) or not all(isinstance(each, dict) for each in recorded):
        raise MnemoError(f"{where} is damaged: its imports are not a list")
    load_installed()
    known = {cls.__name__ for cls in _origins}
    for each in recorded:
        name = str(each.get("name"))
        if name in COMPARED.keys() - known and each.get("module") == COMPARED[name]:
            known.add(mechanism(getattr(importlib.import_module(COMPARED[name]), name)).__name__)
        if each.get("name") not in known:
            raise ImportNeeded(f"{where} needs {_remedy(each)}: its memory '{each.get('name')}' is defined there")


def _remedy(recorded: dict[str, Any]) -> str:
    if "file" in recorded:
        return f"--import {recorded['file']}"
    if "package" in recorded:
        return f"the package {recorded['package']}"
    return f"the Python module {recorded.get('module')}, imported before the run is opened"


def import_file(path: Path) -> None:
    """Execute a Python file that defines mechanisms."""
    if path.suffix != ".py" or not path.is_file():
        raise MnemoError(f"--import needs a Python file (.py), and {path} is not one")
    name = "mnemo_import_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), set(_origins)
    sys.modules[name] = module  # annotations in the file are looked up there
    with _from(Origin("file", str(path)), f"--import {path}"):
        spec.loader.exec_module(module)
    if not set(_origins) - before:
        raise MnemoError(f"{path} defines no memory: put @mnemo.memory.mechanism above its configuration")


@functools.cache
def load_installed() -> tuple[str, ...]:
    """Import the mechanisms of installed packages, once; return a line for each that cannot be imported."""
    from importlib.metadata import entry_points

    problems = []
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            with _from(Origin("package", package), f"the memory '{entry.name}' of the package {package}"):
                loaded = entry.load()
                if isinstance(loaded, type) and loaded not in _origins:
                    mechanism(loaded)
        except MnemoError as error:
            problems.append(str(error))
    return tuple(problems)


@contextmanager
def _from(origin: Origin, what: str) -> Iterator[None]:
    """Record the origin of mechanisms; an error of the imported code becomes one line."""
    _importing.append(origin)
    try:
        yield
    except MnemoError:
        raise
    except Exception as error:
        raise MnemoError(f"{what} fails: {type(error).__name__}: {one_line(error)}") from error
    finally:
        _importing.pop()
