"""A console of a given width and encoding that keeps what is drawn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def draw():
    """`draw(render, *arguments, width=80, encoding="utf-8")` → the text, as a terminal without
    colour shows it.
    """

    def drawn(render, *arguments, width=80, encoding="utf-8", **options):
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
        render(
            *arguments,
            Console(file=file, width=width, color_system=None, legacy_windows=False),
            **options,
        )
        file.flush()
        return raw.getvalue().decode(encoding)

    return drawn


@pytest.fixture
def golden():
    """`golden(name)` → the text that was read and found good; changed by hand, after looking."""
    return lambda name: (GOLDEN / name).read_text(encoding="utf-8")
