"""Tell which lines after an edit took the place of which before it: lines that were rewritten, or
moved into another function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import msgspec

ALIKE = 0.7
"""difflib's ratio of the words of two lines from which one is the other, rewritten: one word of
four may differ.
"""
_WORD = re.compile(r"\w+|[^\w\s.,:()\[\]{}]+")
_ASSIGNED = re.compile(r"(return)\b|([\w.,\[\] ]+?) [-+*/@]?= ")


class LineEdit(msgspec.Struct, frozen=True):
    """Lines after an edit, `new`, and those whose place they took, `old`. `name` and `was` are the
    names of both; of several lines, their function with their numbers.
    """

    name: str
    was: str
    new: list[str]
    old: list[str]


def match_lines(before: Mapping[str, int], after: Mapping[str, int]) -> list[LineEdit]:
    """Return what was rewritten or moved between two versions, given as their lines with their
    numbers. Only what is sure is matched, each line once at most, and in order.

    Lines are called `file: function: source`. The same source in another function is the same line,
    if it is gone from one function only and new in one only. In a function, the lines that stay
    part it into stretches, and so do the most alike ones. What is left in a stretch is one edit, if
    both sides assign the same name or return. Lines that a new function has may be of any stretch,
    so that then only alike ones are matched. Without sources nothing is.
    """
    moved = dict(_moved(before.keys() - after.keys(), after.keys() - before.keys()))
    edits = [LineEdit(new, old, [new], [old]) for old, new in moved.items()]
    old_functions = _by_function(before, before.keys() - moved.keys())
    new_functions = _by_function(after, after.keys() - set(moved.values()))
    extended = {_file(each) for each in new_functions.keys() - _by_function(before, before)}
    for function, lines in new_functions.items():
        for old, new in _stretches(old_functions.get(function, []), lines):
            pair = len(old) == len(new) == 1 and _likeness(old[0], new[0]) >= ALIKE
            if pair or (_file(function) not in extended and _assigned(old) & _assigned(new)):
                edits.append(LineEdit(_name(new, after), _name(old, before), new, old))
    return edits


def split_line(name: str) -> tuple[str, str]:
    """Return where a line is, its file and function, and its source; "" where that is not known."""
    file, function, *source = name.split(": ", 2)
    return f"{file}: {function}", "".join(source)


def _moved(gone: set[str], new: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines that another function has since, each with its name there."""
    sources = [[split_line(name)[1] for name in side] for side in (gone, new)]
    counts = [Counter(each) for each in sources]
    places = dict(zip(sources[1], new, strict=True))
    for name, source in zip(gone, sources[0], strict=True):
        if source and counts[0][source] == counts[1][source] == 1:
            yield name, places[source]


def _by_function(numbers: Mapping[str, int], names: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines of each function with a source, in their order."""
    functions: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda each: (numbers[each], each)):
        function, source = split_line(name)
        if source:
            functions.setdefault(function, []).append(name)
    return functions


def _file(function: str) -> str:
    return function.partition(": ")[0]


def _stretches(before: list[str], after: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the lines of a function that are gone and those that are new, by stretch."""
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for _, first, last, new_first, new_last in matcher.get_opcodes():
        old = [name for name in before[first:last] if name not in after]
        new = [name for name in after[new_first:new_last] if name not in before]
        at = new_at = 0
        for i, j in [*_alike(old, new), (len(old), len(new))]:
            yield old[at:i], new[new_at:j]
            yield old[i : i + 1], new[j : j + 1]
            at, new_at = i + 1, j + 1


def _alike(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Return the positions of lines that are the same ones, rewritten, in order: each is more like
    the other than any else, and none of their pairs cross.
    """
    ratios = [[_likeness(a, b) for b in new] for a in old]
    pairs = []
    for i, row in enumerate(ratios):
        for j, ratio in enumerate(row):
            others = [*row[:j], *row[j + 1 :], *(each[j] for each in ratios if each is not row)]
            if ratio >= ALIKE and ratio > max(others, default=0.0):
                pairs.append((i, j))
    return [
        (i, j) for i, j in pairs if all((i - a) * (j - b) > 0 for a, b in pairs if (a, b) != (i, j))
    ]


def _likeness(old: str, new: str) -> float:
    """Return how alike the sources of two lines are (0-1)."""
    words, new_words = (_WORD.findall(split_line(name)[1]) for name in (old, new))
    return SequenceMatcher(None, words, new_words, autojunk=False).ratio()


def _assigned(names: Sequence[str]) -> set[str]:
    """Return the names that these lines assign, and "return" where one does."""
    matches = (_ASSIGNED.match(split_line(name)[1]) for name in names)
    return {match[1] or match[2] for match in matches if match}


def _name(lines: list[str], numbers: Mapping[str, int]) -> str:
    """Return the name of one line; of several, their function and numbers."""
    if len(lines) == 1:
        return lines[0]
    function, _ = split_line(lines[0])
    return f"{function}: lines {numbers[lines[0]]}–{numbers[lines[-1]]}"
