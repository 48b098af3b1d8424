"""Lines of a program that called one another, as one text: so a trace of the virtual GPU names who
allocated what.
"""

from __future__ import annotations

from collections.abc import Sequence

_CALLED_AT = " < "


def join_lines(lines: Sequence[str]) -> str:
    """Return the text for these lines, the innermost first."""
    return _CALLED_AT.join(lines)


def split_lines(text: str) -> tuple[str, ...]:
    """Return the lines of a text, the innermost first; a text without callers is one line."""
    return tuple(text.split(_CALLED_AT))
