"""Hints and solutions that the instructor has opened, as `lab hint` and `lab solution` ask."""

from __future__ import annotations

import time

from msgspec.structs import replace

from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members.membership import (
    keep_known_help,
    load_known_help,
    load_membership,
)
from bottleneck_lab.cohort.protocol import OpenHelp
from bottleneck_lab.errors import LabError

PATIENCE_S = 3.0
"""A hint does not wait long for an unreachable server."""
KEPT_S = 24 * 3600.0
"""How long an answer stays valid while the server is silent, so that an ended cohort does not lock
hints forever.
"""


def open_help(lab: str) -> OpenHelp:
    """Return what help of `lab` may be taken.

    All of it if no cohort was joined or its instructor locked nothing. While the server is silent,
    its last answer counts for a day. Raises nothing for a server that is gone or does not know this
    learner: help never depends on a cohort that has ended.
    """
    membership = load_membership()
    if membership is None:
        return OpenHelp()
    known = load_known_help(membership)
    client = Client(
        membership.url, membership.joined.token, patience_s=PATIENCE_S, timeout_s=PATIENCE_S
    )
    try:
        answer = client.open_help(lab)
    except RefusedByServerError:
        return OpenHelp()
    except LabError:
        fresh = 0 <= time.time() - known.at < KEPT_S
        return known.labs.get(lab, OpenHelp()) if fresh else OpenHelp()
    keep_known_help(replace(known, at=time.time(), labs={**known.labs, lab: answer}))
    return answer
