"""Pages of grades: what counts, how a figure came about, rules with a preview, and exports."""

from __future__ import annotations

from itertools import groupby
from typing import Literal, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.folder import folder_name
from bottleneck_lab.cohort.grading.credit import split
from bottleneck_lab.cohort.grading.exports import (
    EXPORTS,
    export_grades,
    find_export,
    guests,
    unmeasured,
)
from bottleneck_lab.cohort.grading.grades import (
    MAX_COMMENT,
    GradingRules,
    change_grading,
    load_grades,
    load_grading,
    override_grade,
    override_log,
    withdraw_override,
)
from bottleneck_lab.cohort.grading.preview import Preview
from bottleneck_lab.cohort.grading.rules import load_rules
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.people import Person, clean
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.forms import amount_field, lab_field
from bottleneck_lab.cohort.server.guard import (
    ASSISTANT,
    INSTRUCTOR,
    AsAssistant,
    AsInstructor,
    AsLearner,
    Form,
)
from bottleneck_lab.cohort.server.previews import save_or_preview
from bottleneck_lab.cohort.server.state import State, state
from bottleneck_lab.cohort.settings import LatePolicy, Scoring, Weights
from bottleneck_lab.cohort.view.grade import explain_grade
from bottleneck_lab.cohort.view.room import altered_records
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.errors import LabError, UsageError

router = APIRouter()

KINDS = {
    "correctness": "Each criterion of correctness",
    "target": "Each target",
    "mechanism": "Each mechanism",
    "diagnosis": "Each answer of the diagnosis",
}
"""Labels of the weights."""


@router.get("/grades")
def grades(request: Request, session: AsAssistant) -> Response:
    """Show every learner's scores, and the exports."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        all_grades = load_grades(connection, shared.judge)
        altered = altered_records(connection, shared.judge.altered(connection))
        labs, waiting = workshop_labs(connection), unmeasured(connection)
        unlisted = guests(connection)
        worth = load_grading(connection).points
    rows = [
        (student, list(own)) for student, own in groupby(all_grades, key=lambda each: each.student)
    ]
    return shared.page(
        "grades.html",
        session,
        rows=rows,
        names=people.told_apart(student for student, _ in rows),
        labs=labs,
        points=worth,
        exports=EXPORTS,
        altered=altered,
        waiting=waiting,
        guests=unlisted,
    )


@router.get("/grades/rules")
def rules(request: Request, session: AsInstructor) -> Response:
    """Show the grading rules."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return _rules(shared, session, load_grading(connection))


def _rules(
    shared: State, session: Session, grading: GradingRules, preview: Preview | None = None
) -> Response:
    return shared.page(
        "grading.html",
        session,
        grading=grading,
        preview=preview,
        labs=list(grading.points),
        kinds=KINDS,
        splits={slug: split(load_labs()[slug], grading.weights) for slug in grading.points},
    )


@router.post("/grades/rules")
def change_rules(request: Request, session: AsInstructor, fields: Form) -> Response:
    """Preview other grading rules over the room, or put them in force.

    Raises RefusedError for a value that is out of its range.
    """
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        grading = _grading(fields, workshop_labs(connection))

    def change(connection: Connection, now: float) -> None:
        change_grading(connection, grading, now)

    def page(_connection: Connection, preview: Preview) -> Response:
        return _rules(shared, session, grading, preview)

    return save_or_preview(shared, fields, change, page, "/grades#saved")


def _grading(fields: dict[str, str], labs: list[str]) -> GradingRules:
    scoring = fields.get("scoring", "best")
    per_day, most = (amount_field(fields.get(name, ""), 0.0) for name in ("per_day", "most"))
    if scoring not in ("best", "latest") or per_day > 100 or most > 100:
        raise RefusedError(
            "bad-request",
            "The late penalty is given in per cent of the points.",
            "Write numbers from 0 to 100.",
        )
    grace_s = amount_field(fields.get("grace_min", ""), 0.0) * 60
    return GradingRules(
        cast("Scoring", scoring),
        fields.get("partial_credit") == "yes",
        Weights(
            **{kind: amount_field(fields.get(f"weight-{kind}", ""), 1.0) for kind in KINDS},
            answers_alone=fields.get("answers_alone") == "yes",
        ),
        LatePolicy(per_day / 100, most / 100, grace_s),
        {lab: amount_field(fields.get(f"points-{lab}", ""), 100.0) for lab in labs},
    )


