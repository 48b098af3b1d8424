"""Words that every layer shares."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, more: str = "") -> str:
    """Return a count with its noun: `1 hint`, `2 hints`; `more` where an `s` does not do."""
    return f"{count:,} {noun if count == 1 else more or f'{noun}s'}"


def list_files(files: Sequence[str]) -> str:
    """Return one or two names of files in full; of more, the first one's and how many others."""
    first, *others = files
    return " and ".join(files) if len(others) < 2 else f"{first} and {len(others)} more files"


def list_numbers(numbers: Sequence[int]) -> str:
    """Return rising numbers, three or more in a row as a range: `0, 2-5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(text for part in parts for text in part)


def spell_duration(seconds: float) -> str:
    """Return whole seconds (s) in days, hours, minutes and seconds: `2 min 53 s`, `1 d 12 h`."""
    left, parts = int(seconds), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts)
