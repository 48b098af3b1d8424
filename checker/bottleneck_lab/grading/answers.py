"""The form of answers: typed after `-a` or at the terminal, graded, and printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from bottleneck_lab.analysis.selection import parse_stretch
from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.grading.causes import MEANINGS

_TYPED_FORMS = {"share": "60% or 0.6", "ratio": "2.5 or 2.5x"}
"""How a number that may have a unit is given to a command, by the type of its question."""


def question_about(question: QuestionSpec, answers: Mapping[str, Any]) -> QuestionSpec:
    """Return a question as it is asked of somebody who has given `answers`: the rule for the choice
    that it follows stands in place of `measure`, which is about every choice.
    """
    if question.follows is None or question.type == "choice":  # a choice's rules are its own
        return question
    rule = question.rules.get(str(answers.get(question.follows)))
    return msgspec.structs.replace(question, measure=rule) if rule else question


def describe_choices(question: QuestionSpec) -> list[str]:
    """Return the choices, numbered; those of a number are words that may stand in its place.

    The usual name of a cause comes with its meaning, unless the question itself explains it.
    """
    if question.type == "number":
        return [f"A number, or `{choice}`." for choice in question.choices]
    lines = []
    for number, choice in enumerate(question.choices, 1):
        line = f"{number}  {choice}"
        if choice in MEANINGS and f"`{choice}`" not in question.measure:
            line += f": {MEANINGS[choice]}"
        lines.append(line)
    return lines


def parse_answers(
    questions: list[QuestionSpec], texts: list[str]
) -> tuple[dict[str, str | float], list[str]]:
    """Return the answers given as ID=VALUE, and one sentence for each that cannot be accepted."""
    by_id = {question.id: question for question in questions}
    answers: dict[str, str | float] = {}
    wrong = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in by_id:
            wrong.append(
                f"'{text}' does not answer a question here. Write ID=VALUE, where ID is one"
                f" of {', '.join(by_id) or 'none'}."
            )
            continue
        answer = read_answer(by_id[key], value)
        complaint = form_problem(by_id[key], answer, typed=True)
        if complaint:
            help_ = f" {by_id[key].measure}" if by_id[key].form else ""
            wrong.append(f"{key}: {complaint}{help_}".rstrip())
        else:
            answers[key] = answer
    return answers, wrong


def read_answer(question: QuestionSpec, text: str) -> str | float:
    """Return typed text in the form that the question needs: a choice, a number, or the text.

    A choice may be given by its number or how it begins, a share as a percentage, a ratio with an
    x, both with a decimal comma. The choices of a `number` are words that stand for 1 and up. A
    stretch without a unit is in ms. Text that fits none is returned as it is, for the complaint.
    """
    text = text.strip()
    if question.type == "choice":
        if text.isdecimal() and 1 <= int(text) <= len(question.choices):
            return question.choices[int(text) - 1]
        begun = _begun_by(question, text)
        return begun[0] if len(begun) == 1 else text
    if question.type in ("share", "ratio", "number"):
        unit = {"share": "%", "ratio": "x"}.get(question.type, "")
        # Of a number at large a comma might group thousands.
        digits = text.removesuffix(unit).replace(",", "." if unit else ",")
        try:
            number = float(digits)
            # 23.2% is 0.232, as it is written to a file and read again, not 0.23199999999999998.
            return round(number / 100, 15) if text.endswith("%") else number
        except ValueError:
            words = [each.casefold() for each in question.choices]
            return words.index(text.casefold()) + 1.0 if text.casefold() in words else text
    if question.type == "interval" and parse_stretch(text) and text[-1].isdigit():
        return f"{text} ms"
    return text


def _begun_by(question: QuestionSpec, text: str) -> list[str]:
    """Return the choices that begin with a text, whatever its case."""
    folded = text.casefold()
    return [each for each in question.choices if text and each.casefold().startswith(folded)]


def form_problem(question: QuestionSpec, answer: object, *, typed: bool = False) -> str | None:
    """Return what is wrong with the form of an answer, as one sentence; None when it can be
    graded. `typed`: it was given to a command, and does not stand in a file.
    """
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return "Not answered yet: `lab diagnose` asks for it."
    fault = None
    if question.type == "choice":
        begun = _begun_by(question, str(answer))
        if answer not in question.choices and len(begun) > 1:
            fault = f"'{answer}' fits {', '.join(begun[:-1])} and {begun[-1]}."
        elif answer not in question.choices:
            choices = "".join(
                f"\n  {n}  {each}" for n, each in enumerate(question.choices, start=1)
            )
            fault = f"'{answer}' is not one of the choices:{choices}"
    elif question.type == "text":
        if not isinstance(answer, str):
            fault = "Write a text, in quotes."
        elif question.form and not re.search(question.form, answer.strip(), re.IGNORECASE):
            fault = f"'{answer}' is not in the form of an answer here."
    elif question.type == "interval":
        if not isinstance(answer, str) or not parse_stretch(answer):
            fault = "Give a stretch of your capture as start and end, such as 12.5-14.0 ms."
    else:
        fault = _number_problem(question, answer, typed=typed)
    return fault


def form_problems(questions: list[QuestionSpec], answers: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with the form of the answers, by question."""
    # Only the form: whether an answer is right is told by a check, not while it is typed.
    faults = {
        question.id: form_problem(question, answers.get(question.id)) for question in questions
    }
    return {id_: fault for id_, fault in faults.items() if fault}


def _number_problem(question: QuestionSpec, answer: object, *, typed: bool) -> str | None:
    words = "".join(f" or {word}" for word in question.choices)
    # TOML has `true`, `inf` and `nan`; Python counts a bool as an int, and nan compares as False.
    if (
        isinstance(answer, bool)
        or not isinstance(answer, int | float)
        or not abs(answer) <= sys.float_info.max
    ):
        if typed and question.type in _TYPED_FORMS:
            return f"Write {_TYPED_FORMS[question.type]}, not '{answer}'."
        return f"Write a plain number{words}, without quotes or units."
    if question.type == "share" and not 0 <= answer <= 1:
        # Who writes 28 means 28%; what is no percentage either is answered by an example.
        percent = answer if 1 < answer <= 100 else 60
        share, part = f"{percent:g}%", f"{round(percent / 100, 15):g}"
        form = f"{share} or {part}" if typed else f"{part} for {share} (`lab diagnose` takes both)"
        return f"A share runs from 0 to 1: write {form}, not {answer:g}."
    if question.type == "ratio" and answer < 1:
        return f"A factor is at least 1: write 2.5 for two and a half times, not {answer:g}."
    if question.type == "number" and answer <= 0:
        return f"Write a number above 0{words}, not {answer:g}."
    return None


def format_answer(question: QuestionSpec, answer: Any) -> str:
    """Return an answer formatted for reading: `60%`, `2.50x`, `0.528`, or the text."""
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return str(answer)
    if question.type == "number":
        return f"{answer:.3g}"
    if question.type == "ratio":
        return f"{answer:.2f}x"
    return f"{100 * answer:.3g}%"
