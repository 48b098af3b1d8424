"""Messages between learner and server: JSON of these types, and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

from bottleneck_lab.catalog import Device
from bottleneck_lab.workspace.commitments import Record

MAX_FILE_BYTES = 256 << 10
"""Limit for one submitted file; source code stays far below."""
MAX_BODY_BYTES = 1 << 20
"""Limit for one whole request. The server reads no further."""
MAX_CAPTURE_BYTES = 16 << 20
"""Limit for all files of a capture together, as sent."""
MAX_NAME = 80
"""Characters of a learner's name."""

State = Literal["queued", "running", "done", "captured", "uncaptured", "failed"]
"""A submission's state; `captured` if a runner made the capture that was wanted, `uncaptured` if
its profiler recorded nothing; `failed` if the machine failed too often, which is never the
learner's fault.
"""
Tool = Literal["torch", "nsys", "ncu"]
"""A profiler that a runner can run against submitted code."""


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what clients send: what is not declared is refused, since it would be lost."""


class _Reply(msgspec.Struct, frozen=True):
    """Base of what servers answer: a client ignores what only a newer version knows."""


VERSION_HEADER = "Bottleneck-Lab-Version"
"""Names the server's version in every answer to a client."""


class Join(_Request, frozen=True):
    """A learner asks to be let in.

    `student_id` is needed only where the cohort has a roster. `same` answers, where somebody of
    that name has joined before, whether this is the same person; None leaves it open.
    """

    code: str
    name: str
    student_id: str | None = None
    same: bool | None = None


class Help(_Request, frozen=True):
    """A learner calls for help with `text`; None takes the call back."""

    text: str | None


class Joined(_Reply, frozen=True):
    """The learner is in. `token` is their only credential; `public_key` (PEM) checks every receipt
    and verdict of this cohort. `labs` are those of the workshop; older servers do not say.
    """

    cohort: str
    cohort_name: str
    learner: str
    name: str
    token: str
    public_key: str
    labs: list[str] = []


class Capture(_Request, frozen=True):
    """A capture in the learner's workspace: its folder's name, and when it was made."""

    name: str
    made: str


class Submission(_Request, frozen=True):
    """A submission. `key` makes a retry of the same request harmless.

    All besides the files explains the work to an instructor and is never counted on.
    """

    key: str
    lab: str
    lab_hash: str
    device: Device
    files: dict[str, bytes]
    hints: int = 0
    checks: int = 0
    captures: list[Capture] = []
    figures: dict[str, float] = {}
    """Figures of the capture that the diagnosis is about, as shares and ratios."""
    record: Record | None = None
    """The diagnoses that were committed, and the help that was taken."""
    capture: str | None = None
    """The SHA-256 under which the capture that the diagnosis is about was stored before; None if
    none came.
    """
    tool: Tool | None = None
    """The profiler to run in place of a check; None for a check."""


class Stored(_Reply, frozen=True):
    """The server has these files of a capture, under the SHA-256 of their packed form."""

    sha256: str


class Receipt(_Reply, frozen=True, forbid_unknown_fields=True):
    """Confirmation of what is stored, signed with the cohort's key over its canonical JSON.

    What is not declared is refused here too: it was signed along.
    """

    cohort: str
    learner: str
    submission: str
    lab: str
    content_sha256: str
    received_at: str
    key: str
    signature: str = ""


class Allowed(_Reply, frozen=True):
    """A learner may submit to a lab now, and after that `left` times more; None without a limit."""

    left: int | None


class Accepted(_Reply, frozen=True):
    """The answer to a submission: `ahead` others are measured before it; `left` submissions remain
    of the budget, None without one. While measuring is `paused`, `wait_s` counts from its end.
    `timezone` is the cohort's; older servers do not say.
    """

    receipt: Receipt
    ahead: int
    wait_s: float | None
    left: int | None
    paused: bool = False
    timezone: str = ""


class Standing(_Reply, frozen=True):
    """State of one submission. `version` rises with every change.

    `verdict` is the signed document, once it is released. While measuring is `paused`, `wait_s`
    counts from its end.
    """

    submission: str
    lab: str
    state: State
    version: int
    ahead: int
    wait_s: float | None
    received_at: str
    outcome: str | None = None
    summary: str | None = None
    verdict: str | None = None
    note: str | None = None
    paused: bool = False
    timezone: str = ""


class LabStanding(_Reply, frozen=True):
    """One lab of the cohort as a learner sees it. Times are ISO 8601 in UTC.

    `points` that count, None while there are none or they are not released; `penalty` is what being
    late has cost, and `late_s` how late the submission that counts came. `comment` explains points
    that the instructor gave, `reason` why those computed are not all. `opens` is when it takes
    submissions, None if it does already.
    """

    slug: str
    title: str
    due: str | None
    left: int | None
    hints_open: int
    passed: bool
    submissions: int
    points: float | None = None
    max_points: float = 0.0
    penalty: float = 0.0
    late_s: float = 0.0
    comment: str = ""
    opens: str | None = None
    reason: str = ""


class OpenHelp(_Reply, frozen=True):
    """The help of a lab that may be taken: `hints`, None for all, and whether the solution is open.

    `hints_from` and `solution_from` are when an instructor's lock ends (ISO 8601, UTC), None where
    there is none or it has ended. `timezone` is the cohort's; older servers do not say.
    """

    hints: int | None = None
    hints_from: str | None = None
    solution_from: str | None = None
    timezone: str = ""


class Me(_Reply, frozen=True):
    """A learner's own view of the cohort. `needs_help` is since when they have asked for help.

    `timezone` is the cohort's, in which notes name moments; older servers do not say.
    """

    cohort: str
    cohort_name: str
    learner: str
    name: str
    paused: bool
    announcements: list[str]
    labs: list[LabStanding]
    submissions: list[Standing]
    needs_help: str | None = None
    timezone: str = ""


class LoginLink(_Reply, frozen=True):
    """The path of a link that opens the learner's own page, once."""

    path: str


class Refusal(_Reply, frozen=True):
    """A refusal: a code for programs, a sentence, and what to do about it."""

    code: str
    message: str
    remedy: str
    retry_after_s: float | None = None


def content_of(files: dict[str, bytes]) -> bytes:
    """Pack files into one blob: JSON, names sorted, contents in Base64."""
    return msgspec.json.encode(dict(sorted(files.items())))


def files_of(content: bytes) -> dict[str, bytes]:
    """Unpack the files of a blob. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(content, type=dict[str, bytes])
