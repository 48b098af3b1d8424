"""Receipts: signed confirmations that the server has stored a submission, verifiable offline."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography.exceptions import InvalidSignature

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.protocol import Joined, Receipt, Standing
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.attest import (
    NAME_A_VERDICT,
    Verification,
    fingerprint,
    public_key_of,
    read_regular,
    verify_bytes,
)
from bottleneck_lab.grading.verdict import Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

CONTEXT = b"bottleneck-lab receipt\n"
"""Prefix of the signed bytes: a signed receipt can never pass for a signed verdict, or vice versa.
"""


def _canonical(receipt: Receipt) -> bytes:
    fields = msgspec.to_builtins(receipt)
    del fields["signature"]
    # Sorted keys, no spaces, ASCII: the same bytes whichever program writes the JSON.
    return CONTEXT + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def sign_receipt(receipt: Receipt, key: Ed25519PrivateKey) -> Receipt:
    """Return the receipt with its signature."""
    return msgspec.structs.replace(receipt, signature=key.sign(_canonical(receipt)).hex())


def receipt_problem(receipt: Receipt, public_key: Ed25519PublicKey) -> str | None:
    """Explain why this is not a receipt that the key's owner signed; None when it is."""
    try:
        public_key.verify(bytes.fromhex(receipt.signature), _canonical(receipt))
    except (InvalidSignature, ValueError):
        return f"It is not what key {fingerprint(public_key)} signed."
    return None


def verify_receipt(path: Path, public_key: Ed25519PublicKey) -> Verification | None:
    """Verify the receipt in `path`, without a network; None if it holds no receipt at all.

    Raises UsageError when it cannot be read.
    """
    try:
        receipt = msgspec.json.decode(read_regular(path, NAME_A_VERDICT), type=Receipt)
    except msgspec.DecodeError:
        return None
    problem = receipt_problem(receipt, public_key)
    if problem:
        return Verification(False, problem)
    about = (
        f"submission {receipt.submission} of '{current_name(receipt.lab)}' by {receipt.learner},"
        f" received {receipt.received_at}"
    )
    return Verification(
        True,
        f"A genuine receipt: {about}, content {receipt.content_sha256[:16]}.",
        learner=receipt.learner,
    )


def require_genuine(joined: Joined, standing: Standing) -> Verdict:
    """Return the verdict of a learner's submission, as the cohort's key signed it.

    Raises MachineError if it was not signed, or was signed for somebody or something else, and if a
    newer version wrote it: what this one does not know cannot be left out of what was signed.
    """
    key = public_key_of(joined.public_key.encode())
    checked = verify_bytes((standing.verdict or "").encode(), key)
    if checked.verdict is None:
        raise MachineError(
            f"bottleneck-lab {version('bottleneck-lab')} cannot read the verdict that arrived:"
            f" {checked.sentence}",
            "Install the version that the server has, which your instructor knows.",
        )
    bound = checked.verdict.binding if checked.verdict else None
    if (
        not checked.ok
        or bound is None
        or (bound.learner, bound.submission) != (joined.learner, standing.submission)
    ):
        raise MachineError(
            "The verdict that arrived is not genuine.",
            "Ask your instructor to look at this submission.",
        )
    return checked.verdict
