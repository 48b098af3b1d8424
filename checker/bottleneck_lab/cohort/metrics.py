"""Figures for Prometheus, computed when they are read. There are no names of people among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from sqlalchemy import Connection, func, select

from bottleneck_lab.cohort.running.leases import queue_length
from bottleneck_lab.cohort.running.workers import Runner, load_runners
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import VerdictReader

STATES = ("queued", "running", "done", "failed")


def render_metrics(connection: Connection, judge: VerdictReader, now: float, pages: int) -> str:
    """The text that Prometheus scrapes."""
    return "\n".join(_lines(connection, judge, now, pages)) + "\n"


def _lines(connection: Connection, judge: VerdictReader, now: float, pages: int) -> Iterator[str]:
    states = queue_length(connection)
    yield from _gauge(
        "submissions",
        "Submissions by state.",
        {f'state="{state}"': states.get(state, 0) for state in STATES},
    )
    outcomes = Counter(
        "ALTERED" if one.problem else str(one.outcome) for one in judge.latest(connection)
    )
    yield from _gauge(
        "verdicts",
        "Verdicts in force by outcome.",
        {f'outcome="{name}"': count for name, count in sorted(outcomes.items())},
    )
    people = tables.people
    learners = select(func.count()).where(
        people.c.role == "learner", people.c.joined.is_not(None), people.c.removed.is_(None)
    )
    yield from _gauge(
        "learners", "Learners who have joined.", {"": connection.execute(learners).scalar_one()}
    )
    waiting = connection.execute(
        select(func.min(tables.submissions.c.queued)).where(tables.submissions.c.state == "queued")
    ).scalar()
    yield from _gauge(
        "oldest_waiting_seconds",
        "How long the oldest queued submission has waited.",
        {"": now - waiting if waiting else 0},
    )
    yield from _gauge("pages_open", "Pages and clients following live changes.", {"": pages})
    yield from _latencies(connection)
    yield from _runners(load_runners(connection), now)
    lost = connection.execute(
        select(func.count()).where(tables.leases.c.state == "lost")
    ).scalar_one()
    yield from _gauge("leases_lost", "Attempts that ended without a verdict.", {"": lost})


def _gauge(name: str, told: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP lab_cohort_{name} {told}"
    yield f"# TYPE lab_cohort_{name} gauge"
    for labels, value in values.items():
        yield (
            f"lab_cohort_{name}{{{labels}}} {value:g}" if labels else f"lab_cohort_{name} {value:g}"
        )


def _latencies(connection: Connection) -> Iterator[str]:
    """Of the last 200 checks: from submission to begin, and from begin to verdict."""
    leases, submissions = tables.leases, tables.submissions
    query = (
        select(leases.c.taken - submissions.c.queued, leases.c.ended - leases.c.taken)
        .join(submissions, submissions.c.id == leases.c.submission)
        .where(leases.c.state == "done")
        .order_by(leases.c.id.desc())
        .limit(200)
    )
    rows = connection.execute(query).all()
    for name, told, at in (
        ("wait", "From submission to the start of its check.", 0),
        ("check", "From the start of a check to its verdict.", 1),
    ):
        took = sorted(row[at] for row in rows)
        values = (
            {f'quantile="{q}"': took[min(len(took) - 1, int(len(took) * q))] for q in (0.5, 0.95)}
            if took
            else {}
        )
        yield from _gauge(f"{name}_seconds", told, values)


def _runners(runners: list[Runner], now: float) -> Iterator[str]:
    names = {runner.name: f'runner="{_label(runner.name)}"' for runner in runners}
    yield from _gauge(
        "runner_up",
        "Whether a runner was heard from recently.",
        {names[one.name]: one.alive(now) for one in runners},
    )
    yield from _gauge(
        "slots",
        "Checks that a runner can run at once.",
        {names[one.name]: len(one.slots) for one in runners},
    )
    busy = {names[one.name]: sum(slot.busy is not None for slot in one.slots) for one in runners}
    yield from _gauge("slots_busy", "Checks that a runner is running now.", busy)
    health: dict[str, dict[str, float]] = {}
    for runner in runners:
        for name, value in runner.health.items():
            device, _, figure = name.partition(".")
            if figure:
                health.setdefault(figure, {})[f'{names[runner.name]},device="{_label(device)}"'] = (
                    float(value)
                )
    for figure, values in sorted(health.items()):
        yield from _gauge(figure, f"{figure} of a device, as its runner reads it.", values)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
