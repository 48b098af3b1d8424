"""HTML in which text can only ever be text: whatever is not `Markup` is escaped when inserted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = {"meta", "input"}

# Elements in whose text `words between backticks` are set as code.
PROSE = {"p", "li", "td", "dd"}


class Markup(str):
    """HTML that this package wrote itself."""

    __slots__ = ()


class Section(Markup):
    """A part of the page that its navigation can jump to, by `anchor`."""

    anchor: str


def tag(
    name: str, *children: str | Iterable[str | None] | None, **attributes: str | float | bool | None
) -> Markup:
    """Return `<name attributes>children</name>`.

    Strings are escaped unless they are Markup; None is left out. Attribute names lose a trailing
    underscore (`class_`) and have `-` for `_`; True is an attribute without a value, False and None
    leave it out.
    """
    written = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    if name in PROSE:
        children = tuple(_with_code(child) for child in children)
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[str | Iterable[str | None] | None]) -> Markup:
    """Return the children one after the other, escaped where needed."""
    return Markup("".join(_text(child) for child in children))


def _with_code(
    child: str | Iterable[str | None] | None,
) -> str | Iterable[str | None] | None:
    """Set `words between backticks` as code, in text that is not markup yet."""
    if not isinstance(child, str) or isinstance(child, Markup):
        return child
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(child)))


def _text(child: str | Iterable[str | None] | None) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child)
    return join(child)


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:.4g}" if isinstance(value, float) else str(value))}"'


def table(
    head: list[str], rows: Iterable[Iterable[str]], *, caption: str, numeric: set[int] | None = None
) -> Markup:
    """Return a table with a caption; columns in `numeric` are set to the right."""
    numeric = numeric or set()

    def cells(kind: str, row: Iterable[str]) -> list[Markup]:
        return [
            tag(kind, cell, class_="number" if column in numeric else None)
            for column, cell in enumerate(row)
        ]

    body = [tag("tr", cells("td", row)) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", cells("th", head))),
            tag("tbody", body),
        ),
        class_="scroll",
    )
