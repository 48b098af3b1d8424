"""`lab case` as a use case: draw a case, grade its answers, and see how the learner is doing."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.analysis.findings import FINDINGS
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import Case, PastCase, grade_case, habits, streak
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace import cases
from bottleneck_lab.workspace.atomic import write_bytes
from bottleneck_lab.workspace.diagnosis_file import Answer

FIXED = "fixed.py"


@dataclass(frozen=True)
class GradedCase:
    """The grade of a case. `late` by how many seconds, 0 if in time; `fixed` is the file with the
    program without its cause, None if the program need not change.
    """

    case: Case
    results: list[CriterionResult]
    took_s: float
    late_s: float
    fixed: Path | None


@dataclass(frozen=True)
class Standing:
    """How a learner is doing: cases answered in time, causes named, points of so many answers that
    were judged, the current streak, habits. `misses` are the wrong answers, and of how many, by
    question and level, and the wrong cases by true cause. `of_set`: the cases of the set; 0 without
    one, or if its file is gone.
    """

    answered: int
    named: int
    points: int
    judged: int
    streak: int
    habits: list[str]
    misses: dict[str, dict[str, tuple[int, int]]]
    of_set: int = 0


def draw_case(
    parent: Path, *, level: int | None, lab: Lab | None, set_name: str, limit_s: float
) -> tuple[cases.DrawnCase, bool]:
    """Return the case to diagnose, and True if it was drawn just now.

    An open case stays open; its files are copied again if they are gone. Raises UsageError if
    others stand in their place.
    """
    waiting = cases.open_case()
    if waiting is not None:
        cases.copy_files(waiting)
        return waiting, False
    rng = random.SystemRandom()
    taught = next((kind.cause for kind in FINDINGS if lab and kind.id == lab.spec.taught), "")
    drawn = cases.draw(
        parent, rng, level=level, lab=lab, taught=taught, set_name=set_name, limit_s=limit_s
    )
    return drawn, True


def answer_case(drawn: cases.DrawnCase, answers: dict[str, Answer]) -> GradedCase:
    """Grade the answers to the open case, and record them: once, and finally. Raises UsageError for
    a line that the program does not have, or files that are not the case's.
    """
    cases.copy_files(drawn)
    case, folder = cases.find_case(drawn.name), Path(drawn.folder)
    program = (folder / cases.PROGRAM).read_text(encoding="utf-8")
    if fault := absent_line(drawn, answers["line"]):
        raise UsageError(fault, "Your other answers are not used up: give all of them again.")
    took_s = time.time() - drawn.drawn_s
    figures = _figures(case)
    results = grade_case(case, answers, figures)
    late_s = max(took_s - drawn.limit_s, 0.0) if drawn.limit_s else 0.0
    gain = float(answers["gain"])
    nearest = case.gain_near(gain, figures)
    past = PastCase(str(answers["cause"]), case.cause, gain, nearest, late=late_s > 0)
    fixed = None
    if case.switches and case.switches[0].edits:
        fixed = folder / FIXED
        for old, new in case.switches[0].edits:
            program = program.replace(old, new)
        write_bytes(fixed, program.encode())
    right = {each.id: each.holds for each in results if each.holds is not None}
    cases.answer(answers, right, past)
    return GradedCase(case, results, took_s, late_s, fixed)


def review_case(number: int) -> tuple[cases.DrawnCase, Case, list[CriterionResult]]:
    """Return the case in the folder of this number as it was answered, with its grade again. Raises
    UsageError if there is none.
    """
    for drawn in cases.load_drawn():
        if drawn.past and int(Path(drawn.folder).name) == number:
            case = cases.find_case(drawn.name)
            return drawn, case, grade_case(case, drawn.answers, _figures(case))
    raise UsageError(
        f"You have answered no case {number}.", "`lab case --verdict 1` is about cases/0001."
    )


def _figures(case: Case) -> dict[str, float]:
    """Return the figures of a case's capture."""
    return figures_of(summarise(merge_ranks([load(path) for path in cases.traces_of(case)])))


def absent_line(drawn: cases.DrawnCase, line: Answer) -> str | None:
    """Return why a case's program does not have this line, as a sentence; None if it does."""
    program = (Path(drawn.folder) / cases.PROGRAM).read_text(encoding="utf-8")
    last = len(program.splitlines())
    if 1 <= float(line) <= last:
        return None
    return f"{cases.PROGRAM} has no line {line:g}: its lines are 1 to {last}."


def standing(set_name: str = "") -> Standing:
    """Return how the learner is doing, in one set or over all cases."""
    answered = cases.load_counted(set_name)
    past = [each.past for each in answered if each.past is not None]
    library = cases.load_library()
    level = {case.name: f"level {case.level}" for case in library.cases}
    of_set = 0
    if set_name:
        with contextlib.suppress(UsageError):
            of_set = len(cases.set_members(set_name, library.cases, library.version))
    return Standing(
        answered=len(past),
        named=sum(each.called == each.cause for each in past),
        points=sum(sum(each.right.values()) for each in answered),
        judged=sum(len(each.right) for each in answered),
        streak=streak(past),
        habits=habits(past),
        misses={
            "question": _misses(list(each.right.items()) for each in answered),
            "level": _misses(
                [(level.get(each.name, "other"), right) for right in each.right.values()]
                for each in answered
            ),
            "cause": _misses([(each.cause, each.called == each.cause)] for each in past),
        },
        of_set=of_set,
    )


def _misses(answers: Iterable[Iterable[tuple[str, bool]]]) -> dict[str, tuple[int, int]]:
    """Return how many answers of each kind were wrong, and of how many; kinds without a miss are
    left out.
    """
    rights = [each for case in answers for each in case]
    total = Counter(kind for kind, _ in rights)
    wrong = Counter(kind for kind, right in rights if not right)
    return {kind: (count, total[kind]) for kind, count in sorted(wrong.items())}
