"""Words that every layer shares."""

from __future__ import annotations


def counted(count: int, noun: str, more: str = "") -> str:
    """Return a count with its noun: `1 hint`, `2 hints`; `more` where an `s` does not do."""
    return f"{count:,} {noun if count == 1 else more or f'{noun}s'}"


def spell_duration(seconds: float) -> str:
    """Return whole seconds (s) in days, hours, minutes and seconds: `2 min 53 s`, `1 d 12 h`."""
    left, parts = int(seconds), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts)
