"""Words that every layer shares."""

from __future__ import annotations


def counted(count: int, noun: str, more: str = "") -> str:
    """Return a count with its noun: `1 hint`, `2 hints`; `more` where an `s` does not do."""
    return f"{count:,} {noun if count == 1 else more or f'{noun}s'}"
