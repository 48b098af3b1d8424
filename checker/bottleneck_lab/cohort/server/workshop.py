"""Pages on which instructors choose the workshop: labs, their order, moments and a run sheet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import cast, get_args
from zoneinfo import available_timezones

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.preview import Preview
from bottleneck_lab.cohort.grading.rules import all_extensions, all_rules, rules_for, set_rules
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.moments import find_zone, local, parse_moment
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.runsheet import (
    Plan,
    RunSheet,
    labs_of_half_day,
    make_run_sheet,
    overdue_labs,
    starting_labs,
    use_run_sheet,
)
from bottleneck_lab.cohort.server.forms import moment_field, number_field
from bottleneck_lab.cohort.server.guard import AsAssistant, AsInstructor, Form
from bottleneck_lab.cohort.server.previews import save_or_preview
from bottleneck_lab.cohort.server.state import State, state
from bottleneck_lab.cohort.settings import change_settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.choice import needs_of
from bottleneck_lab.cohort.workshop import choose_labs, workshop_labs
from bottleneck_lab.errors import UsageError

router = APIRouter()
MOMENTS = {
    "opens": "Opens",
    "hints_at": "Hints from",
    "due": "Due",
    "solution_at": "Solution from",
}
"""Rules of a lab that are set for all labs on one page, with their headings."""
ALL_MOMENTS = {**MOMENTS, "closes": "Closes", "feedback_at": "Feedback from"}
"""All moments of a lab's rules, with their headings."""


@router.get("/workshop")
def workshop(request: Request, session: AsInstructor) -> Response:
    """Show the labs of the workshop in their order, then those that are left out."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return _workshop(shared, session, connection)


def _workshop(
    shared: State,
    session: Session,
    connection: Connection,
    preview: Preview | None = None,
    moved: Sequence[tuple[str, str, float]] = (),
    zone_before: str = "",
) -> Response:
    labs, chosen = load_labs(), workshop_labs(connection)
    rules, zone = rules_for(connection, []), load_settings(connection).timezone
    return shared.page(
        "workshop.html",
        session,
        chosen=[labs[slug] for slug in chosen],
        others=[lab for slug, lab in labs.items() if slug not in chosen],
        rules={slug: rules(slug, None) for slug in labs},
        needs={slug: needs_of(lab) for slug, lab in labs.items()},
        starting=chosen == starting_labs(),
        half_day=labs_of_half_day([labs[slug] for slug in chosen]),
        moments=MOMENTS,
        zone=zone,
        zones=sorted(available_timezones()),
        plans=get_args(Plan),
        preview=preview,
        moved=moved,
        zone_before=zone_before,
    )


@router.post("/workshop")
def change_workshop(request: Request, session: AsInstructor, fields: Form) -> Response:
    """Choose labs, their order and moments. Raises RefusedError for a value that is none.

    Moments are read in the time zone in which the page showed them. The button for the whole course
    chooses all labs, whichever were ticked.
    """
    shared, labs = state(request), load_labs()
    whole = fields.get("action") == "whole"
    chosen = [slug for slug in labs if whole or fields.get(f"in-{slug}") == "yes"]
    numbers = {slug: number_field(fields.get(f"order-{slug}", "")) for slug in chosen}
    for number, count in Counter(each for each in numbers.values() if each).items():
        if count > 1:
            named = " and ".join(slug for slug in chosen if numbers[slug] == number)
            raise RefusedError(
                "bad-request",
                f"{named} have the same number, {number}.",
                "Give each its own. Labs without a number come last, in the course's order.",
            )
    chosen.sort(key=lambda slug: numbers[slug] or len(labs))

    def change(connection: Connection, now: float) -> None:
        zone = load_settings(connection).timezone
        try:
            choose_labs(connection, chosen, now)
        except UsageError as error:
            raise RefusedError("bad-request", error.message, error.remedy) from error
        known = all_rules(connection)
        for slug in labs:
            moments = {
                name: moment_field(fields.get(f"{name}-{slug}", ""), zone) for name in MOMENTS
            }
            if slug in known or any(moments.values()):
                set_rules(connection, slug, now, **moments)

    def page(connection: Connection, preview: Preview) -> Response:
        return _workshop(shared, session, connection, preview)

    return save_or_preview(shared, fields, change, page, "/workshop#saved")


@router.post("/workshop/zone")
def change_zone(request: Request, session: AsInstructor, fields: Form) -> Response:
    """Set the time zone of the pages. Moments stay; the page lists those that now read otherwise:
    whoever typed nine o'clock meant nine o'clock.
    """
    zone = fields.get("timezone", "").strip()
    try:
        find_zone(zone)
    except UsageError as error:
        raise RefusedError("bad-request", error.message, error.remedy) from error
    shared = state(request)
    with shared.cohort.database.writing() as connection:
        before = load_settings(connection).timezone
        change_settings(connection, timezone=zone)
        moved = _moved(connection, before, zone)
        shared.zone = zone
        if moved:
            return _workshop(shared, session, connection, moved=moved, zone_before=before)
    return RedirectResponse("/workshop#saved", status_code=303)


def _moved(connection: Connection, before: str, after: str) -> list[tuple[str, str, float]]:
    """Return the moments that read differently in another time zone: whose, of what, and when."""
    moments = [
        (lab, heading, getattr(rules, name))
        for lab, rules in all_rules(connection).items()
        for name, heading in ALL_MOMENTS.items()
    ]
    people = tables.people
    rows = connection.execute(select(people.c.id, people.c.name))
    names = {row.id: row.name for row in rows}
    moments += [
        (lab, f"Extension of {names[person]}", due)
        for (person, lab), (due, _) in all_extensions(connection).items()
    ]
    return [
        (lab, heading, at)
        for lab, heading, at in moments
        if at is not None and local(at, before) != local(at, after)
    ]


@router.get("/workshop/runsheet")
def runsheet(
    request: Request, session: AsAssistant, plan: str = "half-day", start: str = ""
) -> Response:
    """Show a run sheet of the workshop's labs; without `start`, of tomorrow at nine."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        zone, labs = load_settings(connection).timezone, workshop_labs(connection)
    sheet = _sheet(labs, plan, start, zone, shared.cohort.database.clock())
    return _runsheet(shared, session, sheet, zone)


