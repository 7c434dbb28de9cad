"""HTML without surprises: text is escaped unless it is `Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mnemo.report.svg import color_class, escape


class Markup(str):
    """Text that is HTML already."""


Child = object
"""Anything; what is not Markup is written as escaped text."""


def tag(name: str, *children: Child, **attributes: object) -> Markup:
    """An element; attribute names may end in an underscore (`class_`), other underscores become dashes."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    )


def dot(color: int) -> Markup:
    return tag("span", class_=f"dot {color_class(color)}", aria_hidden="true")


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Child]],
    numeric: frozenset[int] = frozenset(),
    css: str | None = None,
) -> Markup:
    """The first cell of a row is its heading; columns in `numeric` are flush right."""

    def align(column: int) -> str | None:
        return "n" if column in numeric else None

    head = tag("tr", *(tag("th", name, scope="col", class_=align(i)) for i, name in enumerate(headers)))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=align(i), data_label=headers[i]) for i, cell in enumerate(row[1:], 1)),
        )
        for row in rows
    ]
    return tag("table", tag("thead", head), tag("tbody", *body), class_=css)
