"""Check that nothing which learners read before naming the cause gives it away."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.lab_rules.declarations import asked_by_kind, at
from bottleneck_lab.workspace.diagnosis_file import load_answers

ANNOUNCED = ("on purpose", "deliberately", "the bottleneck is", "inefficient", "wasteful")
"""Phrases that nobody writes next to code they think is fine."""


def spoilers(lab: Lab) -> Iterator[str]:
    """Check that title, brief, hints, names and comments say nothing of the cause."""
    names = _names_of_the_cause(lab)
    texts = {
        at(lab, "title"): lab.spec.title,
        at(lab, "symptom"): lab.spec.symptom,
        f"{lab.path / 'README.md'}": _read(lab.path / "README.md"),
        **{at(lab, "hints", number): hint.text for number, hint in enumerate(lab.spec.hints)},
        at(lab, "files"): " ".join([lab.slug, *lab.spec.files]),
    }
    for where, text in texts.items():
        yield from (f"{where} names the cause: '{name}'." for name in names if _says(text, name))
    # In Python only what is for readers counts: names, comments and docstrings, not the words of a
    # message.
    for path in (lab.path / file for file in lab.spec.files if file.endswith(".py")):
        for line, text in _for_readers(_read(path)):
            yield from (
                f"{path}, line {line} tells the cause: '{name}'."
                for name in (*names, *ANNOUNCED)
                if _says(text, name)
            )


def _names_of_the_cause(lab: Lab) -> list[str]:
    """Return the finding that the lab teaches, and the right choices of its questions where they
    are words rather than sentences.
    """
    try:
        solved = load_answers(lab.solution)
    except LabError:
        solved = {}
    judged = asked_by_kind(lab)  # what a kind measures is not a cause
    questions = [
        question
        for question in lab.spec.questions
        if question.type == "choice" and question.id not in judged
    ]
    right = [choice for question in questions if isinstance(choice := solved.get(question.id), str)]
    return sorted(cause for cause in {lab.spec.taught, *right} if cause and len(cause.split()) <= 2)


def _for_readers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the names, comments and docstrings of Python code, each with its line."""
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):  # another rule reports it
        return
    yield from (
        (token.start[0], token.string)
        for token in tokens
        if token.type in (tokenize.COMMENT, tokenize.NAME)
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            docstring := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), docstring


def _says(text: str, name: str) -> bool:
    """Return True if the words of `name` stand in the text one after another, however they are
    joined.
    """
    words = re.split(r"[\W_]+", name)
    return (
        re.search(
            r"(?<![^\W_])" + r"[\W_]+".join(map(re.escape, words)) + r"(?![^\W_])",
            text,
            re.IGNORECASE,
        )
        is not None
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # another rule reports a missing file
        return ""
