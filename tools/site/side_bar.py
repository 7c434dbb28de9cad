"""Sphinx extension: the side bar, rendered from the lists of pages.

Sphinx copies the headings of all pages, and every name of the API, for the side bar of each page; that takes a third of
the time of a build. The side bar shows titles of pages only, so a list of titles is enough.
"""

from __future__ import annotations

import html
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


class Part(NamedTuple):
    caption: str
    entries: tuple[tuple[str, str], ...]
    """Titles and names of documents."""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", collect)
    app.connect("html-page-context", replace, priority=400)  # before the theme, which calls `toctree`
    return {"parallel_read_safe": False}


def collect(app: Sphinx, doctree: nodes.document) -> None:
    found = doctree.findall(addnodes.toctree)
    _parts(app)[app.env.docname] = [Part(node["caption"] or "", tuple(node["entries"])) for node in found]


def _parts(app: Sphinx) -> dict[str, list[Part]]:
    """Lists of pages by document, kept in Sphinx's environment for builds that load only changed pages."""
    return app.env.__dict__.setdefault("mnemo_parts", {})


def replace(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    def toctree(**options: Any) -> str:
        return _render(app, page, app.config.root_doc, 1)

    context["toctree"] = toctree


def _render(app: Sphinx, page: str, parent: str, level: int) -> str:
    return "".join(_caption(part.caption) + _list(app, page, part, level) for part in _parts(app).get(parent, []))


def _caption(text: str) -> str:
    caption = f'<span class="caption-text">{html.escape(text)}</span>'
    return f'<p class="caption" role="heading">{caption}</p>' if text else ""


def _list(app: Sphinx, page: str, part: Part, level: int) -> str:
    items = "".join(_item(app, page, title, name, level) for title, name in part.entries)
    return f"<ul>{items}</ul>"


def _item(app: Sphinx, page: str, title: str, name: str, level: int) -> str:
    inside = _render(app, page, name, level + 1)
    here = page == name
    marked = " current" if here or 'class="current ' in inside else ""
    uri = "#" if here else html.escape(app.builder.get_relative_uri(page, name))
    link = f'<a class="{"current " if here else ""}reference internal" href="{uri}">{html.escape(title)}</a>'
    return f'<li class="toctree-l{level}{marked}">{link}{inside}</li>'
