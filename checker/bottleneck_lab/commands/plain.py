"""Output as plain lines for a screen reader: no bars, rules, boxes, columns, colour or redrawing,
and marks as words.
"""

from __future__ import annotations

import re
from typing import Any, TextIO

_DRAWN = re.compile("[─-▟]+|={4,}")  # box drawing and block elements
_MARKS = {
    "✓": "ok:",
    "✗": "not ok:",
    "?": "undecided:",
    "–": "",
    "•": "",
    "…": "begun:",
    "→": "Then:",
}
"""Signs that begin a line, with the word to read instead. What a dash stands before says it."""

_INSIDE = {" → ": " to ", " · ": ", ", " ✓": " ok", " ✗": " not ok"}


def plain_line(line: str) -> str | None:
    """Return `line` in a form that reads well aloud; None if nothing is left."""
    text = " ".join(_DRAWN.sub(" ", line).split())
    if not text:
        return None if line.strip() else ""
    first, _, rest = text.partition(" ")
    if first in _MARKS and rest:
        text = f"{_MARKS[first]} {rest}".strip()
    for sign, word in _INSIDE.items():
        text = text.replace(sign, word)
    return text


class PlainLines:
    """A text stream that passes each line through `plain_line` to another. It is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        """Write text; a line is passed on when it is complete."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            plain = plain_line(line)
            if plain is not None:
                self._stream.write(plain + "\n")
        return len(text)

    def flush(self) -> None:
        """Write an incomplete line too, such as a question."""
        begun, self._begun = self._begun, ""
        if begun.strip():
            self._stream.write((plain_line(begun) or "") + " ")
        self._stream.flush()

    def isatty(self) -> bool:
        """Return False: nothing is coloured, wrapped to a width, or drawn over."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
