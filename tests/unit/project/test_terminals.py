"""The terminals that people have: without colour, narrow, without Unicode, none at all, and one
that is read aloud.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from bottleneck_lab.commands.plain import PlainLines, plain_line

from ... import warm

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
BEFORE, AFTER = (str(CAPTURES / f"synthetic-{name}.json.gz") for name in ("input", "healthy"))
COMMANDS = {
    "help": ["--help"],
    "list": ["list"],
    "start": ["start", "no-such-lab"],
    "report": ["report", BEFORE],
    "compare": ["compare", BEFORE, AFTER],
}
NOT_OURS = (
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "TERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
)
ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3|9)[0-7]m")
pytestmark = pytest.mark.long


@pytest.fixture(params=COMMANDS)
def command(request):
    return COMMANDS[request.param]


@pytest.fixture
def environment(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    return {**kept, "TERM": "xterm-256color", "BOTTLENECK_LAB_HOME": str(tmp_path)}


def piped(command: list[str], environment: dict[str, str]) -> str:
    """What it prints where nobody looks."""
    done = warm.lab(*command, at=Path.cwd(), environment=environment)
    assert done.returncode == (2 if "no-such-lab" in command else 0), done.stderr
    return done.stdout + done.stderr


def at_terminal(command: list[str], environment: dict[str, str], columns: int = 80) -> str:
    """What it shows on a terminal of so many columns."""
    _, shown = warm.lab_at_terminal(
        *command, at=Path.cwd(), environment=environment, columns=columns
    )
    return shown.replace("\r\n", "\n")


def width(line: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in line
    )


def test_there_is_colour_where_it_is_wanted(environment):
    assert COLOUR.search(at_terminal(COMMANDS["compare"], environment))


@pytest.mark.parametrize("asked", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_without_colour(command, environment, asked):
    assert not COLOUR.search(at_terminal(command, environment | asked))


def test_in_sixty_columns(command, environment):
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", at_terminal(command, environment, columns=60))
    assert [
        line for line in shown.splitlines() if width(line) > 60 and "/" not in line
    ] == []  # paths stay whole


def test_in_ascii(command, environment):
    c = {
        "LANG": "C",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(
        [sys.executable, "-m", "bottleneck_lab", *command],
        env=environment | c,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == (2 if "no-such-lab" in command else 0), done.stderr
    assert (done.stdout + done.stderr).isascii()


def test_without_a_terminal(command, environment):
    text = piped(command, environment)
    assert text
    assert ESCAPE not in text
    assert "\r" not in text


def test_read_aloud(command, environment):
    text = at_terminal(command, environment | {"BOTTLENECK_LAB_PLAIN": "1"})
    assert text.strip()
    assert ESCAPE not in text
    assert not re.search("[─-▟✓✗•→]|  ", text)


def test_read_aloud_json_is_as_always(environment):
    command = ["list", "--json"]
    assert piped(command, environment | {"BOTTLENECK_LAB_PLAIN": "1"}) == piped(
        command, environment
    )


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("━━━━━━━━━━", None),
        ("", ""),
        ("  idle: input   ███░░░   64.4%", "idle: input 64.4%"),
        (" ✓ PASS   all criteria are met", "ok: PASS all criteria are met"),
        ("→ Run `lab start`.", "Then: Run `lab start`."),
        ("64.4% → 8.4%", "64.4% to 8.4%"),
        ("a == b", "a == b"),
    ],
)
def test_a_line_read_aloud(line, plain):
    assert plain_line(line) == plain


def test_a_question_is_shown_before_its_answer(capsys):
    stream = PlainLines(sys.stdout)
    stream.write("✗ wrong\nWhich one?  ")
    stream.flush()
    assert capsys.readouterr().out == "not ok: wrong\nWhich one? "
