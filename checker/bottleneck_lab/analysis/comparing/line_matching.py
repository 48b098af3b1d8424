"""Tell which lines after an edit are those before it: rewritten, or moved into another function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from bottleneck_lab.analysis.steps.figures import Series

ALIKE = 0.6
"""difflib's ratio from which two texts are close, by its documentation."""
_ASSIGNED = re.compile(r"[\w.,\[\] ]+? [-+*/@]?= ")


def match_lines(before: Series, after: Series) -> dict[str, str]:
    """Return the lines that are only in `after`, each with the one only in `before` that it was; a
    line is matched once at most.

    Lines are called `file: function: source`. The same source in another function is the same line.
    So are, of others in one function, the most alike ones, and then those that assign the same
    names. Without sources nothing is matched.
    """
    lines = [{name for group, name in side if group == "line"} for side in (before, after)]
    removed, added = sorted(lines[0] - lines[1]), sorted(lines[1] - lines[0])
    was: dict[str, str] = {}
    for _, old, new in sorted(_alike(removed, added), key=lambda pair: -pair[0]):
        if new not in was and old not in was.values():
            was[new] = old
    return was


def split_line(name: str) -> tuple[str, str]:
    """Return where a line is, its file and function, and its source; "" where that is not known."""
    file, function, *source = name.split(": ", 2)
    return f"{file}: {function}", "".join(source)


def _alike(removed: list[str], added: list[str]) -> Iterator[tuple[float, str, str]]:
    """Yield pairs of lines that may be the same one, with how alike their sources are (0-1)."""
    for old in removed:
        where, source = split_line(old)
        for new in added:
            new_where, new_source = split_line(new)
            if not source or not new_source:
                continue
            ratio = SequenceMatcher(None, source, new_source, autojunk=False).ratio()
            assigned, newly = _ASSIGNED.match(source), _ASSIGNED.match(new_source)
            same_names = assigned and newly and assigned[0] == newly[0]
            if ratio == 1 or (where == new_where and (ratio >= ALIKE or same_names)):
                yield ratio, old, new
