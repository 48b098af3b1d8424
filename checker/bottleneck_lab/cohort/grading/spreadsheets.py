"""CSV as spreadsheets read it: UTF-8 with its mark, and no cell that becomes a formula. The
apostrophe that keeps one from it is taken off again on reading.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

Cell = str | float | int | None

_STARTS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def harmless(cell: Cell) -> str:
    """Return the text of a cell that no spreadsheet takes for a formula. Numbers stay numbers."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4f}".rstrip("0").rstrip(".")
    if isinstance(cell, int):
        return str(cell)
    text = "".join(char for char in cell if char.isprintable())
    return f"'{text}" if _is_formula(text) else text


def original(text: str) -> str:
    """Return what `harmless` was given for this text of a cell."""
    return text[1:] if text.startswith("'") and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    """Return True for a formula, also behind apostrophes: one that was typed is kept so."""
    return text.lstrip("' ").startswith(_STARTS_FORMULA)


def write_csv(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> bytes:
    """Write a header and rows as CSV (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows([harmless(cell) for cell in row] for row in rows)
    # Excel takes a file without the byte order mark for the machine's own 8-bit encoding.
    return out.getvalue().encode("utf-8-sig")
