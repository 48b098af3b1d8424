"""Signing a verdict, and verifying offline that a signed one is unchanged.

The signature (Ed25519, RFC 8032) is over canonical bytes: the verdict's JSON with sorted keys,
without whitespace and without the signature itself, so that re-indented or re-ordered files still
verify and any other value does not. The lab's content hash and the submission's are inside. A
signature says who measured, never that the outcome was a PASS.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from bottleneck_lab.errors import LabError, MachineError, UsageError
from bottleneck_lab.grading.verdict import SCHEMA, Verdict

CONTEXT = b"bottleneck-lab verdict\n"
"""Prefix of the signed bytes, so that no other signature can pass for a verdict's."""

MAX_BYTES = 16 << 20
"""No verdict comes near this size; a larger file is not read."""

PEM_BYTES = 1 << 16
"""Many times the size of an Ed25519 key in PEM form."""


NAME_A_VERDICT = "Name a verdict file, as `lab check --json` writes it."


class Verification(msgspec.Struct, frozen=True):
    """The result of verifying a file; `ok`: it is signed with the given key. `verdict` is None if
    the file does not hold one; `learner` is the handle of whose receipt it is.
    """

    ok: bool
    sentence: str
    verdict: Verdict | None = None
    learner: str | None = None


def canonical_bytes(verdict: Verdict) -> bytes:
    """Return the one form of a verdict's JSON that is signed. Floats are the shortest text that
    reads back as the same float.

    Raises LabError when the verdict holds something that JSON cannot, such as a value that is not a
    number.
    """
    fields: dict[str, Any] = msgspec.to_builtins(verdict)
    del fields["signature"]
    # Verdicts that were signed before the breakdown existed must still verify.
    if not verdict.seconds:
        del fields["seconds"]
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise LabError(
            f"This verdict cannot be written as JSON: {error}.",
            "Report this as a bug of `lab check`.",
        ) from error
    return text.encode("ascii")


def sign(verdict: Verdict, key: Ed25519PrivateKey) -> Verdict:
    """Return the verdict as `verified`, with its signature. Raises LabError when it cannot be
    written as JSON.
    """
    verified = msgspec.structs.replace(verdict, attestation="verified", signature=None)
    raw = key.sign(CONTEXT + canonical_bytes(verified))
    return msgspec.structs.replace(verified, signature=_write_signature(key.public_key(), raw))


def verify_file(path: Path, public_key: Ed25519PublicKey) -> Verification:
    """Return True if `path` holds a verdict signed with the private half of `public_key`. Needs no
    network.

    Raises UsageError when the file cannot be read at all.
    """
    return verify_bytes(read_regular(path, NAME_A_VERDICT), public_key)


def read_regular(path: Path, remedy: str) -> bytes:
    """Return what a regular file holds, up to one byte more than MAX_BYTES.

    Raises UsageError, with `remedy`, for a file that cannot be read, or a pipe, which might never
    end.
    """
    # Without waiting: opening a named pipe would block until somebody writes to it.
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path} is not a regular file.", remedy)
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", remedy) from error


def verify_bytes(data: bytes, public_key: Ed25519PublicKey) -> Verification:
    """Return True if `data` is the JSON of a verdict signed with the private half of
    `public_key`.
    """
    try:
        verdict = _read_verdict(data)
    except ValueError as error:
        return Verification(False, f"Not a verdict: {error}.")
    return _judge(verdict, public_key)


def _judge(verdict: Verdict, public_key: Ed25519PublicKey) -> Verification:
    if verdict.attestation == "self-attested":
        return Verification(
            False,
            "self-attested: no signature. It was measured on the learner's own machine.",
            verdict,
        )
    if verdict.signature is None:
        return Verification(False, "It claims to be verified but has no signature.", verdict)
    signer, raw = _read_signature(verdict.signature)
    ours = fingerprint(public_key)
    if signer != ours:
        return Verification(
            False,
            f"It was not signed with key {ours}, but with {signer or 'an unreadable signature'}.",
            verdict,
        )
    try:
        public_key.verify(raw, CONTEXT + canonical_bytes(verdict))
    except InvalidSignature:
        return Verification(False, f"Its content was changed after key {ours} signed it.", verdict)
    outcome = f"{verdict.outcome} for {verdict.lab}"
    claim = f"The signature is genuine, and the outcome is {outcome}"
    if verdict.outcome == "PASS":
        claim = f"Verified: {outcome}"
    return Verification(True, f"{claim}, signed with key {ours}.", verdict)


