"""The leaderboard: under pseudonyms, of those alone who chose to be on it, and without what is not
yet released.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.cohort.grading.rules import load_rules
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import VerdictReader


class LeaderboardRow(msgspec.Struct, frozen=True):
    """One line: labs passed, and how many submissions that took."""

    place: int
    pseudonym: str
    passed: int
    submissions: int


def load_leaderboard(
    connection: Connection, judge: VerdictReader, now: float
) -> list[LeaderboardRow]:
    """The most labs first, then the fewest submissions; equals share a place."""
    people = tables.people
    shown = {
        row.id: row.pseudonym
        for row in connection.execute(
            select(people).where(people.c.on_leaderboard, people.c.removed.is_(None))
        )
    }
    judged = [one for one in judge.latest(connection) if one.person in shown]
    hidden = {lab for lab in {one.lab for one in judged} if load_rules(connection, lab).hidden(now)}
    scores = {}
    for person in shown:
        mine = [one for one in judged if one.person == person and one.lab not in hidden]
        scores[person] = (len({one.lab for one in mine if one.passed}), len(mine))
    ordered = sorted(
        scores, key=lambda person: (-scores[person][0], scores[person][1], shown[person])
    )
    order = [(-scores[person][0], scores[person][1]) for person in ordered]
    return [
        LeaderboardRow(1 + order.index(order[at]), shown[person], *scores[person])
        for at, person in enumerate(ordered)
    ]
