"""Tables in Markdown, and the parts of a page that are generated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def row(cells: Iterable[object]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(names: Sequence[str]) -> str:
    """Return what stands above the rows of a table."""
    return f"{row(names)}\n{row(['---'] * len(names))}"


def table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a whole table."""
    return "\n".join([head(names), *map(row, rows)])


def renew(page: str, mark: str, text: str) -> str:
    """Return a page with `text` between `<!-- MARK: begin -->` and `<!-- MARK: end -->`.

    Raises ValueError for a page without them.
    """
    marks = re.compile(rf"(<!-- {mark}: begin -->\n).*?(<!-- {mark}: end -->)", re.DOTALL)
    renewed, count = marks.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page)
    if not count:
        raise ValueError(f"the page has no marks of '{mark}'")
    return renewed
