"""Rules of a lab for one learner: due date, budget, hints, release of feedback, and extension."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.cohort.moments import spoken
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note


class Rules(msgspec.Struct, frozen=True):
    """Rules of a lab. Times in seconds since the epoch.

    A `budget` of None sets no limit on submissions; `hints_open` of None opens all hints.
    Submissions are accepted from `opens`, hints given from `hints_at` and the solution from
    `solution_at`; None is from the beginning.
    """

    lab: str
    due: float | None = None
    closes: float | None = None
    points: float = 100.0
    budget: int | None = None
    hints_open: int | None = None
    feedback_at: float | None = None
    opens: float | None = None
    hints_at: float | None = None
    solution_at: float | None = None

    def left(self, connection: Connection, people: list[int]) -> int | None:
        """Return how many submissions a learner has left; None without a budget.

        `people` are the numbers that are this learner's, several where they were merged.
        """
        if self.budget is None:
            return None
        table = tables.submissions
        query = select(func.count()).where(
            table.c.person.in_(people), table.c.lab == self.lab, table.c.counts
        )
        return self.budget - connection.execute(query).scalar_one()

    @property
    def ends(self) -> float | None:
        """Return when it is due, or else closes: what an extension moves. None without either."""
        return self.closes if self.due is None else self.due

    @property
    def late_hints(self) -> bool:
        """Return True if hints open when the lab is due, or later: too late to help."""
        return self.hints_at is not None and self.due is not None and self.hints_at >= self.due

    def hidden(self, now: float) -> bool:
        """Return True while feedback is held back."""
        return self.feedback_at is not None and now < self.feedback_at

    def hints_open_at(self, now: float) -> int | None:
        """Return how many hints may be taken now; None for all."""
        return 0 if self.hints_at is not None and now < self.hints_at else self.hints_open


def load_rules(connection: Connection, lab: str, person: int | None = None) -> Rules:
    """Return the rules of a lab, with the extension of `person` applied if one is given."""
    return rules_for(connection, [] if person is None else [person])(lab, person)


def rules_for(connection: Connection, people: list[int]) -> Callable[[str, int | None], Rules]:
    """Return a lookup of the rules of any lab for any of these people, read in two queries."""
    rules = all_rules(connection)
    extra = _extensions(connection, people)

    def of(lab: str, person: int | None) -> Rules:
        general = rules.get(lab, Rules(lab))
        if (person or 0, lab) not in extra:
            return general
        due, extra_budget = extra[person or 0, lab]
        budget = None if general.budget is None else general.budget + extra_budget
        # Everybody may have got more time since: an extension never gives less.
        if due is None or general.ends is None or due <= general.ends:
            return msgspec.structs.replace(general, budget=budget)
        # A later due date moves the closing as far, so that the extension can be used.
        closes = general.closes
        if closes is not None:
            closes = max(closes, due + closes - general.ends)
        # And whoever may still submit does not get the solution yet.
        solution_at = general.solution_at
        if solution_at is not None:
            solution_at = max(solution_at, due)
        return msgspec.structs.replace(
            general, due=due, closes=closes, budget=budget, solution_at=solution_at
        )

    return of


def all_rules(connection: Connection) -> dict[str, Rules]:
    """Return the rules of every lab that has any of its own."""
    return {row.slug: Rules(*row) for row in connection.execute(select(tables.labs))}


def all_extensions(connection: Connection) -> dict[tuple[int, str], tuple[float | None, int]]:
    """Return new due dates and extra budgets, by learner and lab."""
    return _extensions(connection)


def _extensions(
    connection: Connection, learners: list[int] | None = None
) -> dict[tuple[int, str], tuple[float | None, int]]:
    """Return new due dates and extra budgets of these learners, or of all, by learner and lab.

    What somebody got who was merged into a learner is that learner's: of several, the latest due
    date and the largest budget.
    """
    table, people = tables.extensions, tables.people
    learner = func.coalesce(people.c.merged_into, people.c.id)
    query = (
        select(learner, table.c.lab, func.max(table.c.due), func.max(table.c.extra_budget))
        .join(people, people.c.id == table.c.person)
        .group_by(learner, table.c.lab)
    )
    if learners is not None:
        query = query.where(learner.in_(learners))
    return {(person, lab): (due, extra) for person, lab, due, extra in connection.execute(query)}


def set_rules(connection: Connection, lab: str, at: float, **changes: float | int | None) -> Rules:
    """Change some of a lab's rules and return all of them.

    Raises RefusedError if the lab would be due before it opens.
    """
    rules = msgspec.structs.replace(load_rules(connection, lab), **changes)
    if rules.opens is not None and rules.due is not None and rules.opens >= rules.due:
        raise RefusedError(
            "bad-request",
            f"{lab} would be due before it opens.",
            "Name a time when it is due that is after the one when it opens.",
        )
    values = {"slug": lab, **{name: getattr(rules, name) for name in Rules.__struct_fields__[1:]}}
    connection.execute(tables.labs.delete().where(tables.labs.c.slug == lab))
    connection.execute(tables.labs.insert().values(values))
    note(connection, at, "settings", lab)
    return rules


def extend(
    connection: Connection, person: int, lab: str, due: float | None, extra_budget: int, at: float
) -> None:
    """Give one learner more time or more submissions, in place of an earlier extension, also of
    one of somebody who was merged into them.

    Neither of them withdraws the earlier one. Raises RefusedError for a `due` that gives no more
    time than everybody has.
    """
    rules = load_rules(connection, lab)
    if due is not None and rules.ends is None:
        raise RefusedError(
            "bad-request",
            f"{lab} is never due and never closes, so there is nothing to extend.",
            "Leave the new due date empty, or first set one for everybody on the lab's page.",
        )
    if due is not None and rules.ends is not None and due <= rules.ends:
        zone = load_settings(connection).timezone
        verb = "closes" if rules.due is None else "is due"
        raise RefusedError(
            "bad-request",
            f"{lab} {verb} at {spoken(rules.ends, zone)} for everybody, so an extension until"
            f" {spoken(due, zone)} gives no more time.",
            "Choose a later date, or leave it empty.",
        )
    table, people = tables.extensions, tables.people
    group = select(people.c.id).where((people.c.id == person) | (people.c.merged_into == person))
    connection.execute(table.delete().where(table.c.person.in_(group), table.c.lab == lab))
    if due is not None or extra_budget:
        connection.execute(
            table.insert().values(person=person, lab=lab, due=due, extra_budget=extra_budget)
        )
    note(connection, at, "settings", lab, person=person)
