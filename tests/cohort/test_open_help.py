"""Help that the instructor opens, as `lab hint` and `lab solution` hear of it."""

from __future__ import annotations

import pytest

from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.grading import open_help
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.members.changes import remove
from bottleneck_lab.cohort.members.joining import join_codes
from bottleneck_lab.cohort.members.membership import Membership, remember
from bottleneck_lab.cohort.members.people import by_token
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import Join, OpenHelp

from .serving import serving


@pytest.fixture
def joined(sqlite_room, monkeypatch):
    """A user of this machine who has joined a served cohort; the server's process to stop."""
    monkeypatch.setattr(open_help, "PATIENCE_S", 0.3)
    with sqlite_room.cohort.database.reading() as connection:
        code = join_codes(connection)[0]
    with serving(sqlite_room.cohort.folder) as (port, server):
        url = f"http://127.0.0.1:{port}"
        membership = Membership(url, Client(url).join(Join(code, "Ada")))
        remember(membership)
        yield sqlite_room, membership, server


def hints(lab: str) -> int | None:
    return open_help.open_help(lab).hints


def close_hints(room, lab: str, count: int | None) -> None:
    with room.cohort.database.writing() as connection:
        set_rules(connection, lab, 0.0, hints_open=count)


def test_without_a_cohort_every_hint_is_open():
    assert hints("slow") is None


def test_the_instructor_opens_hints_and_a_silent_server_opens_none(joined, monkeypatch):
    room, _, server = joined
    assert hints("slow") is None
    close_hints(room, "slow", 0)
    assert hints("slow") == 0
    close_hints(room, "slow", 2)
    assert (hints("slow"), hints("wrong")) == (2, None)
    server.kill()
    assert (hints("slow"), hints("wrong")) == (2, None)
    monkeypatch.setattr(open_help, "KEPT_S", 0.0)
    assert hints("slow") is None


def test_who_was_removed_has_every_hint(joined):
    room, membership, _ = joined
    close_hints(room, "slow", 0)
    with room.cohort.database.writing() as connection:
        remove(connection, by_token(connection, membership.joined.token), 0.0)
    assert hints("slow") is None


def test_hints_and_the_solution_stay_locked_until_their_moment(joined):
    room, _, _ = joined
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, hints_at=4e9, solution_at=4e9, hints_open=2)
    assert open_help.open_help("slow") == OpenHelp(0, iso(4e9), iso(4e9), "UTC")
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, hints_at=1.0, solution_at=1.0)
    assert open_help.open_help("slow") == OpenHelp(2, timezone="UTC")
