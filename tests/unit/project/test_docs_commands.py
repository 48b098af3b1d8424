"""Every command that the documentation shows is run, or says in a comment before its block why it
is not; and all of them exist.

A block is fenced as ```console, its commands begin with `$ `. A comment right before it may say

    <!-- not run: REASON -->        it is not run here, and the reason is a real one
    <!-- slow -->                   it is run by `make slow`: it records or checks a lab
    <!-- goes on -->                it is run after the block before it, in the same shell
    <!-- exits: 1 -->               its last command ends with this status
"""

from __future__ import annotations

import ast
import html
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app

ROOT = Path(__file__).parents[3]
CAPTURES = ROOT / "datasets" / "captures"
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted([*DOCS.glob("*.md"), *DOCS.glob("authors/*.md")]),
]
BLOCK = re.compile(
    r"((?:^ *<!-- [^\n]* -->\n)*)\n?^( *)```console\n(.*?)^ *```$", re.DOTALL | re.MULTILINE
)
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
INSTALLERS = ("pip", "uv", "pipx", "make", "docker", "git", "apt-get")
"""Programs that a reader runs once and a test must not: what they install or build is tested
elsewhere (test_wheel.py, CI).
"""

TRAINING = """\
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Block:
    """One ```console block: its commands as a shell takes them, and what the comments before it
    say. `before`: the block that it goes on from.
    """

    page: Path
    commands: tuple[str, ...]
    not_run: str
    slow: bool
    status: int
    before: Block | None = None

    def script(self) -> str:
        """The commands of this block and of all that it goes on from. The status of a block's last
        command is what it says, and no other's but 0.
        """
        commands = [
            command
            for command in self.commands
            if shlex.split(command, comments=True)[0] not in INSTALLERS
        ]
        if not commands:
            return ""
        *first, last = commands
        expected = (
            f"{{ status=0; {last}\n}} || status=$?\n[ $status = {self.status} ]"
            if self.status
            else last
        )
        return "\n".join([self.before.script() if self.before else "set -e", *first, expected])

    def __str__(self) -> str:
        return f"{self.page.name}: {self.commands[0][:40]}"


def _commands(text: str) -> tuple[str, ...]:
    found: list[str] = []
    going_on = False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("$ "):
            found.append(stripped[2:])
        elif going_on:
            found[-1] += "\n" + line
        going_on = bool(found) and (found[-1].endswith("\\") or found[-1].count("'") % 2 == 1)
    return tuple(found)


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        for said, _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            reason = re.search(r"<!-- not run: (.*) -->", said)
            status = re.search(r"<!-- exits: (\d+) -->", said)
            commands = _commands(text)
            assert commands, f"{page.name}: a console block shows its commands after `$ `"
            before = _run_last(found, page) if "<!-- goes on -->" in said else None
            found.append(
                Block(
                    page,
                    commands,
                    reason[1] if reason else "",
                    bool(before and before.slow) or "<!-- slow -->" in said,
                    int(status[1]) if status else 0,
                    before,
                )
            )
    return found


def _run_last(found: list[Block], page: Path) -> Block:
    """The last block of the page that is run."""
    return next(block for block in reversed(found) if block.page == page and not block.not_run)


BLOCKS = _blocks()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory) -> Path:
    """A snapshot of a GPU's memory."""
    path = tmp_path_factory.mktemp("snapshot") / "memory.pickle"
    script = ROOT / "datasets" / "snapshots.py"
    subprocess.run([sys.executable, str(script), "--out", str(path), "--events", "300"], check=True)
    return path


@pytest.fixture
def reader(tmp_path, snapshot):
    """A folder as the pages assume it: a trace, a later one, a snapshot, a program, and `lab` on
    PATH.
    """
    shutil.copy(snapshot, tmp_path)
    for name, cause in (("trace", "input"), ("before", "input"), ("after", "healthy")):
        shutil.copy(CAPTURES / f"synthetic-{cause}.json.gz", tmp_path / f"{name}.json.gz")
    for side in ("before", "after"):  # folders of repeated captures
        (tmp_path / side).mkdir()
        for number in (1, 2):
            shutil.copy(tmp_path / f"{side}.json.gz", tmp_path / side / f"{number}.json.gz")
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "train.py").write_text(TRAINING)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    programs = tmp_path / ".bin"
    programs.mkdir()
    for name, module in (
        ("lab", "-m bottleneck_lab"),
        ("python", ""),
        ("torchrun", "-m torch.distributed.run"),
    ):
        (programs / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n'
        )
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BOTTLENECK_LAB_HOME": str(tmp_path / "home"),
    }
    return lambda command: subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,  # pytest ends a test that is not slow before that
        check=False,
    )


def _run(reader, block: Block) -> None:
    if not block.script():
        pytest.skip("it installs or builds")
    done = reader(block.script())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def _marked(blocks: list[Block]) -> list[object]:
    """A block that others go on from is run with the last of them."""
    earlier = {id(block.before) for block in blocks}
    return [pytest.param(block, id=str(block)) for block in blocks if id(block) not in earlier]


@pytest.mark.long
@pytest.mark.parametrize(
    "block", _marked([block for block in BLOCKS if not block.not_run and not block.slow])
)
def test_the_commands_of_a_block_run(reader, block):
    _run(reader, block)


@pytest.mark.slow
@pytest.mark.parametrize("block", _marked([block for block in BLOCKS if block.slow]))
def test_the_commands_of_a_slow_block_run(reader, block):
    _run(reader, block)


@cache
def _help(*words: str) -> str:
    """What the command says of itself; asked in this process, since most of a process's time would
    be its imports.
    """
    done = CliRunner().invoke(app, [*words, "--help"], terminal_width=200)
    assert done.exit_code == 0, f"lab {' '.join(words)}: {done.output}"
    return done.output


def _calls_of_lab() -> set[tuple[str, str]]:
    """(page, command) of each `lab …` in a console block, and of each in backquotes in running
    text.
    """
    found = {
        (block.page.name, one)
        for block in BLOCKS
        for command in block.commands
        for one in re.split(r" && | \| ", command)
    }
    for page in PAGES:
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        found |= {(page.name, one) for one in re.findall(r"`(lab [a-z][^`]*)`", text)}
    return {(page, one.strip()) for page, one in found if one.strip().startswith("lab ")}


def test_the_recorded_session_types_what_the_tutorial_does():
    """The README's picture is not run again: a command that is renamed must not live on in it."""
    drawn = html.unescape(
        (ROOT / "docs" / "images" / "session.svg").read_text(encoding="utf-8")
    ).replace("\xa0", " ")
    typed = [line.strip().removeprefix("$ ") for line in re.findall(r">(\$ lab [^<]*)<", drawn)]
    assert len(typed) >= 4
    tutorial = next(page for page in PAGES if page.name == "learners.md").read_text(
        encoding="utf-8"
    )
    # The picture leaves out the answers and options that the tutorial gives.
    assert not [line for line in typed if f"$ {line}" not in tutorial]
    assert "PASS" in drawn


@pytest.mark.parametrize("page", sorted({page for page, _ in _calls_of_lab()}))
def test_commands_that_a_page_names_exist_with_these_options(page):
    missing = []
    for call in sorted(call for each, call in _calls_of_lab() if each == page):
        words = shlex.split(call.partition(" -- ")[0], comments=True)[1:]
        if not words or words[0].startswith("-") or words[0].isupper():
            continue
        group = ["dev"] if words[0] == "dev" else ["cohort"] if words[0] == "cohort" else []
        named = words[: 1 + len(group)]
        if len(named) == len(group):
            continue
        help_text = _help(*named)
        options = [word for word in words if word.startswith("-") and len(word) > 1]
        missing += [
            f"lab {' '.join(named)} {option}"
            for option in options
            if option.partition("=")[0] not in help_text
        ]
    assert not missing


def test_commands_stand_in_blocks_that_are_run():
    """A `lab` command in another kind of fence would escape these tests."""
    for page in PAGES:
        for language, text in FENCED.findall(page.read_text(encoding="utf-8")):
            if language in ("", "sh", "bash", "shell"):
                assert not re.search(r"^\s*(?:\$ )?lab [a-z]", text, re.MULTILINE), (
                    f"{page.name}: use ```console\n{text}"
                )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_a_page_compiles_and_its_names_exist(page):
    import bottleneck_lab

    for language, text in FENCED.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module == "bottleneck_lab":
                    assert {name.name for name in node.names} <= set(bottleneck_lab.__all__), (
                        page.name
                    )


@pytest.mark.parametrize("page", ["analysis.md", "own-code.md"])
def test_python_of_the_pages_on_analysis_runs(reader, page):
    """One block after the other, in the folder that the commands are run in. A block that imports
    torch shows what a program does.
    """
    texts = [
        text
        for language, text in FENCED.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
        if language == "python"
    ]
    program = "\n".join(text for text in texts if "torch" not in text)
    done = reader(f"python - <<'END'\n{program}\nEND")
    assert done.returncode == 0, done.stderr
