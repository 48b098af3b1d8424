"""Answers as learners type them: after `-a`, or at the terminal."""

from __future__ import annotations

from typing import Any

import typer

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.commands.ui import say
from bottleneck_lab.grading.diagnosis import problem
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given

_MEANINGS = {
    "input-bound": "the next batch is not ready in time",
    "launch-bound": "the host starts work more slowly than the device finishes it",
    "synchronisation-bound": "the host waits for the device, and then the device for the host",
    "copy-bound": "work waits for copies between host and device",
    "communication-bound": "work waits for data from the other devices",
    "network-bound": "requests or replies are held up on the network",
    "straggler": "one rank takes longer, and the others wait for it",
    "memory-bound": (
        "the device's memory delivers data more slowly than the device could compute with it"
    ),
    "compute-bound": "the device computes all the time, or as fast as it can",
    "memory-growth": "every step leaves more memory allocated than the one before",
}
"""The usual names of causes, for those who meet them for the first time."""


def describe_choices(question: QuestionSpec) -> list[str]:
    """The choices, numbered; a usual name of a cause with its meaning, unless the question itself
    explains it.
    """
    told = [
        (
            choice
            if choice not in _MEANINGS or f"`{choice}`" in question.measure
            else f"{choice}: {_MEANINGS[choice]}"
        )
        for choice in question.choices
    ]
    return [f"{number}  {choice}" for number, choice in enumerate(told, 1)]


def parse_answers(
    questions: list[QuestionSpec], texts: list[str]
) -> tuple[dict[str, Answer], list[str]]:
    """The answers given as ID=VALUE, and one sentence for each that cannot be accepted."""
    by_id = {question.id: question for question in questions}
    given: dict[str, Answer] = {}
    wrong = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in by_id:
            wrong.append(
                f"'{text}' does not answer a question of this lab. Write ID=VALUE, where ID is one"
                f" of {', '.join(by_id) or 'none'}."
            )
            continue
        found = read_answer(by_id[key], value)
        complaint = problem(by_id[key], found)
        if complaint:
            wrong.append(f"{key}: {complaint}")
        else:
            given[key] = found
    return given, wrong


def read_answer(question: QuestionSpec, text: str) -> Answer:
    """What was typed, as the question needs it: a choice (by its number or how it begins), a
    number, or the text.
    """
    text = text.strip()
    if question.type == "choice":
        return _choice(question.choices, text)
    if question.type in ("share", "ratio", "number"):
        try:
            return (
                float(text[:-1]) / 100
                if question.type == "share" and text.endswith("%")
                else float(text)
            )
        except ValueError:
            return text
    return text


def _choice(choices: list[str], text: str) -> str:
    if text.isdecimal() and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1]
    begun = [choice for choice in choices if text and choice.casefold().startswith(text.casefold())]
    return begun[0] if len(begun) == 1 else text


def ask(question: QuestionSpec, known: Any) -> Answer:
    """Ask at the terminal until the answer has the right form."""
    say(f"\n{question.ask}", style="bold")
    if question.measure:
        say(question.measure, style="dim")
    for line in describe_choices(question):
        say(f"  {line}", hang=3)
    while True:
        answer = read_answer(
            question, str(typer.prompt(question.id, default=known if is_given(known) else None))
        )
        complaint = problem(question, answer)
        if complaint is None:
            return answer
        say(complaint, style="red")
