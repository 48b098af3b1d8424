"""Hints that the instructor has opened, as `lab hint` asks before it gives one."""

from __future__ import annotations

import time

from msgspec.structs import replace

from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members.membership import (
    keep_known_hints,
    load_known_hints,
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
    """Return how many hints of `lab` may be taken; None for all.

    None too if no cohort was joined or its instructor closed none. While the server is silent, its
    last answer counts for a day. Raises nothing for a server that is gone or does not know this
    learner: hints never depend on a cohort that has ended.
    """
    membership = load_membership()
    if membership is None:
        return None
    known = load_known_hints(membership)
    client = Client(
        membership.url, membership.joined.token, patience_s=PATIENCE_S, timeout_s=PATIENCE_S
    )
    try:
        answer = client.open_hints(lab).open
    except RefusedByServerError:
        return None
    except LabError:
        return known.open.get(lab) if 0 <= time.time() - known.at < KEPT_S else None
    keep_known_hints(replace(known, at=time.time(), open={**known.open, lab: answer}))
    return answer
