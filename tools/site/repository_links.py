"""Sphinx extension: links to files of the repository that are no pages of the site.

Pages link to code, data and folders by relative paths, which work on a code-hosting page. In the site, a text file gets
a page that shows it, a folder a page that lists its files, and data files are copied.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from pygments.lexers import find_lexer_class_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

from tools.site.navigation import HOME, ROOT, document, resolve

FOLDER = "files"
DATA = {".csv", ".ipynb", ".json", ".jsonl", ".npz", ".png", ".safetensors", ".svg", ".xz"}
HIDDEN = {"__pycache__"}


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository", str(ROOT), "env", types=(str,))
    app.connect("doctree-read", resolve_links)
    app.connect("html-collect-pages", file_pages)
    return {"parallel_read_safe": False}


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Resolve links that MyST did not, because their target is not among the site's pages under that path."""
    page = HOME if app.env.docname == "index" else PurePosixPath(f"{app.env.docname}.md")
    linked = _linked_files(app)[app.env.docname] = set()
    for node in list(doctree.findall(_is_open_link)):
        target, _, anchor = node["reftarget"].partition("#")
        path = resolve(page, target)
        if not target or not (_root(app) / path).exists():
            continue  # MyST reports it
        if document(path) in app.env.found_docs:
            node.attributes.update(refdomain="doc", reftarget=document(path), reftargetid=anchor or None)
        else:
            uri = relative_uri(app.builder.get_target_uri(app.env.docname), file_uri(path))
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))
            linked.add(path)


def _is_open_link(node: nodes.Node) -> bool:
    kinds = addnodes.pending_xref | addnodes.download_reference
    return isinstance(node, kinds) and node.get("reftype") == "myst" and node.get("refdomain") is None


def _root(app: Sphinx) -> Path:
    return Path(app.config.repository)


def _linked_files(app: Sphinx) -> dict[str, set[PurePosixPath]]:
    """Linked files by page, kept in Sphinx's environment for builds that load only changed pages."""
    return app.env.__dict__.setdefault("mnemo_linked_files", {})


def file_uri(path: PurePosixPath) -> str:
    return f"{FOLDER}/{path}" if path.suffix in DATA else f"{FOLDER}/{path}.html"


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Pages of the linked files and folders, and of the files in those folders."""
    waiting = sorted(set().union(*_linked_files(app).values()))
    done: set[PurePosixPath] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        if (_root(app) / path).is_dir():
            entries = _entries(_root(app), path)
            waiting += entries
            yield _page(path, _listing(path, entries))
        elif path.suffix in DATA:
            _copy(app, path)
        else:
            yield _page(path, _shown(app, path))


def _entries(root: Path, folder: PurePosixPath) -> list[PurePosixPath]:
    names = sorted(path.name for path in (root / folder).iterdir())
    return [folder / name for name in names if name not in HIDDEN and not name.startswith(".")]


def _page(path: PurePosixPath, body: str) -> tuple[str, dict[str, Any], str]:
    title = html.escape(str(path))
    return f"{FOLDER}/{path}", {"title": title, "body": f"<h1>{title}</h1>{body}", "parents": []}, "page.html"


def _listing(folder: PurePosixPath, entries: list[PurePosixPath]) -> str:
    here = file_uri(folder)
    items = (f'<li><a href="{relative_uri(here, file_uri(path))}">{path.name}</a></li>' for path in entries)
    return f"<ul>{''.join(items)}</ul>"


def _shown(app: Sphinx, path: PurePosixPath) -> str:
    lexer = find_lexer_class_for_filename(path.name)
    source = (_root(app) / path).read_text(encoding="utf-8")
    return app.builder.highlighter.highlight_block(source, lexer.aliases[0] if lexer else "text", linenos=False)


def _copy(app: Sphinx, path: PurePosixPath) -> None:
    target = app.outdir / file_uri(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_root(app) / path, target)
