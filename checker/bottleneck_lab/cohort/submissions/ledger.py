"""The ledger of a batch of submissions: limits and earlier receipts, read in a few queries, and
new rows, written in as few.

A query per submission would cost ten times the work of everything else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, case, func, select, update

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.grading.rules import Rules, rules_for
from bottleneck_lab.cohort.members.people import Person
from bottleneck_lab.cohort.moments import spoken
from bottleneck_lab.cohort.protocol import Capture, Receipt, Submission
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.workspace.commitments import Record


class Circumstances(msgspec.Struct, frozen=True):
    """Facts that explain a submission and are kept with it, under the message's field names.

    All are as the learner's machine reports them: shown, never counted on.
    """

    hints: int = 0
    checks: int = 0
    captures: list[Capture] = []
    figures: dict[str, float] = {}
    record: Record | None = None


class Ledger:
    """The accounts of the learners in a batch. Belongs to one transaction."""

    def __init__(
        self, connection: Connection, people: Iterable[Person], keys: Iterable[str], now: float
    ) -> None:
        self._connection, self._now = connection, now
        self._settings = load_settings(connection)
        self._labs = set(workshop_labs(connection))
        ids = sorted({person.id for person in people})
        table, people_ = tables.submissions, tables.people
        # Limits are a learner's, also where two who joined were found to be the same.
        learner = func.coalesce(people_.c.merged_into, people_.c.id)
        self._learner: dict[int, int] = {
            row.id: row.learner
            for row in connection.execute(
                select(people_.c.id, learner.label("learner")).where(people_.c.id.in_(ids))
            )
        }
        learners = sorted(set(self._learner.values()))
        self._rules = rules_for(connection, learners)
        self._latest: dict[int, float] = {}
        self._waiting: Counter[int] = Counter()
        self._counted: Counter[tuple[int, str]] = Counter()
        self._new: list[dict[str, Any]] = []

        earlier = select(table.c.person, table.c.request_key, table.c.receipt).where(
            table.c.person.in_(ids), table.c.request_key.in_(sorted(set(keys)))
        )
        self._receipts = {
            (row.person, row.request_key): msgspec.json.decode(row.receipt, type=Receipt)
            for row in connection.execute(earlier)
        }
        waiting = func.sum(case((table.c.state.in_(("queued", "running")), 1), else_=0))
        counted = func.sum(case((table.c.counts, 1), else_=0))
        accounts = (
            select(learner, table.c.lab, func.max(table.c.received), waiting, counted)
            .join(people_, people_.c.id == table.c.person)
            .where(learner.in_(learners))
            .group_by(learner, table.c.lab)
        )
        for person, lab, latest, wait, count in connection.execute(accounts):
            self._latest[person] = max(latest, self._latest.get(person, 0.0))
            self._waiting[person] += wait
            self._counted[person, lab] = count

    def receipt(self, person: Person, submission: Submission) -> Receipt | None:
        """Return the receipt of the same request, where it came before.

        Raises RefusedError if the key was another submission's.
        """
        receipt = self._receipts.get((person.id, submission.key))
        # A receipt keeps for good the name that the lab had when it was signed.
        if receipt is not None and current_name(receipt.lab) != submission.lab:
            raise RefusedError(
                "bad-request",
                "That key belongs to another submission.",
                "Send it with `lab submit`, which draws a new one.",
            )
        return receipt

    def require_allowed(self, person: Person, lab: str, *, counts: bool = True) -> int | None:
        """Return how many submissions remain after a further one; None without a budget.

        One that does not count, such as a capture, takes nothing off the budget. Raises
        RefusedError for every limit.
        """
        learner = self._learner[person.id]
        self._require_pace(learner)
        if lab not in self._labs:
            raise RefusedError(
                "unknown-lab",
                f"'{lab}' is not part of this workshop.",
                "`lab status` lists its labs; `lab check` measures on your own machine.",
            )
        # Staff earn nothing; they send work to see that the queue works, also the evening before.
        if person.may("assistant"):
            return None
        rules = self._rules(lab, learner)
        self._require_open(lab, rules)
        if rules.budget is None or not counts:
            return None
        left = rules.budget - self._counted[learner, lab]
        if left <= 0:
            raise RefusedError(
                "budget-spent",
                f"You have used all {rules.budget} submissions for '{lab}'.",
                "`lab check` still measures on your own machine; your instructor can grant more"
                " submissions.",
            )
        return left - 1

    def _require_pace(self, learner: int) -> None:
        """Raise RefusedError for a submission too soon after the last, or one too many at once."""
        wait = self._latest.get(learner, 0.0) + self._settings.min_interval_s - self._now
        if wait > 0:
            raise RefusedError(
                "too-fast", "You have only just submitted.", f"Wait {math.ceil(wait)} s.", wait
            )
        if self._waiting[learner] >= self._settings.max_waiting:
            raise RefusedError(
                "too-many-waiting",
                f"{self._waiting[learner]} of your submissions are already waiting.",
                "Wait for one of them: `lab status` shows them.",
                10.0,
            )

    def _require_open(self, lab: str, rules: Rules) -> None:
        """Raise RefusedError for a lab that is not open yet, or is closed."""
        if rules.opens is not None and self._now < rules.opens:
            raise RefusedError(
                "not-open",
                f"'{lab}' opens at {spoken(rules.opens, self._settings.timezone)}.",
                "Submit it then; `lab check` measures on your own machine meanwhile.",
            )
        if rules.closes is not None and self._now > rules.closes:
            raise RefusedError(
                "late",
                f"'{lab}' closed at {spoken(rules.closes, self._settings.timezone)}.",
                "Ask your instructor for an extension.",
            )

    def add(self, person: Person, submission: Submission, receipt: Receipt) -> None:
        """Enter a submission that is allowed; `write` puts it into the database."""
        circumstances = Circumstances(
            *(getattr(submission, name) for name in Circumstances.__struct_fields__)
        )
        self._new.append(
            {
                "handle": receipt.submission,
                "person": person.id,
                "lab": submission.lab,
                "device": submission.device,
                "lab_hash": submission.lab_hash,
                "request_key": submission.key,
                "blob": receipt.content_sha256,
                "capture": submission.capture,
                "tool": submission.tool,
                "counts": submission.tool is None,
                "received": self._now,
                "receipt": msgspec.json.encode(receipt).decode(),
                "circumstances": msgspec.json.encode(circumstances).decode(),
                "state": "queued",
                "queued": self._now,
            }
        )
        self._receipts[person.id, submission.key] = receipt
        learner = self._learner[person.id]
        self._latest[learner] = self._now
        self._waiting[learner] += 1
        self._counted[learner, submission.lab] += submission.tool is None

    def write(self) -> None:
        """Insert all that was added, with an event for each."""
        if not self._new:
            return
        self._connection.execute(tables.submissions.insert(), self._new)
        seen = sorted({row["person"] for row in self._new})
        self._connection.execute(
            update(tables.people).where(tables.people.c.id.in_(seen)).values(seen=self._now)
        )
        events = [
            {
                "at": self._now,
                "kind": "submitted",
                "person": row["person"],
                "submission": row["handle"],
                "text": "",
            }
            for row in self._new
        ]
        self._connection.execute(tables.events.insert(), events)
