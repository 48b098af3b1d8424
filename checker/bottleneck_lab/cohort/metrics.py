"""Figures for Prometheus, computed when they are read. There are no names of people among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from sqlalchemy import Connection, func, select

from bottleneck_lab.cohort.running.leases import queue_length
from bottleneck_lab.cohort.running.workers import RunnerStatus, load_runners
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import VerdictReader

STATES = ("queued", "running", "done", "captured", "uncaptured", "failed")


def render_metrics(connection: Connection, judge: VerdictReader, now: float, pages: int) -> str:
    """Return the text that Prometheus scrapes. `pages` are those that follow live changes."""
    lines = [
        *_queue_gauges(connection, judge, now),
        *_gauge("pages_open", "Pages and clients following live changes.", {"": pages}),
        *_latency_gauges(connection),
        *_runner_gauges(load_runners(connection), now),
    ]
    return "\n".join(lines) + "\n"


def _queue_gauges(connection: Connection, judge: VerdictReader, now: float) -> Iterator[str]:
    submissions, people = tables.submissions, tables.people
    states = queue_length(connection)
    # States without submissions are reported as 0: a gauge that vanishes raises false alarms.
    by_state = {f'state="{state}"': states.get(state, 0) for state in STATES}
    yield from _gauge("submissions", "Submissions by state.", by_state)
    outcomes = Counter(
        "ALTERED" if one.problem else str(one.outcome) for one in judge.latest(connection)
    )
    by_outcome = {f'outcome="{name}"': count for name, count in sorted(outcomes.items())}
    yield from _gauge("verdicts", "Verdicts in force by outcome.", by_outcome)
    # Whoever joined twice and was merged is one.
    learner = func.coalesce(people.c.merged_into, people.c.id)
    learners = select(func.count(func.distinct(learner))).where(
        people.c.role == "learner", people.c.joined.is_not(None), people.c.removed.is_(None)
    )
    joined = connection.execute(learners).scalar_one()
    yield from _gauge("learners", "Learners who have joined.", {"": joined})
    oldest = select(func.min(submissions.c.queued)).where(submissions.c.state == "queued")
    waiting = connection.execute(oldest).scalar()
    yield from _gauge(
        "oldest_waiting_seconds",
        "How long the oldest queued submission has waited.",
        {"": now - waiting if waiting else 0},
    )
    lost = select(func.count()).where(tables.leases.c.state == "lost")
    yield from _gauge(
        "leases_lost",
        "Attempts that ended without a verdict.",
        {"": connection.execute(lost).scalar_one()},
    )


def _gauge(name: str, description: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP lab_cohort_{name} {description}"
    yield f"# TYPE lab_cohort_{name} gauge"
    for labels, value in values.items():
        braces = f"{{{labels}}}" if labels else ""
        yield f"lab_cohort_{name}{braces} {value:g}"


def _latency_gauges(connection: Connection) -> Iterator[str]:
    """Yield quantiles over the last 200 checks: submission to start, and start to verdict."""
    leases, submissions = tables.leases, tables.submissions
    query = (
        select(leases.c.taken - submissions.c.queued, leases.c.ended - leases.c.taken)
        .join(submissions, submissions.c.id == leases.c.submission)
        .where(leases.c.state == "done")
        .order_by(leases.c.id.desc())
        .limit(200)
    )
    rows = connection.execute(query).all()
    for column, name, description in (
        (0, "wait_seconds", "From submission to the start of its check."),
        (1, "check_seconds", "From the start of a check to its verdict."),
    ):
        durations = sorted(row[column] for row in rows)
        quantiles = {}
        for quantile in (0.5, 0.95) if durations else ():
            at = min(len(durations) - 1, int(len(durations) * quantile))
            quantiles[f'quantile="{quantile}"'] = durations[at]
        yield from _gauge(name, description, quantiles)


def _runner_gauges(runners: list[RunnerStatus], now: float) -> Iterator[str]:
    alive: dict[str, float] = {}
    slots: dict[str, float] = {}
    busy: dict[str, float] = {}
    health: dict[str, dict[str, float]] = {}
    for runner in runners:
        label = f'runner="{_escape(runner.name)}"'
        alive[label] = runner.alive(now)
        slots[label] = len(runner.slots)
        busy[label] = sum(slot.busy is not None for slot in runner.slots)
        for name, value in runner.health.items():
            # `gpu0.power_watts` is a figure of a device; a name without a dot is a remark.
            device, _, figure = name.partition(".")
            if figure:
                labels = f'{label},device="{_escape(device)}"'
                health.setdefault(figure, {})[labels] = float(value)
    yield from _gauge("runner_up", "Whether a runner was heard from recently.", alive)
    yield from _gauge("slots", "Checks that a runner can run at once.", slots)
    yield from _gauge("slots_busy", "Checks that a runner is running now.", busy)
    for figure, values in sorted(health.items()):
        yield from _gauge(figure, f"{figure} of a device, as its runner reads it.", values)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
