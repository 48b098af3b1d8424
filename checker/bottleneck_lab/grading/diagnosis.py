"""Grading a learner's diagnosis: the cause, the evidence measured in a capture, and the gain
expected from a fix.

Pure: answers, the solution's answers and the learner's capture go in, criteria come out. The
sentence about a wrong answer names the rule that it breaks, never the right answer: the question is
still open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling, describe_misfit, is_ceiling
from bottleneck_lab.analysis.causes import CAUSES
from bottleneck_lab.analysis.selection import parse_stretch
from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.grading.answers import form_problem, format_answer, question_about
from bottleneck_lab.grading.causes import SIGNS_OF
from bottleneck_lab.grading.figures import CaptureFigures
from bottleneck_lab.grading.verdict import CriterionResult, Graded, Prediction

LEAST_STRETCH, MOST_STRETCH = 0.002, 0.1
"""A stretch shorter than this share of the capture shows nothing that a reader could see; a longer
one points at nothing. A single gap may be shorter or longer: `lab report --gap 1` is an answer.
"""

ROUNDING = 0.01
"""Shares are read to a percent: closer ones are the same answer, however small they are."""

NEAR = 0.02
"""A share this close to another figure of the capture is taken to be that one."""

BEYOND_AMDAHL = 1.1
"""A prediction may be rounded up by this much before Amdahl's law speaks against it."""

_OTHER_FIGURES = {
    "idle_share": "all of the device's idle time, whatever it waited for",
    "busy_share": "the share in which the device is busy",
    "compute_share": "the share in which the device computes",
    "communication_share": "all communication, hidden behind computation or not",
    "exposed_communication_share": "communication with no computation in parallel",
    "copy_share": "all copies, hidden behind computation or not",
    "overlap_share": "the share of the communication that is hidden",
    "top_operator_share": "the largest operator's share of all operators' own time",
    "idle_line_share": "only the device's idle time while the host is on that line",
    "host_wait_share": "all of the host's waiting, on whatever line",
    **{f"idle_{cause}_share": "only the device's idle time of one cause" for cause in CAUSES},
}

_HELD_BY = {
    "idle_": "idle_share",
    "exposed_communication_": "communication_share",
    "exposed_copy_": "copy_share",
}
"""The figure that a report prints in large, of which one that begins so is only a part."""

_CORRECTED = "It was wrong in your first diagnosis, which is the one that counts."
RESTED_ON_WRONG_CAUSE = (
    "It was not judged in your first diagnosis, which is the one that counts: the cause was wrong."
)
"""Of an answer that is judged by the cause beside it, which was corrected."""


def grade_diagnosis(
    questions: list[QuestionSpec],
    answers: Mapping[str, Any],
    solution: Mapping[str, Any],
    seen: CaptureFigures | None,
    first: Mapping[str, Any] | None = None,
) -> Graded:
    """Return one result for each question that is judged, and the prediction.

    `solution` holds the right choices; `seen` is the learner's own capture, None without one. A
    number that is asked for without `from_capture`, and a choice that the solution does not answer,
    only has to be given. A prediction has no result, unless it is no number: the measured gain is
    shown beside it. `first` are the answers that were committed first: a right answer in place of a
    wrong one is marked as corrected, and so is another prediction.
    """
    graded = _grade_all(questions, answers, solution, seen)
    at_first = graded if first is None else _grade_all(questions, first, solution, seen)
    results = []
    for question in questions:
        result = graded[question.id]
        if question.predicts_gain and result.holds:
            continue
        if result.holds and not at_first[question.id].holds:
            rested = at_first[question.id].sentence == _rests_on(question)
            why = RESTED_ON_WRONG_CAUSE if rested else _CORRECTED
            result = msgspec.structs.replace(
                result, sentence=f"{result.sentence} {why}", corrected=True
            )
        results.append(result)
    latest = _prediction(questions, answers)
    earliest = None if first is None else _prediction(questions, first)
    if latest is None or earliest is None or latest == earliest:
        return Graded(results, latest)
    return Graded(results, Prediction(earliest.predicted, None, corrected=latest.predicted))


