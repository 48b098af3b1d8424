"""Text for a terminal that shows nothing but ASCII."""

from __future__ import annotations

_ASCII = str.maketrans(
    {
        **dict.fromkeys("–—−·", "-"),
        **dict.fromkeys("µμ", "u"),  # the sign for micro and the Greek letter
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("‘’", "'"),
        "•": "*",
        "…": "...",
        "→": "->",
        "←": "<-",
        "×": "x",
        "≥": ">=",
        "≤": "<=",
        "≈": "~",
        "±": "+-",
    }
)


def to_ascii(text: str) -> str:
    """Return text with signs replaced by what looks like them, and other characters by "?"."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
