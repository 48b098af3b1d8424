"""What a learner's machine remembers: the cohort joined, the token, and a receipt for every
submission.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bottleneck_lab.cohort.protocol import Joined, Receipt, Submission
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import TEMPORARY, clear, explained, write_bytes
from bottleneck_lab.workspace.folder import read_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked


class Membership(msgspec.Struct, frozen=True):
    """The cohort that this user has joined, and where its server is."""

    url: str
    joined: Joined


class HintsTold(msgspec.Struct, frozen=True):
    """What the server of `cohort` said last of the hints that are open, by lab (None: all), and
    when (seconds since the epoch).
    """

    cohort: str
    at: float = 0.0
    open: dict[str, int | None] = {}


def _folder() -> Path:
    folder = home() / "cohort"
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    return folder


def _write(name: str, data: bytes) -> Path:
    """A file for its owner alone: it may hold the token."""
    folder = _folder()
    previous = os.umask(0o077)
    try:
        with locked(folder / "lock", "lab"):
            clear(folder, TEMPORARY)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, data, scratch=folder)
    finally:
        os.umask(previous)
    return folder / name


def remember(membership: Membership) -> None:
    """This user has joined; an earlier cohort's receipts stay."""
    _write("joined.json", msgspec.json.format(msgspec.json.encode(membership)))


def load_membership() -> Membership | None:
    """The cohort joined last; None before that."""
    file = home() / "cohort" / "joined.json"
    return read_json(file, Membership) if file.exists() else None


def require_membership() -> Membership:
    """The same. Raises UsageError before that."""
    membership = load_membership()
    if membership is None:
        raise UsageError(
            "You have not joined a cohort.",
            "Join with `lab join URL CODE`; your instructor has both.",
        )
    return membership


def keep_hints_told(told: HintsTold) -> None:
    """Remember it for when the server is silent."""
    _write("hints.json", msgspec.json.encode(told))


def load_hints_told(membership: Membership) -> HintsTold:
    """What was said last by the server of this cohort."""
    file, nothing = home() / "cohort" / "hints.json", HintsTold(membership.joined.cohort)
    told = read_json(file, HintsTold) if file.exists() else nothing
    return told if told.cohort == membership.joined.cohort else nothing


def keep_receipt(receipt: Receipt) -> Path:
    """Where the receipt is kept."""
    return _write(
        f"receipts/{receipt.cohort}-{receipt.submission}.json",
        msgspec.json.format(msgspec.json.encode(receipt)),
    )


def keep_verdict(receipt_cohort: str, submission: str, document: str) -> Path:
    """Where the signed verdict of a submission is kept, as it came."""
    return _write(f"verdicts/{receipt_cohort}-{submission}.json", document.encode())


def keep_unsent(submission: Submission) -> None:
    """Remember what is about to be sent, so that the next `lab submit` of the same files is the
    same request.
    """
    _write("unsent.json", msgspec.json.encode(submission))


def same_key(submission: Submission) -> Submission:
    """The submission under the key of an earlier try that was never answered, if it is the same."""
    file = home() / "cohort" / "unsent.json"
    if not file.exists():
        return submission
    try:
        earlier = msgspec.json.decode(file.read_bytes(), type=Submission)
    except (OSError, msgspec.DecodeError):
        return submission
    names = ("lab", "lab_hash", "device", "files", "capture")
    same = all(getattr(earlier, name) == getattr(submission, name) for name in names)
    return msgspec.structs.replace(submission, key=earlier.key) if same else submission


def forget_unsent() -> None:
    """It was answered."""
    (home() / "cohort" / "unsent.json").unlink(missing_ok=True)
