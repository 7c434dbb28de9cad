"""The reference of the Python interface (docs/api.md) has every public name, with a docstring of its own."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from helpers.doc_pages import PAGES, blocks

import mnemo
import mnemo.hf
from tools.site.api_pages import load, names_in
from tools.site.navigation import ROOT

NAMES = names_in((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))


def test_the_reference_has_every_public_name_once() -> None:
    public = {f"mnemo.{name}" for name in mnemo.__all__} | {f"mnemo.hf.{name}" for name in mnemo.hf.__all__}
    assert len(NAMES) == len(set(NAMES))
    assert public - set(NAMES) == set()


def test_the_reference_has_every_name_that_pages_import() -> None:
    documented = {load(name) for name in NAMES}
    lines = re.findall(r"^from (mnemo[\w.]*) import (.+?)(?:  #.*)?$", "\n".join(map(python_of, PAGES)), re.MULTILINE)
    imported = {f"{module}.{name.strip()}" for module, names in lines for name in names.split(",")}
    missing = {name for name in imported if _is_documentable(load(name)) and load(name) not in documented}
    assert missing == set()


def _is_documentable(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def python_of(page: Path) -> str:
    return "\n".join(blocks(page))


def test_public_names_have_docstrings_of_their_own() -> None:
    for name in NAMES:
        value = load(name)
        text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
        assert text, f"{name} has no docstring"
        assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has no docstring but its fields"
        assert len(text.splitlines()[0]) <= 120, name
