"""What holds for one lab and one learner: due date, budget, hints, release of feedback; the lab's
own, and the learner's extension.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note


class Rules(msgspec.Struct, frozen=True):
    """Times in seconds since the epoch. `budget` None: as many as one likes; `hints_open` None:
    all.
    """

    lab: str
    due: float | None = None
    closes: float | None = None
    points: float = 100.0
    budget: int | None = None
    hints_open: int | None = None
    feedback_at: float | None = None

    def left(self, connection: Connection, person: int) -> int | None:
        """How many submissions this learner has left; None without a budget."""
        if self.budget is None:
            return None
        table = tables.submissions
        query = select(func.count()).where(
            table.c.person == person, table.c.lab == self.lab, table.c.counts
        )
        return self.budget - connection.execute(query).scalar_one()

    def hidden(self, now: float) -> bool:
        """Whether feedback is still held back."""
        return self.feedback_at is not None and now < self.feedback_at


def load_rules(connection: Connection, lab: str, person: int | None = None) -> Rules:
    """The rules of a lab; with a learner's extension laid over, where there is one."""
    return rules_for(connection, [] if person is None else [person])(lab, person)


def rules_for(connection: Connection, people: list[int]) -> Callable[[str, int | None], Rules]:
    """The rules of any lab for any of these people, read at once."""
    table = tables.extensions
    rules = all_rules(connection)
    rows = connection.execute(select(table).where(table.c.person.in_(people)))
    extra = {(row.person, row.lab): (row.due, row.extra_budget) for row in rows}

    def of(lab: str, person: int | None) -> Rules:
        own = extra.get((person or 0, lab))
        return _extended(rules.get(lab, Rules(lab)), *own) if own else rules.get(lab, Rules(lab))

    return of


def all_rules(connection: Connection) -> dict[str, Rules]:
    """Of every lab that has any of its own."""
    return {row.slug: Rules(*row) for row in connection.execute(select(tables.labs))}


def all_extensions(connection: Connection) -> dict[tuple[int, str], tuple[float | None, int]]:
    """New due date and extra budget, by learner and lab."""
    return {
        (row.person, row.lab): (row.due, row.extra_budget)
        for row in connection.execute(select(tables.extensions))
    }


def _extended(rules: Rules, due: float | None, extra_budget: int) -> Rules:
    """A later due date moves the closing as far."""
    budget = None if rules.budget is None else rules.budget + extra_budget
    if due is None:
        return msgspec.structs.replace(rules, budget=budget)
    closes = rules.closes and max(rules.closes, due + (rules.closes - (rules.due or rules.closes)))
    return msgspec.structs.replace(rules, due=due, closes=closes, budget=budget)


def set_rules(connection: Connection, lab: str, at: float, **changes: float | int | None) -> Rules:
    """Change some of a lab's rules; all as they are then."""
    rules = msgspec.structs.replace(load_rules(connection, lab), **changes)
    values = {"slug": lab, **{name: getattr(rules, name) for name in Rules.__struct_fields__[1:]}}
    connection.execute(tables.labs.delete().where(tables.labs.c.slug == lab))
    connection.execute(tables.labs.insert().values(values))
    note(connection, at, "settings", lab)
    return rules


def extend(
    connection: Connection, person: int, lab: str, due: float | None, extra_budget: int, at: float
) -> None:
    """Give one learner more time or more submissions, in place of an earlier extension."""
    table = tables.extensions
    connection.execute(table.delete().where(table.c.person == person, table.c.lab == lab))
    connection.execute(
        table.insert().values(person=person, lab=lab, due=due, extra_budget=extra_budget)
    )
    note(connection, at, "settings", lab, person=person)
