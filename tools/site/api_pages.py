"""Pages of the Python interface: for each group of names in docs/api.md, a page made from their docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import PurePosixPath
from typing import Any

from tools.site.navigation import Entry

FOLDER = PurePosixPath("docs/api")
_GROUP = re.compile(r"^## (?P<title>.+)\n(?P<text>(?:(?!## ).*\n)*)", re.MULTILINE)
_NAMES = re.compile(r"^(?:`mnemo[\w.]+`\s+)+", re.MULTILINE)


def with_api(index: str) -> tuple[str, dict[Entry, str]]:
    """The index with a table in place of each list of names, and a page for each list."""
    made = {}
    for group in _GROUP.finditer(index):
        page = FOLDER / f"{_slug(group['title'])}.md"
        made[Entry(group["title"], page)] = _page(group["title"], group["text"])
    return _NAMES.sub(lambda names: _table(names[0]), index), made


def names_in(index: str) -> list[str]:
    """All names of the lists, in their order."""
    return [name for names in _NAMES.finditer(index) for name in re.findall(r"[\w.]+", names[0])]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")


def _table(names: str) -> str:
    rows = [f"| {{py:obj}}`~{name}` | {_summary(name)} |" for name in names_in(names)]
    return "\n".join(["| name | summary |", "|---|---|", *rows, "", ""])


def _summary(name: str) -> str:
    """The first sentence or line of a docstring."""
    text = inspect.getdoc(load(name)) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _page(title: str, text: str) -> str:
    intro = _NAMES.sub("", text).strip().replace("](", "](../")
    return "\n\n".join([f"# {title}", intro, *(_block(name) for name in names_in(text))]) + "\n"


def _block(name: str) -> str:
    return f"```{{eval-rst}}\n{_directive(name)}\n```"


def _directive(name: str) -> str:
    if inspect.isclass(load(name)):
        return f".. autoclass:: {name}\n   :members:\n   :member-order: bysource\n   :exclude-members: config_class"
    return f".. autofunction:: {name}"


def load(name: str) -> Any:
    """The object of a full name, such as mnemo.memory.XL."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)