def _runsheet(
    shared: State, session: Session, sheet: RunSheet, zone: str, preview: Preview | None = None
) -> Response:
    overdue = overdue_labs(sheet, shared.cohort.database.clock())
    return shared.page(
        "runsheet.html", session, sheet=sheet, zone=zone, preview=preview, overdue=overdue
    )


@router.post("/workshop/runsheet")
def use(request: Request, session: AsInstructor, fields: Form) -> Response:
    """Give the labs of a run sheet its moments, and leave out the others."""
    shared, plan, start = state(request), fields.get("plan", ""), fields.get("start", "")
    with shared.cohort.database.reading() as connection:
        zone, labs = load_settings(connection).timezone, workshop_labs(connection)
        sheet = _sheet(labs, plan, start, zone, shared.cohort.database.clock())

    def change(connection: Connection, now: float) -> None:
        use_run_sheet(connection, sheet, now)

    def page(_connection: Connection, preview: Preview) -> Response:
        return _runsheet(shared, session, sheet, zone, preview)

    return save_or_preview(shared, fields, change, page, "/workshop#saved")


def _sheet(chosen: list[str], plan: str, start: str, zone: str, now: float) -> RunSheet:
    """Return the run sheet of a form. Raises RefusedError for a value that is none."""
    labs = load_labs()
    if plan not in get_args(Plan):
        raise RefusedError(
            "bad-request", f"'{plan[:40]}' is no run sheet.", "Choose half-day or six-weeks."
        )
    try:
        at = parse_moment(start, zone) if start.strip() else now + 86400
        begins = datetime.fromtimestamp(at, find_zone(zone))
        if not start.strip():
            begins = begins.replace(hour=9, minute=0, second=0, microsecond=0)
        return make_run_sheet(cast("Plan", plan), [labs[slug] for slug in chosen], begins)
    except UsageError as error:
        raise RefusedError("bad-request", error.message, error.remedy) from error
