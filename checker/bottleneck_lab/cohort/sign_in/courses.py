"""Courses that launch this cohort: kept at each launch, with who is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.grading.exports import require_unaltered
from bottleneck_lab.cohort.grading.grades import Grade, load_grades
from bottleneck_lab.cohort.members.people import add_person, correct_person
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.sign_in.identities import (
    Profile,
    details,
    link,
    on_roster,
    subjects,
)
from bottleneck_lab.cohort.sign_in.lti import Course, role_of
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.cohort.view.verdicts import VerdictReader


class Scores(NamedTuple):
    """Grades to send, each with the account that it is of; `unknown` are learners without one."""

    grades: list[tuple[str, Grade]]
    unknown: list[str]


def keep_course(connection: Connection, course: Course) -> None:
    """Record a course as its latest launch describes it."""
    table = tables.lti_courses
    same = (table.c.issuer == course.issuer) & (table.c.context == course.context)
    values = {
        "client_id": course.client_id,
        "title": course.title,
        "memberships": course.memberships,
        "lineitems": course.lineitems,
    }
    if not connection.execute(update(table).where(same).values(values)).rowcount:
        key = {"issuer": course.issuer, "context": course.context}
        connection.execute(table.insert().values({**key, **values}))


def load_courses(connection: Connection) -> list[Course]:
    """Return all courses that have launched this cohort."""
    table = tables.lti_courses
    columns = [table.c[name] for name in Course.__struct_fields__]
    return [Course(*row) for row in connection.execute(select(*columns).order_by(table.c.id))]


def find_course(connection: Connection, number: int) -> Course:
    """Return a course by its number. Raises RefusedError if there is none."""
    for course in load_courses(connection):
        if course.id == number:
            return course
    raise RefusedError("not-found", "There is no such course.", "Go back to the grades.")


def enter_members(
    connection: Connection, course: Course, members: Iterable[dict[str, Any]], at: float
) -> tuple[int, int]:
    """Add the learners of a course who are new, correct the others, and return how many were
    added and changed.

    Staff come in by launching. Nobody is removed.
    """
    people, table = tables.people, tables.identities
    accounts = {
        row.subject: row.person
        for row in connection.execute(select(table).where(table.c.issuer == course.issuer))
    }
    ids = set(connection.execute(select(people.c.student_id)).scalars())
    added = corrected = 0
    for member in members:
        if role_of(member.get("roles", [])) != "learner":
            continue
        profile = _profile(course, member)
        number = accounts.get(profile.subject) or on_roster(connection, profile)
        if number is None:
            student_id = profile.student_id or profile.subject
            # An id that is somebody else's here stays theirs.
            free = None if student_id in ids else student_id
            number = add_person(
                connection, "learner", at=at, student_id=free, **details(profile)
            ).id
            ids.add(student_id)
            added += 1
        else:
            values = {name: value for name, value in details(profile).items() if value}
            corrected += correct_person(connection, number, values)
        if profile.subject not in accounts:
            link(connection, profile, number)
            accounts[profile.subject] = number
    note(connection, at, "settings", f"The roster of {course.title} was fetched.")
    return added, corrected


def _profile(course: Course, member: dict[str, Any]) -> Profile:
    given, family = str(member.get("given_name", "")), str(member.get("family_name", ""))
    profile = Profile(course.issuer, str(member["user_id"]), f"{given} {family}".strip())
    return replace(
        profile,
        name=str(member.get("name") or profile.name or member.get("email") or profile.subject),
        email=str(member.get("email", "")),
        student_id=str(member.get("lis_person_sourcedid", "")),
        first_name=given,
        last_name=family,
    )


def load_scores(connection: Connection, judge: VerdictReader, course: Course) -> Scores:
    """Return what there is to send to a course's gradebook.

    Raises MachineError for grades that rest on an altered record, as an export does.
    """
    grades = [each for each in load_grades(connection, judge) if each.graded and each.max_score]
    require_unaltered(grades)
    accounts = subjects(connection, course.issuer)
    known = [(accounts[each.student.id], each) for each in grades if each.student.id in accounts]
    unknown = dict.fromkeys(each.student.name for each in grades if each.student.id not in accounts)
    return Scores(known, list(unknown))
