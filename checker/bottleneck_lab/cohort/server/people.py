"""Pages about one learner, and what instructors can correct there."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection

from bottleneck_lab.cohort.grading.grades import load_grades, load_students
from bottleneck_lab.cohort.grading.preview import Preview
from bottleneck_lab.cohort.grading.rules import all_extensions, extend, rules_for
from bottleneck_lab.cohort.members import changes, people
from bottleneck_lab.cohort.members.calls import end_call
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.forms import lab_field, moment_field, number_field
from bottleneck_lab.cohort.server.guard import (
    ASSISTANT,
    INSTRUCTOR,
    AsAssistant,
    AsInstructor,
    Form,
    form,
)
from bottleneck_lab.cohort.server.previews import do_or_preview, save_or_preview
from bottleneck_lab.cohort.server.state import State, state
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.attempts import load_attempts
from bottleneck_lab.cohort.view.cases import load_answered
from bottleneck_lab.cohort.workshop import workshop_labs

router = APIRouter()


@router.get("/people/{handle}")
def person(request: Request, session: AsAssistant, handle: str) -> Response:
    """Show one learner."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return _person(shared, session, connection, handle, {})


def _person(
    shared: State,
    session: Session,
    connection: Connection,
    handle: str,
    typed: dict[str, str],
    preview: Preview | None = None,
) -> Response:
    """Draw the page of a learner, its form for an extension filled with what was `typed`."""
    who = people.by_handle(connection, handle)
    own = tables.submissions.c.person.in_(people.same_learner(connection, who))
    cases = [each.past for each in load_answered(connection, who)]
    learns = who.role == "learner"
    everybody = rules_for(connection, [])
    # As in `lab status`: the points of whoever was merged are those of the one they count as.
    group = people.merged_group(connection, who)
    return shared.page(
        "person.html",
        session,
        person=who,
        student=load_students(connection, who.id)[0] if learns else None,
        grades=load_grades(connection, shared.judge, person=group[0].id) if learns else [],
        group=group,
        attempts=load_attempts(connection, shared.judge, own),
        extensions={
            lab: value
            for (owner, lab), value in all_extensions(connection).items()
            if owner == group[0].id
        },
        ends={lab: everybody(lab, None).ends for lab in workshop_labs(connection)},
        zone=load_settings(connection).timezone,
        others=[each for each in load_students(connection) if each.handle != handle],
        cases=len(cases),
        named=sum(each.called == each.cause for each in cases),
        typed=typed,
        preview=preview,
    )


@router.post("/people/{handle}/extend")
def extend_person(request: Request, session: AsInstructor, handle: str, fields: Form) -> Response:
    """Grant somebody more time or more submissions, or withdraw that: neither is given.

    It goes to the one whom they count as, whose due dates and budgets hold.
    """
    shared, lab = state(request), lab_field(fields.get("lab", ""))
    extra = number_field(fields.get("extra_budget", "")) or 0

    def change(connection: Connection, now: float) -> None:
        due = moment_field(fields.get("due", ""), load_settings(connection).timezone)
        who = people.by_handle(connection, handle)
        extend(connection, people.learner_of(connection, who), lab, due, extra, now)

    def page(connection: Connection, preview: Preview) -> Response:
        return _person(shared, session, connection, handle, fields, preview)

    return save_or_preview(shared, fields, change, page, f"/people/{handle}#saved")


@router.post("/people/{handle}/rename", dependencies=[Depends(INSTRUCTOR)])
def rename_person(request: Request, handle: str, fields: Form) -> Response:
    """Give somebody another name. Raises RefusedError for an empty or too long one."""
    database = state(request).cohort.database
    with database.writing() as connection:
        who = people.by_handle(connection, handle)
        changes.rename(connection, who, fields.get("name", ""), database.clock())
    return RedirectResponse(f"/people/{handle}#saved", status_code=303)


@router.post("/people/{handle}/merge")
def merge_person(request: Request, session: AsInstructor, handle: str, fields: Form) -> Response:
    """Let somebody's submissions count for another learner, or separate them again."""
    if fields.get("how") == "separate":
        return do_or_preview(
            request,
            session,
            fields,
            lambda connection, now: changes.separate(connection, handle, now),
            lambda connection: f"Separate {people.name_of(connection, handle)}",
            "/settings#saved",
        )
    into = fields.get("into", "")

    def change(connection: Connection, now: float) -> None:
        who, other = people.by_handle(connection, handle), people.by_handle(connection, into)
        changes.merge(connection, who, other, now)

    def label(connection: Connection) -> str:
        one, other = people.name_of(connection, handle), people.name_of(connection, into)
        return f"Merge {one} into {other}"

    return do_or_preview(request, session, fields, change, label, f"/people/{into}#saved")


@router.post("/people/{handle}/claim")
def decide_claim(request: Request, session: AsInstructor, handle: str, fields: Form) -> Response:
    """Accept or decline that somebody is the learner whom they claim to be."""
    same = fields.get("same") == "yes"

    def change(connection: Connection, now: float) -> None:
        who = people.by_handle(connection, handle)
        changes.decide_claim(connection, who, same=same, at=now)

    def label(connection: Connection) -> str:
        return f"Count {people.name_of(connection, handle)} as the same person"

    return do_or_preview(request, session, fields, change, label, "/room#saved")


@router.post("/people/{handle}/helped", dependencies=[Depends(ASSISTANT), Depends(form)])
def answer_call(request: Request, handle: str) -> Response:
    """Take somebody's call for help off the room."""
    database = state(request).cohort.database
    with database.writing() as connection:
        end_call(connection, people.by_handle(connection, handle), database.clock())
    return RedirectResponse("/room", status_code=303)


@router.post("/people/{handle}/remove")
def remove_person(request: Request, session: AsInstructor, handle: str, fields: Form) -> Response:
    """Remove somebody, undo that, or let one on the roster join again.

    Raises RefusedError for oneself.
    """
    how = fields.get("how", "remove")

    def change(connection: Connection, now: float) -> None:
        if how == "restore":
            changes.restore(connection, handle, now)
            return
        who = people.by_handle(connection, handle)
        if who.id == session.person.id:
            raise RefusedError(
                "forbidden", "You cannot remove yourself.", "Another instructor can."
            )
        if how == "again":
            people.let_join_again(connection, who)
        else:
            changes.remove(connection, who, now)

    def label(connection: Connection) -> str:
        verb = "Bring back" if how == "restore" else "Remove"
        return f"{verb} {people.name_of(connection, handle)}"

    # Who was removed has no page; Settings has the button that undoes it.
    done = "/settings#people" if how == "remove" else f"/people/{handle}#saved"
    return do_or_preview(request, session, fields, change, label, done)
