"""`lab case`: diagnose a program that you have never seen, from its capture and its source."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import QuestionSpec, find_lab, load_course
from bottleneck_lab.commands.asking import ask_question, show_question
from bottleneck_lab.commands.ui import STYLES, Answers, Json, note, print_json, say, say_next
from bottleneck_lab.course.cases import (
    GradedCase,
    Standing,
    absent_line,
    answer_case,
    draw_case,
    review_case,
    standing,
)
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import parse_answers, question_about
from bottleneck_lab.grading.cases import QUESTIONS, Case
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report.verdict_words import SIGNS, mark_of
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.cases import ANSWER, DrawnCase, find_case, load_drawn, open_case, skip
from bottleneck_lab.workspace.diagnosis_file import Answer

EXAMPLE = "lab case --level 1"


def command(
    answer: Answers = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="N",
            help="Draw a case of this level, of three: 1 is the easiest, 3 the hardest.",
        ),
    ] = None,
    lab: Annotated[
        str,
        typer.Option(
            "--lab",
            metavar="LAB",
            help="Draw a case chosen for this lab.",
        ),
    ] = "",
    set_: Annotated[
        str,
        typer.Option(
            "--set",
            metavar="NAME[:N]",
            help="Draw the next of N cases that are the same for everybody who gives this name; or"
            " of those that a file names, one a line.",
        ),
    ] = "",
    timed: Annotated[
        float | None,
        typer.Option("--timed", metavar="MINUTES", min=0.1, help="Allow this long for the case."),
    ] = None,
    skip_: Annotated[
        bool, typer.Option("--skip", help="Put the open case away without an answer.")
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Show how you are doing, over all cases.")
    ] = False,
    verdict: Annotated[
        int | None,
        typer.Option(
            "--verdict",
            metavar="N",
            help="Show the verdict on an answered case again: 1 for cases/0001.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Diagnose an unseen program: its cause, the evidence, the line, and what a fix brings.

    The first call draws a case: a program and a capture of it, in cases/. Read it with `lab
    report`, then answer the four questions, once. You then see what was measured with the cause
    switched off.
    """
    if progress:
        _show_standing(set_, json=json)
        return
    if verdict is not None:
        _review(verdict, json=json)
        return
    if skip_:
        _skip()
        return
    given = _read_answers(answer) if answer else {}
    drawn, fresh = draw_case(
        Path.cwd(),
        level=None if level is None else _read_level(level),
        lab=find_lab(lab) if lab else None,
        set_name=set_,
        limit_s=60.0 * (timed or 0.0),
    )
    if sys.stdin.isatty() and not json and not fresh and not answer:
        _describe(drawn)
        given = _ask_for_answers(drawn)
    if given:
        _show_grade(drawn, answer_case(drawn, given), given, json=json)
        return
    _show_case(drawn, fresh=fresh, json=json)
    if not fresh and (level is not None or lab or set_ or timed):
        note("This case was open already; answer it first, or put it away with --skip.")
    if fresh and any(each.past and each.name == drawn.name for each in load_drawn()):
        every = "every case that fits; this one comes again"
        note(f"You have answered {'this case before' if set_ else every}.")


def _read_level(text: str) -> int:
    """Return a level by its number, or by the name of the labs' stage. Raises UsageError for
    neither.
    """
    stages = [stage.name for stage in load_course().stages]
    if text in stages:
        return stages.index(text) + 1
    if not text.isdecimal():
        raise UsageError(f"'{text}' is no level.", "The levels are 1 to 3.")
    return int(text)


def _read_answers(texts: list[str]) -> dict[str, Answer]:
    """Return the answers to all questions of the open case. Raises UsageError if none is open, or
    an answer is missing or malformed.
    """
    _require_open()
    given, wrong = parse_answers(QUESTIONS, texts)
    if wrong:
        raise UsageError("\n".join(wrong), "`lab case` shows the questions and their choices.")
    missing = [question.id for question in QUESTIONS if question.id not in given]
    if missing:
        raise UsageError(
            f"Answer all questions at once; still missing: {', '.join(missing)}.",
            "`lab case` shows them.",
        )
    return given


def _ask_for_answers(drawn: DrawnCase) -> dict[str, Answer]:
    """Ask all questions at the terminal, one after another."""

    def refuse(question: QuestionSpec, answer: Answer) -> str | None:
        return absent_line(drawn, answer) if question.id == "line" else None

    given: dict[str, Answer] = {}
    for question in QUESTIONS:
        given[question.id] = ask_question(question_about(question, given), refuse=refuse)
    return given


def _require_open() -> DrawnCase:
    """Return the open case. Raises UsageError if none is."""
    drawn = open_case()
    if drawn is None:
        raise UsageError("No case is open.", "`lab case` draws one.")
    return drawn


def _skip() -> None:
    drawn = _require_open()
    skip()
    say("The case is put away. Its causes stay hidden: it may be drawn again, after all others.")
    say_next(_draw_command(drawn.set))


