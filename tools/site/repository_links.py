"""Sphinx extension: links to files of the repository that are no pages of the site.

Pages link to code, data and folders by relative paths, which work on a code-hosting page. In the site, a text file gets
a page that shows it, a folder a page that lists its files, and data files are copied.
"""

from __future__ import annotations

import html
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

from tools.site.navigation import HOME, ROOT, document, resolve

FOLDER = "files"
DATA = {".csv", ".ipynb", ".json", ".jsonl", ".npz", ".png", ".safetensors", ".svg", ".xz"}
HIDDEN = {"__pycache__"}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{path} - Mnemo</title>
<link rel="stylesheet" href="{up}_static/file.css">
</head>
<body>
<p><a href="{up}index.html">Mnemo</a> / {path}</p>
{body}
</body>
</html>
"""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository", str(ROOT), "env", types=(str,))
    app.connect("doctree-read", resolve_links)
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": False}


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Resolve links that MyST did not, because their target is not among the site's pages under that path."""
    page = HOME if app.env.docname == "index" else PurePosixPath(f"{app.env.docname}.md")
    linked = _linked_files(app)[app.env.docname] = set()
    for node in [node for node in doctree.findall(nodes.Element) if _is_open_link(node)]:
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


def _is_open_link(node: nodes.Element) -> bool:
    kinds = addnodes.pending_xref | addnodes.download_reference
    return isinstance(node, kinds) and node.get("reftype") == "myst" and node.get("refdomain") is None


def _root(app: Sphinx) -> Path:
    return Path(app.config.repository)


def _linked_files(app: Sphinx) -> dict[str, set[PurePosixPath]]:
    """Linked files by page, kept in Sphinx's environment for builds that load only changed pages."""
    return app.env.__dict__.setdefault("mnemo_linked_files", {})


def file_uri(path: PurePosixPath) -> str:
    return f"{FOLDER}/{path}" if path.suffix in DATA else f"{FOLDER}/{path}.html"


def write_files(app: Sphinx, error: Exception | None) -> None:
    """Write the pages of linked files and folders, and of all files in those folders."""
    waiting = [] if error else sorted(set().union(*_linked_files(app).values()))
    done: set[PurePosixPath] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        source, target = _root(app) / path, app.outdir / file_uri(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            entries = _entries(source, path)
            waiting += entries
            target.write_text(_page(path, _listing(path, entries)), encoding="utf-8")
        elif path.suffix in DATA:
            shutil.copyfile(source, target)
        else:
            target.write_text(_page(path, _highlighted(source)), encoding="utf-8")


def _entries(source: Path, folder: PurePosixPath) -> list[PurePosixPath]:
    names = sorted(path.name for path in source.iterdir())
    return [folder / name for name in names if name not in HIDDEN and not name.startswith(".")]


def _page(path: PurePosixPath, body: str) -> str:
    """A plain page: the theme's navigation would take most of the time of a build, for hundreds of files."""
    up = "../" * len(path.parts)
    return PAGE.format(path=html.escape(str(path)), body=body, up=up)


def _listing(folder: PurePosixPath, entries: list[PurePosixPath]) -> str:
    here = file_uri(folder)
    items = (f'<li><a href="{relative_uri(here, file_uri(path))}">{path.name}</a></li>' for path in entries)
    return f"<ul>{''.join(items)}</ul>"


def _highlighted(source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(source.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, HtmlFormatter())