def _grade_all(
    questions: list[QuestionSpec],
    answers: Mapping[str, Any],
    solution: Mapping[str, Any],
    seen: CaptureFigures | None,
) -> dict[str, CriterionResult]:
    """Return the result of each question by its id. What is about a wrong choice is wrong with it:
    another cause's figure is no evidence.
    """
    results: dict[str, CriterionResult] = {}
    for question in (question_about(each, answers) for each in questions):
        answer = answers.get(question.id)
        result = _grade(question, answers, solution.get(question.id), seen)
        choice = results.get(question.follows or "")
        if choice is not None and not choice.holds and not form_problem(question, answer):
            result = msgspec.structs.replace(result, holds=False, sentence=_rests_on(question))
        results[question.id] = result
    return results


def _rests_on(question: QuestionSpec) -> str:
    """Return the sentence about an answer whose choice is wrong."""
    return f"{question.id}: not judged, because your `{question.follows}` is wrong."


def needs_capture(questions: list[QuestionSpec]) -> bool:
    """Return True if any answer is checked against the learner's own capture."""
    return any(question.reads_capture for question in questions)


def _grade(
    question: QuestionSpec, answers: Mapping[str, Any], right: object, seen: CaptureFigures | None
) -> CriterionResult:
    answer = answers.get(question.id)
    malformed = form_problem(question, answer)
    wrong = malformed or _broken_rule(question, answers, right, seen)
    number = float(answer) if isinstance(answer, int | float) and not malformed else None
    return CriterionResult(
        id=question.id,
        kind="diagnosis",
        holds=wrong is None,
        sentence=f"{question.id}: {wrong or _right_answer(question, answer, seen)}",
        value=number,
    )


def _broken_rule(
    question: QuestionSpec, answers: Mapping[str, Any], right: object, seen: CaptureFigures | None
) -> str | None:
    """Return the rule that a well-formed answer breaks, as one sentence; None when it breaks
    none.
    """
    answer: Any = answers[question.id]
    broken = None
    if question.type == "choice":
        if right is not None and answer != right:
            broken = _wrong_choice(question, answer)
    elif question.type == "text":
        if not question.accepts(answer):
            broken = f"That is not what the question asks for. {question.measure}".rstrip()
    elif question.type == "interval" and question.shows:
        broken = _stretch_problem(question, answer, seen)
    elif question.from_capture:
        broken = _figure_problem(question, float(answer), seen)
    elif (
        question.by_solution
        and isinstance(right, int | float)
        and not _agrees(question, float(answer), float(right))
    ):
        broken = f"Work it out again. {question.measure}".rstrip()
    return broken


def _wrong_choice(question: QuestionSpec, answer: str) -> str:
    """Return what a capture would have to show for a wrong choice: the lab's own words, or the
    common ones.
    """
    if answer in question.rules:
        return f"'{answer}' does not fit. {question.rules[answer]}"
    if answer in SIGNS_OF:
        return f"'{answer}' does not fit: it would show as {SIGNS_OF[answer]}."
    return f"'{answer}' does not fit what the capture shows. {question.measure}".rstrip()


def stretch_rule(question: QuestionSpec, seen: CaptureFigures | None) -> str:
    """Return how long a stretch may be, in ms of the capture if there is one, and how much of it
    has to be what the question asks for.
    """
    length = f"of {LEAST_STRETCH:.1%} to {MOST_STRETCH:.0%} of the capture"
    if seen is not None:
        least, most = (_format_ms(share * seen.span_ns) for share in (LEAST_STRETCH, MOST_STRETCH))
        length = f"that is {least} to {most} ms long"
    return (
        f"Mark a stretch {length}. At least {question.least:.0%} of it must show what is asked for."
    )


def _format_ms(ns: float) -> str:
    """Return nanoseconds in ms, in three digits and never as a power of ten."""
    return f"{float(f'{ns / 1e6:.3g}'):,.12g}"


