"""A page for every verb of the command line, made from `mnemo VERB --help`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import PurePosixPath
from typing import NamedTuple
from unittest.mock import patch

from mnemo.cli import VERBS, main
from tools.site.navigation import ROOT, Entry

FOLDER = PurePosixPath("docs/command-line")
WIDTH = "120"  # columns of the terminal; wider ones show groups of options side by side
RECIPE = "tiny-bytes"  # the fields of a recipe are the same with every preset; defaults are this one's

_BOX = re.compile(r"^╭─ (?P<title>.+?) ─*╮\n(?P<rows>.*?)^╰─+╯$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"^(?P<name>\S.*?)(?:\s{2,}(?P<help>\S.*))?$")
_RULE = re.compile(r"^─+$")
_DEFAULT = re.compile(r"^(?P<help>.*?)\s*\(default: (?P<value>.*)\)$")
_PAGE = re.compile(r"\bdocs/([\w-]+\.md)")


class Option(NamedTuple):
    name: str
    help: str
    default: str | None


def with_commands(index: str) -> tuple[str, dict[Entry, str]]:
    """The index with a table of all verbs, and a page for each verb."""
    rows = [f"| [`mnemo {name}`](command-line/{name}.md) | {verb.help} |" for name, verb in VERBS.items()]
    table = "\n".join(["## Verbs", "", "| command | what it does |", "|---|---|", *rows, "", ""])
    made = {Entry(f"mnemo {name}", FOLDER / f"{name}.md"): verb_page(name) for name in VERBS}
    opening, heading, rest = index.partition("## ")
    return opening + table + heading + rest, made


def verb_page(verb: str) -> str:
    text = help_text([verb])
    body = f"# mnemo {verb}\n\n{_body(text)}"
    if verb == "train":
        fields = help_text([verb, RECIPE])
        body += f"\n## Fields of a recipe\n\nFrom `mnemo train {RECIPE} --help`; defaults are those of this preset.\n"
        body += _options(fields, "###")
    return body


def help_text(argv: list[str]) -> str:
    """The help as a wide terminal shows it."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # frames are drawn only if the encoding has them
    with patch.dict(os.environ, COLUMNS=WIDTH), redirect_stdout(out):
        code = main([*argv, "--help"])
    if code != 0:
        raise RuntimeError(f"mnemo {' '.join(argv)} --help ends with exit code {code}")
    out.seek(0)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.read())


def _body(text: str) -> str:
    """Usage, description and options of a verb in Markdown."""
    usage, _, rest = _BOX.sub("", text).strip().partition("\n")
    return f"```text\n{usage}\n```\n\n{_prose(rest)}\n{_options(text, '##')}"


def _prose(text: str) -> str:
    """The description: indented lines stay literal, names of pages become links, and angle brackets stay text."""
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith("  "):
        return f"```text\n{_dedent(text)}\n```"
    return _inline(text)


def _dedent(text: str) -> str:
    lines = text.splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[margin:] for line in lines)


def _inline(text: str) -> str:
    """Options and values in code, links to pages; Markdown's characters elsewhere are escaped."""
    pieces = re.split(r"(`[^`]+`|(?<![\w-])--?[a-z](?:[\w.-]*\w)?)", text)
    return "".join(_piece(piece, code=bool(place % 2)) for place, piece in enumerate(pieces))


def _piece(text: str, code: bool) -> str:
    if code:
        return text if text.startswith("`") else f"`{text}`"
    escaped = re.sub(r"([*_\[\]<>{}|])", r"\\\1", text)
    return _PAGE.sub(lambda page: f"[{_page_title(page[1])}](../{page[1]})", escaped)


def _page_title(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _options(text: str, level: str) -> str:
    return "".join(f"\n{level} {_title(box['title'])}\n\n{_list(box['rows'])}" for box in _BOX.finditer(text))


def _title(title: str) -> str:
    name = title.removesuffix(" options")
    return f"`{name}`" if "." in name else name.capitalize()


def _list(rows: str) -> str:
    intro, found = _split(rows)
    items = [f"`{option.name}`\n: {_inline(option.help)}{_default(option)}\n" for option in found]
    return "\n".join([*([_inline(intro) + "\n"] if intro else []), *items])


def _default(option: Option) -> str:
    return "" if option.default in (None, "", "None", "False") else f" Default: `{option.default}`."


def _split(rows: str) -> tuple[str, list[Option]]:
    """The introduction of a group, which a rule ends, and its options."""
    lines = [line.removeprefix("│ ").removesuffix("│").rstrip() for line in rows.splitlines()]
    rules = [place for place, line in enumerate(lines) if _RULE.match(line)]
    start = rules[0] + 1 if rules else 0
    return " ".join(lines[: max(start - 1, 0)]), list(_options_of(lines[start:]))


def _options_of(lines: list[str]) -> Iterator[Option]:
    """A line that is not indented begins an option; its help follows after two spaces, or on indented lines."""
    name, words = "", list[str]()
    for line in lines:
        if (match := _OPTION.match(line)) is None:
            words.append(line.strip())
            continue
        if name:
            yield _option(name, words)
        name, words = match["name"], [match["help"] or ""]
    if name:
        yield _option(name, words)


def _option(name: str, words: list[str]) -> Option:
    text = " ".join(word for word in words if word)
    found = _DEFAULT.match(text)
    return Option(name, found["help"], found["value"]) if found else Option(name, text, None)
