"""`diagnosis.toml`: reading the learner's answers, and writing one without disturbing the rest of
the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bottleneck_lab.declared import read_toml
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import write_bytes
from bottleneck_lab.workspace.folder import Workspace

Answer = str | float

MAX_BYTES = 1 << 16
"""Answers fill a page. This rules out what would take the parser minutes, such as a key of many
thousand parts.
"""


def load_answers(folder: Path) -> dict[str, Any]:
    """Return the answers in `folder/diagnosis.toml`; none when there is no such file.

    Raises UsageError naming line and column of broken TOML, or that the file is too large.
    """
    file = folder / "diagnosis.toml"
    if not file.exists():
        return {}
    if file.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{file} is larger than {MAX_BYTES >> 10} KiB.",
            "Answers are short; `lab reset` restores the original file.",
        )
    return read_toml(file)


def is_given(answer: object) -> bool:
    """Return True if an answer was given: questions are handed out with an empty text."""
    return answer is not None and (not isinstance(answer, str) or bool(answer.strip()))


def _toml(answer: Answer) -> str:
    if isinstance(answer, str):
        # A JSON string is a TOML basic string, once DEL is escaped, which JSON leaves bare.
        return json.dumps(answer, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(float(answer))


def with_answer(text: str, key: str, answer: Answer) -> str:
    """Return `text` with the line `key = …` replaced, keeping a comment at its end.

    A line `# key = …` that waits to be filled in is next best; without either, the answer is added
    at the end.
    """
    # The old value: a basic string, a literal string, or anything bare up to a comment.
    value = r'(?:"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[^#\n]*?)'
    for mark in ("", r"#[ \t]*"):
        line = re.compile(
            rf"^{mark}{re.escape(key)}[ \t]*=[ \t]*{value}([ \t]*(?:#[^\n]*)?)$", re.MULTILINE
        )
        if line.search(text):
            return line.sub(
                lambda match: f"{key} = {_toml(answer)}{match.group(1).rstrip()}", text, count=1
            )
    return f"{text.rstrip()}\n{key} = {_toml(answer)}\n".lstrip()


def save_answers(workspace: Workspace, answers: Mapping[str, Answer]) -> Path:
    """Write `answers` into the learner's `diagnosis.toml`, completely or not at all.

    Returns its path. Raises UsageError, and writes nothing, when the file is broken or written in
    a way that an answer cannot be put into.
    """
    file = workspace.root / "diagnosis.toml"
    expected = {**load_answers(workspace.root), **answers}
    with workspace.writing("lab diagnose"):
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for key, answer in answers.items():
            text = with_answer(text, key, answer)
        try:
            written = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            written = None
        # Read back before it is written: the line was replaced by a pattern, not by a parser.
        if written != expected:
            raise UsageError(
                f"`lab diagnose` cannot edit {file} as it is written.",
                "Write the answers into it by hand.",
            )
        write_bytes(file, text.encode(), scratch=workspace.state)
    return file