def _describe(drawn: DrawnCase) -> None:
    """Tell the story of a case, and where its files are."""
    case = find_case(drawn.name)
    say(f"{case.title} (level {case.level})", style="bold")
    say(case.story)
    say(f"\nThe program and its capture are in {_folder(drawn)}.")
    if drawn.limit_s:
        minutes = f"{drawn.limit_s / 60:g} minutes"
        if time.time() - drawn.drawn_s > drawn.limit_s:
            say(f"Your {minutes} are over: an answer no longer counts.", style="yellow")
        else:
            say(f"You have {minutes} from the draw.")


def _show_case(drawn: DrawnCase, *, fresh: bool, json: bool) -> None:
    case = find_case(drawn.name)
    if json:
        print_json(
            {
                "title": case.title,
                "level": case.level,
                "story": case.story,
                "folder": drawn.folder,
                "questions": QUESTIONS,
            }
        )
        return
    _describe(drawn)
    for question in QUESTIONS:
        show_question(question)
    if not fresh:
        say_next(ANSWER)
        return
    say_next(f"lab report {_folder(drawn)}")
    say(f"Then: {ANSWER}")


def _show_grade(
    drawn: DrawnCase, graded: GradedCase, given: dict[str, Answer], *, json: bool
) -> None:
    now = standing(drawn.set)
    case = graded.case
    if json:
        print_json(
            {
                "results": graded.results,
                "answers": given,
                "cause": case.cause,
                "gain": case.gain,
                "lines": case.lines,
                "took_s": round(graded.took_s),
                "late": graded.late_s > 0,
                "explanation": case.explanation,
                "standing": now,
            }
        )
        return
    _show_verdict(case, graded.results)
    if graded.fixed:
        fixed = f"{_folder(drawn)}/{graded.fixed.name}"
        say(f"\n{fixed} is the program with the fix; it needs an NVIDIA GPU.")
    if graded.late_s:
        say(f"\nToo late by {graded.late_s:.0f} s: it does not count.", style="yellow")
    _show_streak(now, drawn.set)
    for sentence in now.habits:
        say(sentence)
    say_next(f"lab report {_folder(drawn)}")
    say(f"It now names the causes. `{_draw_command(drawn.set)}` draws the next case.")


def _show_verdict(case: Case, results: list[CriterionResult]) -> None:
    """Print the grade of each answer, what the case was, and what was measured."""
    for result in results:
        mark = mark_of(result)
        say(f"{SIGNS[mark]} {result.id}: {result.sentence}", STYLES[mark], hang=2)
    say(f"\n{case.explanation}")
    _show_measured(case)


def _review(number: int, *, json: bool) -> None:
    """Print the verdict on an answered case again."""
    drawn, case, results = review_case(number)
    if json:
        print_json({"results": results, "answers": drawn.answers, "explanation": case.explanation})
        return
    say(f"{case.title} (level {case.level})", style="bold")
    _show_verdict(case, results)


def _show_measured(case: Case) -> None:
    """Print what switching off each cause brought, and each suspect that is none."""
    if case.switches:
        say("\nModelled, each cause switched off by itself:")
    for switch in case.switches:
        say(f"  {switch.gain:5.2f}x  {switch.fix}", hang=9)
    if case.entire:
        say(
            f"  {case.entire:5.2f}x  If the cause cost nothing, with the same work and kernels.",
            hang=9,
        )
    if case.decoys:
        suspects = "Other suspects" if case.switches else "Suspects"
        say(f"\n{suspects}, each switched off by itself:")
    for decoy in case.decoys:
        say(f"  {decoy.gain:5.2f}x  {decoy.fix} {decoy.why}", hang=9)


def _show_standing(set_name: str, *, json: bool) -> None:
    now = standing(set_name)
    if json:
        print_json(now)
        return
    if not now.answered:
        in_time = " in time" if any(each.past and each.past.late for each in load_drawn()) else ""
        say(f"You have not answered a case{' of this set' if set_name else ''}{in_time} yet.")
        say_next(_draw_command(set_name))
        return
    _show_streak(now, set_name)
    for kind, lead in (("question", "Wrong answers"), ("cause", "Missed causes")):
        rows = [f"{name} ({wrong} of {total})" for name, (wrong, total) in now.misses[kind].items()]
        if rows:
            say(f"{lead}: {', '.join(rows)}.", hang=2)
    for sentence in now.habits:
        say(sentence)
    say("`lab case --verdict 1` shows the verdict on cases/0001 again.")


def _show_streak(now: Standing, set_name: str) -> None:
    """Print how often the cause was named, in a set and in all cases."""
    if set_name:
        of_set = f" of {now.of_set}" if now.of_set else ""
        say(f"\nOf this set: {now.answered}{of_set} answered in time, {now.named} causes named.")
        now = standing()
    lead = "Of all cases:" if set_name else "\nSo far:"
    row = f", the last {now.streak} in a row" if now.streak > 1 else ""
    say(f"{lead} cause named in {now.named} of {counted(now.answered, 'case')}{row}.")


def _draw_command(set_name: str) -> str:
    """Return the command that draws the next case, of the same set."""
    return f"lab case --set {shlex.quote(set_name)}" if set_name else "lab case"


def _folder(drawn: DrawnCase) -> str:
    """Return the folder of a case as a shell here takes it."""
    folder = Path(drawn.folder)
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)
