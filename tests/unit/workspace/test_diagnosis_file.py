"""Answers go into the learner's own `diagnosis.toml` without disturbing the rest of it."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.diagnosis_file import load_answers, with_answer

TEXT = """# What costs the time?
cause = ""  # one of: a, b

# How much of it?
share = 0.0
"""


def test_an_answer_replaces_its_line_and_leaves_the_rest():
    assert with_answer(TEXT, "cause", "a # b") == TEXT.replace('cause = ""', 'cause = "a # b"')
    assert with_answer(TEXT, "share", 0.6) == TEXT.replace("0.0", "0.6")


def test_a_new_answer_is_added():
    assert tomllib.loads(with_answer(TEXT, "gain", 2.5))["gain"] == 2.5
    assert with_answer("", "gain", 2.5) == "gain = 2.5\n"


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_is_answered_can_be_read_back(first, second, number):
    text = TEXT
    for key, value in (("cause", first), ("share", number), ("cause", second)):
        text = with_answer(text, key, value)
    assert tomllib.loads(text) == {"cause": second, "share": number}
    assert "# How much of it?" in text


def test_broken_toml_is_told_with_line_and_column(tmp_path):
    (tmp_path / "diagnosis.toml").write_text('cause = "a"\nshare = \n')
    with pytest.raises(UsageError, match="line 2, column 9"):
        load_answers(tmp_path)


def test_no_file_is_no_answers(tmp_path):
    assert load_answers(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 5000, "x = " + "1" * 5000, ".".join("a" * 40_000) + " = 1"],
    ids=["deep", "digits", "large"],
)
def test_what_would_break_or_stall_the_reader_is_a_usage_error(tmp_path, text):
    (tmp_path / "diagnosis.toml").write_text(text)
    with pytest.raises(UsageError):
        load_answers(tmp_path)
