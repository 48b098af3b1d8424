"""A receipt says that the server has stored a submission. The learner keeps it, and anyone can
verify it offline.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography.exceptions import InvalidSignature

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.protocol import Receipt
from bottleneck_lab.grading.attest import NAME_A_VERDICT, Verification, fingerprint, read_regular

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
    return CONTEXT + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def sign_receipt(receipt: Receipt, key: Ed25519PrivateKey) -> Receipt:
    """The receipt with its signature."""
    return msgspec.structs.replace(receipt, signature=key.sign(_canonical(receipt)).hex())


def receipt_problem(receipt: Receipt, public_key: Ed25519PublicKey) -> str | None:
    """Why this is not a receipt that the key's owner signed; None when it is."""

    try:
        public_key.verify(bytes.fromhex(receipt.signature), _canonical(receipt))
    except (InvalidSignature, ValueError):
        return f"It is not what key {fingerprint(public_key)} signed."
    return None


def verify_receipt(path: Path, public_key: Ed25519PublicKey) -> Verification | None:
    """Whether `path` holds a receipt signed with the private half of `public_key`; None if it holds
    no receipt at all. Needs no network.

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
    return Verification(True, f"A genuine receipt: {about}, content {receipt.content_sha256[:16]}.")
