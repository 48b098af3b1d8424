"""The library of cases in a browser: look at a program and its capture, and say what it lacks."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.forms import answer_fields
from bottleneck_lab.cohort.server.guard import AsLearner, Form
from bottleneck_lab.cohort.server.state import state
from bottleneck_lab.cohort.view import cases
from bottleneck_lab.cohort.view.cases import AnsweredCase
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import describe_choices
from bottleneck_lab.grading.cases import (
    QUESTIONS,
    Case,
    habits,
    streak,
)
from bottleneck_lab.workspace.cases import PROGRAM, find_case, load_library

router = APIRouter()


@router.get("/me/cases")
def library(request: Request, session: AsLearner) -> Response:
    """Show all cases, and how this learner is doing."""
    try:
        listed = sorted(load_library().cases, key=lambda case: (case.level, case.title))
    except UsageError:
        listed = []
    answered = _answered(request, session)
    past = [each.past for each in answered.values()]
    return state(request).page(
        "cases.html",
        session,
        cases=listed,
        answered=answered,
        named=sum(each.called == each.cause for each in past),
        streak=streak(past),
        habits=habits(past),
    )


@router.get("/me/cases/{name}")
def one_case(request: Request, session: AsLearner, name: str) -> Response:
    """Show a case: story, program and questions; once it is answered, what was measured."""
    case = _case(name)
    return state(request).page(
        "case.html",
        session,
        case=case,
        program=cases.case_files(case)[PROGRAM].decode().splitlines(),
        questions=QUESTIONS,
        choices=describe_choices,
        answered=_answered(request, session).get(name),
        fixed=cases.fixed_lines(case),
    )


@router.get("/me/cases/{name}/capture")
async def case_capture(request: Request, session: AsLearner, name: str) -> Response:
    """Show the report of a case's capture: evidence alone until the case is answered."""
    case = _case(name)
    answered = await run_in_threadpool(_answered, request, session)
    return await state(request).reports.page(
        f"case {name}", case.title, lambda: cases.capture_of(case), blind=name not in answered
    )


@router.post("/me/cases/{name}")
def answer_case(request: Request, session: AsLearner, name: str, fields: Form) -> Response:
    """Grade the answers, the first time. Raises RefusedError if one cannot be graded."""
    case, database = _case(name), state(request).cohort.database
    state(request).requests.count(session.person.handle)
    answers = answer_fields(QUESTIONS, fields)
    last = len(cases.case_files(case)[PROGRAM].splitlines())
    if not 1 <= float(answers["line"]) <= last:
        raise RefusedError(
            "bad-request", f"The program has lines 1 to {last}.", "Name one of them."
        )
    if name not in _answered(request, session):
        graded = cases.grade(case, answers)
        with database.writing() as connection:
            cases.keep_answer(connection, session.person, graded, database.clock())
    return RedirectResponse(f"/me/cases/{name}", status_code=303)


def _answered(request: Request, session: Session) -> dict[str, AnsweredCase]:
    with state(request).cohort.database.reading() as connection:
        return {each.name: each for each in cases.load_answered(connection, session.person)}


def _case(name: str) -> Case:
    try:
        return find_case(name)
    except UsageError as error:
        raise RefusedError("not-found", "There is no such case.", "Go back to the list.") from error
