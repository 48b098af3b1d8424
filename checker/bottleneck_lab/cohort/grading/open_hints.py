"""How many hints of a lab the instructor has opened, as `lab hint` asks before it gives one."""

from __future__ import annotations

import time

from msgspec.structs import replace

from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members.membership import (
    Membership,
    keep_hints_told,
    load_hints_told,
    load_membership,
)
from bottleneck_lab.errors import LabError

PATIENCE_S = 3.0
"""A hint does not wait long for an unreachable server."""
KEPT_S = 24 * 3600.0
"""How long an answer stays valid while the server is silent, so that an ended cohort does not lock
hints forever.
"""


def unlocked_hints(lab: str) -> int | None:
    """How many hints of `lab` may be taken; None for all: no cohort was joined, or its instructor
    closed none.

    While the server is silent, its last answer counts for a day. Raises nothing for a server that
    is gone or does not know this learner.
    """
    membership = load_membership()
    if membership is None:
        return None
    told = load_hints_told(membership)
    try:
        answer = _client(membership).open_hints(lab).open
    except RefusedByServerError:
        return None
    except LabError:
        return told.open.get(lab) if 0 <= time.time() - told.at < KEPT_S else None
    keep_hints_told(replace(told, at=time.time(), open={**told.open, lab: answer}))
    return answer


def _client(membership: Membership) -> Client:
    return Client(
        membership.url, membership.joined.token, patience_s=PATIENCE_S, timeout_s=PATIENCE_S
    )
