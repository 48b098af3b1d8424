"""The README: short, in step with the course, and shown with pictures of what the program does."""

from __future__ import annotations

import html
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from bottleneck_lab.catalog import load_labs

from ...modules import load_file

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_lists_the_labs_of_the_course():
    assert runpy.run_path(str(ROOT / "scripts" / "readme.py"))["readme"]() == README, (
        "run `python scripts/readme.py --write`"
    )


def test_it_is_short():
    assert len(README.splitlines()) <= 80


def test_the_first_commands_install_and_show_a_real_report():
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert blocks[0] == "$ pip install bottleneck-lab\n$ lab report --example\n"
    assert "make demo" in blocks[2]


@pytest.mark.slow
def test_the_picture_of_the_session_is_what_the_program_says_now(tmp_path, monkeypatch):
    session = load_file(ROOT / "scripts" / "record_session.py", "record_session")
    drawn = words_of(session.PICTURE)
    monkeypatch.setattr(session, "PICTURE", tmp_path / "session.svg")
    session.main()
    assert words_of(session.PICTURE) == drawn, "run `python scripts/record_session.py`"


def words_of(picture: Path) -> list[str]:
    """Return the texts of a picture without ratios, and without how far off a prediction was: every
    check draws its own data, and a step of the fix is 1.90 or 1.92 times as fast.
    """
    texts = re.findall(r">([^<]*)</text>", picture.read_text(encoding="utf-8"))
    ratios = re.compile(r"[\d.]+x(:\W(close|right).*)?")
    return [ratios.sub("x", html.unescape(text)) for text in texts]


def test_the_picture_of_the_session_is_short_and_answers_nothing():
    drawn = (ROOT / "docs" / "images" / "session.svg").read_text(encoding="utf-8")
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])
    assert height <= 640
    text = html.unescape(drawn).replace("\xa0", " ")
    lab = load_labs()["stuttering-tagger"]
    answers = tomllib.loads((lab.solution / "diagnosis.toml").read_text("utf-8"))
    assert str(answers["cause"]) not in text
    assert not re.search(r"cause=|waits-per-interval|train\.py\(\d+\)", text)
