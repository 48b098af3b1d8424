"""Answers as learners type them: after `-a`, or at the terminal."""

from __future__ import annotations

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.grading.diagnosis import problem

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
    "host-bound": "the host does something else in the loop: files, compiling, Python",
    "allocation-bound": "memory is taken from the driver again and again",
    "shared-device": "another program uses the device at the same time",
    "healthy": "nothing in the program is worth fixing",
    "memory-growth": "every step leaves more memory allocated than the one before",
}
"""The usual names of causes, for those who meet them for the first time."""


def describe_choices(question: QuestionSpec) -> list[str]:
    """Return the choices, numbered.

    The usual name of a cause comes with its meaning, unless the question itself explains it.
    """
    lines = []
    for number, choice in enumerate(question.choices, 1):
        line = f"{number}  {choice}"
        if choice in _MEANINGS and f"`{choice}`" not in question.measure:
            line += f": {_MEANINGS[choice]}"
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
                f"'{text}' does not answer a question of this lab. Write ID=VALUE, where ID is one"
                f" of {', '.join(by_id) or 'none'}."
            )
            continue
        answer = read_answer(by_id[key], value)
        complaint = problem(by_id[key], answer)
        if complaint:
            wrong.append(f"{key}: {complaint}")
        else:
            answers[key] = answer
    return answers, wrong


def read_answer(question: QuestionSpec, text: str) -> str | float:
    """Return typed text in the form that the question needs: a choice, a number, or the text.

    A choice may be given by its number or how it begins, a share as a percentage, a ratio with an
    x. Text that fits
    none is returned as it is, for the complaint about it.
    """
    text = text.strip()
    if question.type == "choice":
        if text.isdecimal() and 1 <= int(text) <= len(question.choices):
            return question.choices[int(text) - 1]
        folded = text.casefold()
        begun = [choice for choice in question.choices if choice.casefold().startswith(folded)]
        return begun[0] if text and len(begun) == 1 else text
    if question.type in ("share", "ratio", "number"):
        unit = {"share": "%", "ratio": "x"}.get(question.type, "")
        try:
            number = float(text.removesuffix(unit))
            # 23.2% is 0.232, as it is written to a file and read again, not 0.23199999999999998.
            return round(number / 100, 15) if text.endswith("%") else number
        except ValueError:
            return text
    return text
