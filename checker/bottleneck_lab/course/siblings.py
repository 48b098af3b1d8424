"""`lab diagnose --sibling` as a use case: grade the answers to an unseen case."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.grading.siblings import (
    grade_sibling,
    questions_about,
    removed_share,
    true_gain,
)
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace import siblings
from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import Workspace


@dataclass(frozen=True)
class GradedCase:
    """The grade of a case: `gain` is the speed-up, or the factor in peak memory, of the truth;
    `measured` if the program ran without its cause, otherwise read off the capture. `share`: the
    part (0–1) of the capture that the gain follows from, if it does.
    """

    results: list[CriterionResult]
    cause: str
    gain: float
    measured: bool
    share: float | None = None

    @property
    def named(self) -> bool:
        """Return True if the cause was right, whatever gain was predicted."""
        return all(result.holds for result in self.results if result.id == "cause")


def draw_case(workspace: Workspace) -> tuple[siblings.DrawnSibling, str]:
    """Return the case to diagnose, drawn now if none is open, and its story."""
    case = siblings.draw(workspace, random.SystemRandom())
    number, story = len(siblings.load_siblings(workspace)), siblings.spec_of(workspace, case).story
    return case, story if number == 1 else f"Program {number}. {story}"


def case_questions(workspace: Workspace, case: siblings.DrawnSibling) -> list[QuestionSpec]:
    """Return what is asked of a case."""
    specs = list(siblings.specs_of(workspace.lab).values())
    return questions_about(siblings.spec_of(workspace, case), specs)


def grade_case(
    workspace: Workspace, case: siblings.DrawnSibling, answers: dict[str, Answer]
) -> GradedCase:
    """Grade the answers to the open case, and record them: once, and finally."""
    spec, summary = siblings.spec_of(workspace, case), case_summary(workspace)
    results = grade_sibling(spec, answers, summary, case_questions(workspace, case))
    gain, share = round(true_gain(spec, summary), 2), removed_share(spec, summary)
    graded = GradedCase(results, spec.cause, gain, measured=bool(spec.gain), share=share)
    siblings.answer(workspace, answers, named=graded.named)
    return graded


def case_summary(workspace: Workspace) -> Summary:
    """Return the summary of the latest case's capture."""
    return summarise(merge_ranks([load(path) for path in siblings.latest_traces(workspace)]))
