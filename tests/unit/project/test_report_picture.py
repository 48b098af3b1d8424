"""The picture of a report shows the page as it is today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ...modules import load_file

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def picture():
    return load_file(ROOT / "scripts" / "report_picture.py", "report_picture")


def test_the_picture_is_of_todays_page(picture):
    recorded = json.loads(picture.RECORD.read_text(encoding="utf-8"))
    assert recorded["shown"] == picture.digest(picture.page()), (
        "The page has changed: look at it and run `python scripts/report_picture.py`."
    )


def test_the_digest_notices_a_change(picture):
    html = picture.page()
    assert picture.digest(html.replace("Where the time went", "Where time went")) != (
        picture.digest(html)
    )