def misplaced_stretch(answer: str, seen: CaptureFigures) -> str | None:
    """Return why a stretch cannot be judged at all, whatever it shows: it lies outside the capture,
    is too short to see anything in, or too long to point at anything.
    """
    stretch = parse_stretch(answer)
    if stretch is None:
        return None
    # A thousandth for an end that was typed as the report rounds it.
    if stretch.end > seen.span_ns * 1.001:
        return "That stretch ends after your capture does: times count from the capture's start."
    # A gap as the report prints it, to a microsecond at either end.
    gap_ns = seen.longest_gap_ns
    least_ns = LEAST_STRETCH * seen.span_ns
    most_ns = max(MOST_STRETCH * seen.span_ns, gap_ns + 2_000)
    if gap_ns:
        least_ns = min(least_ns, max(gap_ns - 2_000, 0))
    # Half a percent for a limit that was typed as it is printed.
    if stretch.length < 0.995 * least_ns:
        return (
            f"That stretch is too short ({_format_ms(stretch.length)} ms): mark at least"
            f" {_format_ms(least_ns)} ms."
        )
    if stretch.length > 1.005 * most_ns:
        return (
            f"That stretch is too long ({_format_ms(stretch.length)} ms) to point at anything:"
            f" mark at most {_format_ms(most_ns)} ms."
        )
    return None


_EXAMPLE_STRETCH = re.compile(r"--at [\d.]+-[\d.]+ms")
_NO_CAPTURE = "You have no capture to check this against: `lab profile` makes one."


def _stretch_problem(
    question: QuestionSpec, answer: str, seen: CaptureFigures | None
) -> str | None:
    stretch = parse_stretch(answer)
    if seen is None or stretch is None or question.shows is None:
        return _NO_CAPTURE
    if misplaced := misplaced_stretch(answer, seen):
        return misplaced
    if seen.within(stretch).get(question.shows, 0.0) >= question.least:
        return None
    # The lab's example of a stretch would read as if it were the learner's.
    own = f"--at {stretch.start / 1e6:.9g}-{stretch.end / 1e6:.9g}ms"
    measure = _EXAMPLE_STRETCH.sub(own, question.measure)
    return (
        f"Less than {question.least:.0%} of that stretch is what the question asks for: trim it, or"
        f" mark another. {measure}".rstrip()
    )


def _figure_problem(
    question: QuestionSpec, answer: float, seen: CaptureFigures | None
) -> str | None:
    """Return why a number does not agree with the learner's capture; where it is another figure of
    it, which one.
    """
    figure = question.from_capture or ""
    if seen is None:
        return _NO_CAPTURE
    if figure not in seen.figures:
        return f"Your capture does not show `{figure}`: make another with `lab profile`."
    shown = seen.figures[figure]
    whole = next((name for part, name in _HELD_BY.items() if figure.startswith(part)), figure)
    other = seen.figures.get(whole, shown)
    # The total is printed in large, and its cause is not all of it: who copies it found nothing.
    is_total = abs(other - shown) > ROUNDING and abs(other - answer) < abs(shown - answer)
    if _agrees(question, answer, shown) and not is_total:
        return None
    # Telling which figure it is costs nothing: the right one still has to be found. 9.0 is near no
    # share, and so stands for a figure that the capture does not have.
    near = (
        f"That is {words}; the question asks for a different figure."
        for name, words in _OTHER_FIGURES.items()
        if question.type == "share"
        and name != figure
        and abs(seen.figures.get(name, 9.0) - answer) <= NEAR
    )
    return f"{next(near, 'The capture shows a different figure.')} {question.measure}".rstrip()


def beyond_ceiling(question: QuestionSpec, answers: Mapping[str, Any]) -> str | None:
    """Return that a prediction is above what Amdahl's law allows for the share that the learner
    gave; None if it is not. It is a remark and never a fault: a fix may save other work, too.
    A figure that is no prediction is Amdahl's own, and must not be below it either.
    """
    gain, share = answers.get(question.id), answers.get(question.ceiling_of or "")
    if not isinstance(gain, int | float) or not isinstance(share, int | float):
        return None
    if not 0 <= share <= 1:
        return None
    if not question.predicts_gain:
        fits = is_ceiling(gain, float(share))
        return None if fits else describe_misfit(question.ceiling_of or "", question.id)
    most = ceiling(float(share))
    if gain <= BEYOND_AMDAHL * most:
        return None
    return (
        f"By Amdahl's law, removing a share of {share:.4g} entirely, and nothing else, makes the"
        f" whole 1 / (1 - {share:.4g}) = {most:.2f}x as fast. A prediction above"
        " that needs a second reason: other time that the fix saves as well."
    )


