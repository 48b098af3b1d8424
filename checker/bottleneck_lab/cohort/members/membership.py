"""A learner's own records: the cohort joined, the token, and a receipt for every submission."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bottleneck_lab.cohort.protocol import Joined, OpenHelp, Receipt, Submission
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import TEMPORARY, clear, explained, write_bytes
from bottleneck_lab.workspace.folder import read_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked


class Membership(msgspec.Struct, frozen=True):
    """The cohort that this user has joined, and where its server is."""

    url: str
    joined: Joined


class KnownHelp(msgspec.Struct, frozen=True):
    """The last answer of the server of `cohort` about open help, by lab.

    `at` is when it came, in seconds since the epoch.
    """

    cohort: str
    at: float = 0.0
    labs: dict[str, OpenHelp] = {}


def _write(name: str, data: bytes) -> Path:
    """Write a file that its owner alone can read, since it may hold the token; return its path."""
    folder = home() / "cohort"
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    # By the umask, not by chmod afterwards: the token is readable for nobody else at any moment.
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
    """Record that this user has joined. An earlier cohort's receipts stay."""
    _write("joined.json", msgspec.json.format(msgspec.json.encode(membership)))


def load_membership() -> Membership | None:
    """Return the cohort joined last; None before that."""
    file = home() / "cohort" / "joined.json"
    return read_json(file, Membership) if file.exists() else None


def require_membership() -> Membership:
    """Return the cohort joined last. Raises UsageError if none was."""
    membership = load_membership()
    if membership is None:
        raise UsageError(
            "You have not joined a cohort.",
            "Join with `lab join URL CODE`; your instructor has both.",
        )
    return membership


def keep_known_help(known: KnownHelp) -> None:
    """Keep an answer of the server for when it is silent."""
    _write("help.json", msgspec.json.encode(known))


def load_known_help(membership: Membership) -> KnownHelp:
    """Return the last answer of this cohort's server; an empty one if none was kept."""
    file = home() / "cohort" / "help.json"
    if file.exists():
        known = read_json(file, KnownHelp)
        if known.cohort == membership.joined.cohort:
            return known
    return KnownHelp(membership.joined.cohort)


def keep_receipt(receipt: Receipt) -> Path:
    """Keep a receipt and return its path."""
    return _write(
        f"receipts/{receipt.cohort}-{receipt.submission}.json",
        msgspec.json.format(msgspec.json.encode(receipt)),
    )


def keep_verdict(cohort: str, submission: str, document: str) -> Path:
    """Keep the signed verdict of a submission, as it came, and return its path."""
    return _write(f"verdicts/{cohort}-{submission}.json", document.encode())


def keep_unsent(submission: Submission) -> None:
    """Keep what is about to be sent: the next `lab submit` of it is then the same request."""
    _write("unsent.json", msgspec.json.encode(submission))


def same_key(submission: Submission) -> Submission:
    """Return the submission, under the key of an earlier unanswered try if it is the same."""
    file = home() / "cohort" / "unsent.json"
    if not file.exists():
        return submission
    try:
        earlier = msgspec.json.decode(file.read_bytes(), type=Submission)
    except (OSError, msgspec.DecodeError):
        return submission
    # Counts of hints and checks may have risen since; the work itself is what must be the same.
    names = ("lab", "lab_hash", "device", "files", "capture", "tool")
    same = all(getattr(earlier, name) == getattr(submission, name) for name in names)
    return msgspec.structs.replace(submission, key=earlier.key) if same else submission


def forget_unsent() -> None:
    """Forget what was about to be sent: it has been answered."""
    (home() / "cohort" / "unsent.json").unlink(missing_ok=True)
