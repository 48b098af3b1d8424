"""`lab diagnose --sibling`: another case of the lab's family, to be diagnosed from its capture
alone.
"""

from __future__ import annotations

import random
import sys

from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.commands.answers import ask, describe_choices, parse_answers
from bottleneck_lab.commands.ui import print_json, say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.siblings import QUESTIONS, grade_sibling, true_gain
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace import siblings
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace

_LOOK = "`lab report --sibling` shows its capture, with --html as a page with the timeline."


def diagnose_sibling(workspace: Workspace, texts: list[str], *, json: bool) -> None:
    """Draw a case if none is open, tell its story, and take the answers: once, and finally."""
    if is_blind(workspace):
        raise UsageError("Commit this lab's own diagnosis first.", "`lab diagnose` commits it.")
    fresh = siblings.open_case(workspace) is None
    case = siblings.draw(workspace, random.SystemRandom())
    number, story = len(siblings.load_drawn(workspace)), siblings.spec_of(workspace, case).story
    if number > 1:
        story = f"Case {number}. {story}"
    answers, wrong = parse_answers(QUESTIONS, texts)
    if wrong:
        raise UsageError(" ".join(wrong), "`-a cause=2 -a gain=1.8` answers both questions.")
    asks = sys.stdin.isatty() and not json and not texts and not fresh
    if asks:
        say(story)
        answers = {question.id: ask(question, None) for question in QUESTIONS}
    missing = [question.id for question in QUESTIONS if question.id not in answers]
    if missing:
        _tell_case(story, missing if texts else [], json=json)
        return
    _answer(workspace, answers, json=json)


def _tell_case(story: str, missing: list[str], *, json: bool) -> None:
    if json:
        print_json({"story": story, "questions": QUESTIONS})
        return
    say(story)
    say(f"\n{_LOOK} Five minutes, one answer to each question:")
    for question in QUESTIONS:
        say(f"\n{question.id}: {question.ask}", style="bold")
        for line in describe_choices(question):
            say(f"  {line}", hang=3)
    if missing:
        say(f"\nAnswer both questions at once; {', '.join(missing)} is missing.", style="yellow")
    say("\nNext: lab report --sibling", style="bold")
    say("Then: lab diagnose --sibling")


def _answer(workspace: Workspace, answers: dict[str, str | float], *, json: bool) -> None:
    case = siblings.draw(workspace, random.SystemRandom())
    spec, summary = siblings.spec_of(workspace, case), sibling_summary(workspace)
    results = grade_sibling(spec, answers, summary)
    named = all(result.holds for result in results)
    siblings.answer(workspace, answers, named=named)
    truth = {"cause": spec.cause, "gain": round(true_gain(spec, summary), 2)}
    if json:
        print_json({"named": named, "results": results, "truth": truth})
        return
    for result in results:
        say(
            f"{'✓' if result.holds else '✗'} {result.id}: {result.sentence}",
            "green" if result.holds else "red",
            hang=2,
        )
    gain = f"{truth['gain']:.2f}x"
    of_memory = truth["cause"] == "memory-growth"
    told = f"need {gain} less memory at its peak" if of_memory else f"be {gain} as fast"
    say(f"\nIt was {truth['cause']}; without it the program would {told}.")
    say("`lab report --sibling` now shows its causes and findings.")


def sibling_summary(workspace: Workspace) -> Summary:
    """The latest case's capture, summed up."""
    return summarise(merge_ranks([load(path) for path in siblings.traces_of(workspace)]))
