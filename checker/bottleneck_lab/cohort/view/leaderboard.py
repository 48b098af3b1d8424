"""The leaderboard: under pseudonyms, only of those who chose to be on it."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.cohort.grading.rules import load_rules
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import VerdictReader


class LeaderboardRow(msgspec.Struct, frozen=True):
    """One line: labs passed, and how many submissions that took."""

    rank: int
    pseudonym: str
    passed: int
    submissions: int


def load_leaderboard(
    connection: Connection, judge: VerdictReader, now: float
) -> list[LeaderboardRow]:
    """Return the rows: most labs first, then fewest submissions; equals share a rank."""
    people = tables.people
    shown = {
        row.id: row.pseudonym
        for row in connection.execute(
            select(people).where(people.c.on_leaderboard, people.c.removed.is_(None))
        )
    }
    judged = [one for one in judge.latest(connection) if one.person in shown]
    # A rank would give away what is not released yet.
    hidden = {lab for lab in {one.lab for one in judged} if load_rules(connection, lab).hidden(now)}
    standings = []
    for person, pseudonym in shown.items():
        mine = [one for one in judged if one.person == person and one.lab not in hidden]
        passed = len({one.lab for one in mine if one.passed})
        standings.append((-passed, len(mine), pseudonym))
    standings.sort()
    scores = [(passed, count) for passed, count, _ in standings]
    return [
        LeaderboardRow(1 + scores.index((passed, count)), pseudonym, -passed, count)
        for passed, count, pseudonym in standings
    ]
