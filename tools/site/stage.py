"""Collect the pages of the site in a folder: those of the repository, unchanged, and those made from the code."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from tools.site.api_pages import with_api
from tools.site.command_pages import with_commands
from tools.site.navigation import HOME, INDEX, Chapter, Entry, chapters, contents, document
from tools.site.result_pages import OVERVIEW, result_pages

FOLDERS = ("docs/pictures",)
MAKERS = {PurePosixPath("docs/api.md"): with_api, PurePosixPath("docs/command-line.md"): with_commands}
"""Pages that get further pages, which are made from the code."""


def stage(root: Path, folder: Path) -> None:
    """Write all pages to the folder. Files keep their time if their content is unchanged, so that Sphinx skips them."""
    order = chapters(root)
    texts = {page: _with_targets((root / page).read_text(encoding="utf-8")) for page in pages(root, order)}
    texts[HOME] += contents((Entry("All pages", INDEX),))
    texts[HOME] += "".join(contents(chapter.entries, chapter.title) for chapter in order)
    for parent, make in MAKERS.items():
        text, made = make(texts[parent])
        texts[parent] = text + contents(tuple(made))
        texts.update({entry.page: page for entry, page in made.items()})
    files = _add_results(root, texts) if (root / "results").is_dir() else {}
    files |= {Path(document(page) + ".md"): text.encode() for page, text in texts.items()}
    files |= {path.relative_to(root): path.read_bytes() for name in FOLDERS for path in (root / name).glob("*")}
    _write(folder, files)


def _add_results(root: Path, texts: dict[PurePosixPath, str]) -> dict[Path, bytes]:
    """Put the overview of the results in place of its short form, add a page for every experiment, return its files."""
    made = result_pages(root)
    texts[OVERVIEW] = _with_targets(made.overview) + contents(tuple(made.pages))
    texts.update({entry.page: text for entry, text in made.pages.items()})
    return made.files


def pages(root: Path, order: list[Chapter]) -> list[PurePosixPath]:
    """All Markdown files of docs/, and the files elsewhere that the navigation names."""
    inside = [PurePosixPath(path.relative_to(root)) for path in sorted((root / "docs").rglob("*.md"))]
    named = [entry.page for chapter in order for entry in chapter.entries]
    return list(dict.fromkeys([HOME, INDEX, *inside, *named]))


def _with_targets(text: str) -> str:
    """Targets of links in MyST's syntax: it does not see those in HTML, which code-hosting pages need."""
    return re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", text, flags=re.MULTILINE)


def _write(folder: Path, files: dict[Path, bytes]) -> None:
    if folder.is_dir():
        for path in folder.rglob("*"):
            if path.is_file() and path.relative_to(folder) not in files:
                path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