def _read_verdict(data: bytes) -> Verdict:
    """Raise ValueError that says what is wrong. Stricter than JSON: no key twice, no unknown field,
    no NaN.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        fields = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if isinstance(fields, dict) and fields.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {fields.get('schema')!r}, this version reads {SCHEMA}")
        return _whole(fields)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(f"{error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not complete JSON ({error})") from error


def _whole(fields: Any) -> Verdict:
    """Return the verdict of these fields. Raises ValueError unless all are there, and written as
    they were signed.
    """
    # Converting fills in what is missing and reads 1 as 1.0: both would then carry a signature over
    # bytes that differ from the file.
    verdict = msgspec.convert(fields, Verdict)
    if json.dumps(fields, sort_keys=True) != json.dumps(
        msgspec.to_builtins(verdict), sort_keys=True
    ):
        raise ValueError("a field is missing, or is not written as it was signed")
    return verdict


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises ValueError for a key that appears twice."""
    # Readers disagree on which of two equal keys counts, so a file with both means two things.
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key appears twice in it")
    return fields


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    # Many texts round to the same float: only the one that was signed may stand here.
    if text not in (repr(value), msgspec.json.encode(value).decode()):
        raise ValueError(f"{text[:20]} is not how this number is written")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _write_signature(public_key: Ed25519PublicKey, raw: bytes) -> str:
    return f"ed25519:{fingerprint(public_key)}:{base64.b64encode(raw).decode('ascii')}"


def _read_signature(text: str) -> tuple[str | None, bytes]:
    """Return the signer's fingerprint and the raw signature; None unless it is written exactly as
    we write it.
    """
    kind, _, rest = text.partition(":")
    signer, _, encoded = rest.partition(":")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None, b""
    # Base64 has spare bits: two texts can mean the same bytes. Only one of them is ours.
    exact = (
        kind == "ed25519" and len(raw) == 64 and base64.b64encode(raw).decode("ascii") == encoded
    )
    return (signer, raw) if exact else (None, b"")


def fingerprint(public_key: Ed25519PublicKey) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the raw public key: a name for
    people, not a check.
    """
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:16]


def generate_key(path: Path) -> Path:
    """Write a new private key to `path` (PEM, readable by its owner only) and its public key beside
    it; return that path.

    Raises UsageError when either file exists: a key is never overwritten.
    """
    key, public_path = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if os.path.lexists(public_path):
        raise UsageError(
            f"{public_path} already exists.", "Choose another name: a key is never overwritten."
        )
    _write_new(path, private, 0o600)
    _write_new(public_path, public, 0o644)
    return public_path


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise UsageError(
            f"{path} already exists.", "Choose another name: a key is never overwritten."
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.",
            "Choose a folder that exists and is yours.",
        ) from error
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # The umask may have taken bits from the public key's mode.
            file.write(data)
            file.flush()
            os.fsync(fd)
    except OSError as error:
        path.unlink()  # Half a key is not a key.
        raise MachineError(
            f"{path} could not be written: {error.strerror}.", "Make room on the disk."
        ) from error


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the runner's signing key. Raises UsageError when others could read or replace it, or
    when it is not an Ed25519 key.
    """
    try:
        key = load_pem_private_key(_read_secret(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} is not an unencrypted private key in PEM form.", "Make one with `lab dev key`."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is not an Ed25519 key.", "Make one with `lab dev key`.")
    return key


def _read_secret(path: Path) -> bytes:
    """Return the bytes of a regular file that is ours alone. What is checked is what was opened, so
    nothing can be swapped between.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.",
            "Name the private key's own file, not a link to it.",
        ) from error
    try:
        status = os.fstat(fd)
        ours = os.geteuid() in (status.st_uid, 0)  # root may run for the user who has the key
        if not stat.S_ISREG(status.st_mode) or not ours:
            raise UsageError(
                f"{path} is not a regular file of yours.",
                "Keep the private key in a file that you own.",
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"Others can read or change the private key {path}.",
                f"Run `chmod 600 {path}`; if in doubt, make a new key.",
            )
        return os.read(fd, PEM_BYTES)
    finally:
        os.close(fd)


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Return a published key. Raises UsageError when the file is not an Ed25519 public key in PEM
    form.
    """
    remedy = "Ask your instructor for the cohort's public key (a .pub file)."
    try:
        return public_key_of(read_regular(path, remedy))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is not a public key in PEM form.", remedy) from error
    except TypeError as error:
        raise UsageError(f"{path} is not an Ed25519 key.", remedy) from error


def public_key_of(pem: bytes) -> Ed25519PublicKey:
    """Return the key in PEM form. Raises ValueError or UnsupportedAlgorithm where it is none,
    TypeError for another kind than Ed25519.
    """
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise TypeError("not an Ed25519 key")
    return key