def _agrees(question: QuestionSpec, answer: float, seen: float) -> bool:
    """Return True if an answer is off by at most `tolerance` of the figure; a share by a percent of
    the whole as well, unless `tolerance` is finer than that.
    """
    allowed = question.tolerance * abs(seen)
    if question.type == "share":
        allowed = max(allowed, min(ROUNDING, question.tolerance))
    # An answer off by exactly the tolerance agrees, although 0.6 - 0.5 > 0.1 in floats.
    return abs(answer - seen) <= allowed + 1e-9


def describe_reading(
    question: QuestionSpec,
    answers: Mapping[str, Any],
    seen: CaptureFigures | None,
    questions: Sequence[QuestionSpec] = (),
    *,
    of_memory: bool = False,
    most: float | None = None,
) -> str:
    """Return the figure that the tool reads off the capture for a question, as one sentence; empty
    when it has none. Only for learners who have committed. `questions` are all of the lab's. `most`
    is the largest gain that a check can measure, where it has a limit.
    """
    if seen is None:
        return ""
    if question.from_capture is not None and question.from_capture in seen.figures:
        return f"The tool: {format_answer(question, seen.figures[question.from_capture])}."
    stretch = parse_stretch(str(answers.get(question.id))) if question.shows else None
    if stretch and stretch.end <= seen.span_ns:
        return (
            f"The tool: {seen.within(stretch).get(str(question.shows), 0.0):.0%} of that stretch is"
            f" what the question asks for; {question.least:.0%} would do."
        )
    # A finding's gain is one in time, over the shipped code: no other prediction compares with it.
    in_time = question.predicts_gain and not of_memory and not question.to_reference
    if not in_time or "largest_gain_ratio" not in seen.figures:
        return ""
    largest = seen.figures["largest_gain_ratio"]
    if most is not None and largest > most:
        busy = seen.figures["busy_share"]
        return (
            f"The tool: {most:.2f}x at most, from the {1 / most:.0%} busy that a check counts from."
            f" The diagnosed capture, {busy:.0%} busy, would promise {largest:.2f}x."
        )
    return (
        f"The tool: about {largest:.2f}x from ending the costliest finding alone, with the work as"
        " it is. That need not be your plan: a fix that also saves work, as fewer launches do,"
        " gains more, and one that leaves part of that time gains less."
        f"{_other_ceilings(questions, answers, seen)}"
    )


def describe_check_ceiling(most: float) -> str:
    """Return the largest gain that a check can measure and the reason, as one sentence."""
    return (
        f"A check measures {most:.2f}x at most: it counts from a device that the shipped code keeps"
        f" {1 / most:.0%} busy."
    )


def _other_ceilings(
    questions: Sequence[QuestionSpec], answers: Mapping[str, Any], seen: CaptureFigures
) -> str:
    """Return what the learner's shares come to as ceilings, and how these differ from the
    finding's: the named cause alone, and all but the computation gone. Empty where neither was
    asked for. A share that is wrong is left out: its ceiling would stand beside the tool's.
    """
    bounds = []
    for question in questions:
        answer = answers.get(question.id)
        if not isinstance(answer, int | float) or question.type != "share":
            continue
        if _figure_problem(question, float(answer), seen):
            continue
        if any(each.ceiling_of == question.id for each in questions):
            bounds.append(f"without your cause alone {ceiling(float(answer)):.2f}x")
        elif question.from_capture == "compute_share" and answer > 0:
            bounds.append(f"with nothing but computation {1 / answer:.2f}x")
    return f" By the shares that you gave: {', '.join(bounds)}." if bounds else ""


def _right_answer(question: QuestionSpec, answer: Any, seen: CaptureFigures | None) -> str:
    if question.from_capture and seen is not None:
        shown = format_answer(question, seen.figures[question.from_capture])
        return f"{format_answer(question, answer)}, where your capture shows {shown}."
    if question.shows:
        return f"{format_answer(question, answer)} is what your capture shows."
    if question.type == "choice" or question.by_solution or question.accept:
        return f"'{format_answer(question, answer)}' is right."
    return "Answered."


def _prediction(questions: list[QuestionSpec], answers: Mapping[str, Any]) -> Prediction | None:
    for question in questions:
        answer = answers.get(question.id)
        if (
            question.predicts_gain
            and form_problem(question, answer) is None
            and isinstance(answer, int | float)
        ):
            return Prediction(predicted=float(answer), measured=None)
    return None
