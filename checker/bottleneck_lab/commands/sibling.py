"""`lab diagnose --sibling`: diagnose an unseen case from its capture, once and finally."""

from __future__ import annotations

import sys

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.commands.asking import ask_question, show_question
from bottleneck_lab.commands.ui import MARKS, print_json, say, say_next
from bottleneck_lab.course.siblings import case_questions, draw_case, grade_case
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import parse_answers
from bottleneck_lab.grading.causes import MEMORY_GROWTH
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.siblings import load_siblings, open_sibling


def diagnose_sibling(workspace: Workspace, texts: list[str], *, another: bool, json: bool) -> None:
    """Tell the story of the open case, and take the answers: once, and finally. Draws the first
    case, and `another` once the last one is answered. Raises UsageError for a case that is answered
    already, or that nobody has looked at.
    """
    if not workspace.lab.spec.siblings:
        raise UsageError("This lab has no other programs.", "`lab` shows what to do next.")
    if is_blind(workspace):
        raise UsageError("Commit this lab's own diagnosis first.", "`lab diagnose` commits it.")
    fresh = open_sibling(workspace) is None
    if fresh:
        _require_draw(workspace, texts, another=another)
    case, story = draw_case(workspace)
    questions = case_questions(workspace, case)
    answers, wrong = parse_answers(questions, texts)
    if wrong:
        raise UsageError("\n".join(wrong), "`-a cause=2 -a gain=1.8` answers both questions.")
    # A fresh case is only introduced.
    if sys.stdin.isatty() and not json and not texts and not fresh:
        say(story)
        answers = {question.id: ask_question(question) for question in questions}
    missing = [question.id for question in questions if question.id not in answers]
    if missing and json:
        print_json({"story": story, "questions": questions})
        return
    if missing:
        _show_case(story, questions, missing if texts else [], fresh=fresh)
        return
    graded = grade_case(workspace, case, answers)
    if json:
        truth = {"cause": graded.cause, "gain": graded.gain}
        print_json({"named": graded.named, "results": graded.results, "truth": truth})
        return
    for result in graded.results:
        mark, style = MARKS[result.holds]
        say(f"{mark} {result.sentence}", style, hang=2)
    be, fall = ("was", "fell") if graded.measured else ("would be", "would fall")
    effect = f"the program {be} {graded.gain:.2f}x as fast"
    if graded.cause == MEMORY_GROWTH:
        effect = f"its peak of memory {fall} by a factor of {graded.gain:.2f}"
    origin = "With that switched off" if graded.measured else "By what the capture shows of it"
    if graded.share is not None:
        origin = f"{origin}, 1 / (1 − {graded.share:.3f})"
    say(f"\nThe cause is {graded.cause}. {origin}, {effect}.")
    say_next("lab report --sibling")
    say(
        "It now shows causes and findings, whose gains follow the recorded dependencies: less than"
        " 1 / (1 − share) where something else then holds up the run. `lab diagnose --sibling"
        " --another` draws another program."
    )


def _require_draw(workspace: Workspace, texts: list[str], *, another: bool) -> None:
    """Raise UsageError unless a case is to be drawn now."""
    drawn = load_siblings(workspace)
    if drawn and not another:
        raise UsageError(
            f"Program {len(drawn)} is answered: `lab report --sibling` shows its causes.",
            "`lab diagnose --sibling --another` draws another program.",
        )
    if texts:
        raise UsageError(
            "Look at a case before you answer it.",
            f"`lab diagnose --sibling{' --another' * another}`, without answers, draws it.",
        )


def _show_case(
    story: str,
    questions: list[QuestionSpec],
    missing: list[str],
    *,
    fresh: bool,
) -> None:
    say(story)
    say(
        "\nIt is another program, and its cause may be another: what carries over from this lab is"
        " the method."
    )
    say(
        "\n`lab report --sibling` shows its capture, with --html as a page with the timeline. Five"
        " minutes, one answer to each question:"
    )
    for question in questions:
        show_question(question)
    if missing:
        say(f"\nAnswer both questions at once; {', '.join(missing)} is missing.", style="yellow")
    answer = "lab diagnose --sibling -a cause=… -a gain=…"
    if not fresh:
        say_next(answer)
        return
    say_next("lab report --sibling")
    say(f"Then: {answer}")
