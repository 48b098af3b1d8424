"""The table of commands in `cli.py`: in step with the commands, quick to start, and what the shell
completes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bottleneck_lab.capture.recording import Captured, CommandEnd
from bottleneck_lab.cli import SECTIONS, app, module_of
from bottleneck_lab.commands import profile
from bottleneck_lab.errors import ExitCode

from ..report import made_up_capture

MINI = Path(__file__).parents[2] / "integration" / "mini"
COMMANDS = {name: summary for section in SECTIONS.values() for name, summary in section.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_table_says_what_the_command_says(name):
    module = module_of(name)
    docstring = getattr(module, "command", module).__doc__
    assert " ".join(docstring.split("\n\n")[0].split()) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_value_is_and_not_its_type(name):
    lines = [[name, sub] for sub in getattr(module_of(name), "COMMANDS", [])] or [[name]]
    for line in lines:
        shown = CliRunner().invoke(app, [*line, "--help"]).output
        assert "Usage: " in shown
        assert not re.search(
            r"<(str|path|int|float|list|Path)\b|\b(TEXT|PATH|INTEGER|FLOAT)\b", shown
        )


def test_every_command_module_is_in_the_table():
    folder = Path(module_of("where").__file__).parent
    commands = {path.stem for path in folder.glob("*.py") if "\nEXAMPLE = " in path.read_text()}
    assert commands == {name for name in COMMANDS if name not in ("cohort", "dev")} - {"list"} | {
        "list_labs"
    }


def test_the_default_folder_of_a_capture_holds_in_a_lab_too():
    """Its captures lie in `.lab/captures`, others in `captures`."""
    shown = " ".join(CliRunner().invoke(app, ["profile", "--help"]).output.split())
    assert "the next NNNN-TOOL among the captures" in shown.replace("│ │ ", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["list"], ["list", "--json"]])
def test_quick_commands_load_nothing_slow(arguments, tmp_path):
    code = (
        "import sys\n"
        "from bottleneck_lab.cli import app\n"
        "try:\n    app(prog_name='lab')\n"
        "except SystemExit:\n    pass\n"
        "slow = {'torch', 'numpy', 'rich', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {slow}' if slow else 0)\n"
    )
    done = _python(["-c", code, *arguments], tmp_path)
    assert done.returncode == 0, done.stderr


class TestCompletion:
    def test_offers_commands(self, tmp_path):
        assert _complete("lab s", tmp_path) == ["start", "solution", "submit", "status"]

    def test_offers_labs(self, tmp_path):
        assert _complete("lab start s", tmp_path) == ["slow"]

    def test_offers_labs_to_authors(self, tmp_path):
        assert _complete("lab dev check w", tmp_path) == ["wrong"]

    @pytest.mark.parametrize("command", ["report", "compare"])
    def test_offers_captures_of_this_folder(self, command, tmp_path):
        for name in ("0001-torch", "0002-nsys", "0012-torch"):
            (tmp_path / "captures" / name).mkdir(parents=True)
        assert _complete(f"lab {command} 1", tmp_path) == ["1", "12"]

    def test_is_silent_without_labs(self, tmp_path):
        assert _complete("lab start ", tmp_path, BOTTLENECK_LAB_CONTENT=str(tmp_path)) == []

    def test_prints_the_script_to_install(self, tmp_path):
        named = {
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"
        }  # else it is for the shell that runs the tests
        done = _python(["-m", "bottleneck_lab", "--show-completion", "bash"], tmp_path, **named)
        assert "complete -o default -F" in done.stdout


def _complete(line: str, folder: Path, **environment: str) -> list[str]:
    """What bash is offered for the line so far."""
    words = line.split(" ")
    asked = {
        "_LAB_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        **environment,
    }
    done = _python(["-m", "bottleneck_lab"], folder, **asked)
    assert done.stderr == ""
    return done.stdout.split()


def _python(
    arguments: list[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    asked = {
        **os.environ,
        "BOTTLENECK_LAB_CONTENT": str(MINI),
        "BOTTLENECK_LAB_HOME": str(folder / "home"),
        **environment,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_question_left_unanswered_ends_as_an_interruption_and_says_so_once(monkeypatch):
    def leave() -> None:
        raise typer.Abort

    monkeypatch.setattr("bottleneck_lab.commands.doctor.command", leave)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Aborted" not in result.output


def test_a_program_of_ones_own_takes_no_device():
    words = ["profile", "-d", "virtual", "--", "python", "train.py"]
    refused = CliRunner().invoke(app, words).exception
    assert "--device is for a lab's own workload" in str(refused)


def test_nothing_comes_next_after_a_program_that_failed(capsys, tmp_path):
    for status in (1, 0):
        ended = CommandEnd(status, False, False, 1.0, "")
        timeline = made_up_capture.capture()
        profile._show(Captured([], "x", ended), timeline, "torch", tmp_path, json=False)
        assert ("Next: " in capsys.readouterr().out) == (status == 0)
