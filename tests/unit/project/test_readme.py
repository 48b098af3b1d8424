"""The README: one screen, and in step with the course."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_lists_the_labs_of_the_course():
    assert runpy.run_path(str(ROOT / "scripts" / "readme.py"))["readme"]() == README, (
        "run `python scripts/readme.py --write`"
    )


def test_it_fits_on_a_screen():
    assert len(README.splitlines()) <= 60