@router.get("/people/{handle}/grades/{slug}")
def one_grade(request: Request, session: AsAssistant, handle: str, slug: str) -> Response:
    """Show how one learner's points in one lab came about. Raises RefusedError for no learner."""
    shared, lab = state(request), lab_field(slug)
    with shared.cohort.database.reading() as connection:
        who = _learner(connection, handle)
        why = explain_grade(connection, shared.judge, who.id, lab)
        log = override_log(connection, who)
        held = load_rules(connection, lab, who.id).hidden(shared.cohort.database.clock())
    return shared.page(
        "grade.html", session, person=who, why=why, log=log, held=held, max_comment=MAX_COMMENT
    )


def _learner(connection: Connection, handle: str) -> Person:
    """Return the one whose points somebody's are: if merged, the other. Raises RefusedError."""
    return people.merged_group(connection, people.by_handle(connection, handle))[0]


@router.get("/me/labs/{slug}/grade")
def my_grade(request: Request, session: AsLearner, slug: str) -> Response:
    """Show a learner how their points came about. Raises RefusedError before they are released."""
    shared, lab = state(request), lab_field(slug)
    with shared.cohort.database.reading() as connection:
        learner = people.learner_of(connection, session.person)
        if load_rules(connection, lab, learner).hidden(shared.cohort.database.clock()):
            raise RefusedError(
                "forbidden", "Points for this lab are not released yet.", "`lab status` says when."
            )
        why = explain_grade(connection, shared.judge, learner, lab)
    return shared.page("my_grade.html", session, why=why)


@router.post("/people/{handle}/grades/{slug}", dependencies=[Depends(INSTRUCTOR)])
def override(
    request: Request, session: AsInstructor, handle: str, slug: str, fields: Form
) -> Response:
    """Override a learner's points, or withdraw the override. Raises RefusedError if incomplete."""
    lab, database = lab_field(slug), state(request).cohort.database
    with database.writing() as connection:
        who, now = _learner(connection, handle), database.clock()
        if fields.get("action") == "withdraw":
            withdraw_override(connection, who, lab, session.person, now)
        else:
            if not fields.get("points", "").strip():  # an empty field is no zero
                raise RefusedError("bad-request", "Points are missing.", "Write a number.")
            points = amount_field(fields["points"], 0.0)
            comment = clean(fields.get("comment", ""), MAX_COMMENT)
            override_grade(connection, who, lab, points, comment, session.person, now)
    return RedirectResponse(f"/people/{handle}/grades/{lab}#saved", status_code=303)


@router.get("/submissions/{handle}/verdict", dependencies=[Depends(ASSISTANT)])
def download_verdict(request: Request, handle: str) -> Response:
    """Return the signed document of a submission's latest verdict. Raises RefusedError without."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        rounds = shared.judge.all_of(connection, handle)
    if not rounds:
        raise RefusedError(
            "not-found", "This submission has no verdict.", "Go back to the submission."
        )
    name = f"{handle}-verdict.json"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(rounds[-1].document, media_type="application/json", headers=headers)


@router.get("/export/{kind}", dependencies=[Depends(INSTRUCTOR)])
def download_export(
    request: Request, kind: str, altered: Literal["refuse", "include"] = "refuse"
) -> Response:
    """Return one export as a file.

    Raises RefusedError for an unknown one, and for grades that rest on altered records unless
    `altered` includes them.
    """
    shared = state(request)
    try:
        export = find_export(kind)
    except UsageError as error:
        raise RefusedError("not-found", error.message, error.remedy) from error
    try:
        with shared.cohort.database.reading() as connection:
            data = export_grades(
                connection, shared.cohort, export, allow_altered=altered == "include"
            )
    except LabError as error:
        raise RefusedError("altered", error.message, error.remedy) from error
    name = export.file_name(folder_name(shared.cohort.config.name))
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type=export.media_type, headers=headers)
