"""A verdict as Markdown, to the letter; and text of others that stays text."""

from __future__ import annotations

import re

from bottleneck_lab.report.markdown import render_verdict

from . import made_up


def test_verdict(golden):
    assert render_verdict(made_up.slow()) == golden("verdict-slow.md")


def test_hostile_text_stays_text():
    text = render_verdict(made_up.hostile())
    assert "<script" not in text
    assert not re.search(r"(?<!\\)[`\[\]]", text), "no code, no links"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}, (
        "no cell breaks out of the table"
    )
