"""Evidence behind grades: the rules in force and all that was judged, signed together.

Every figure can be computed again from the file alone.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
import zlib
from collections import Counter
from importlib.metadata import version
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.grading.credit import Basis, basis_of
from bottleneck_lab.cohort.grading.grades import (
    Grade,
    GradingRules,
    Override,
    counting,
    final_points,
    score_work,
)
from bottleneck_lab.cohort.moments import iso, parse_moment
from bottleneck_lab.cohort.protocol import Receipt
from bottleneck_lab.cohort.submissions.receipts import receipt_problem
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, with_verdict
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.attest import MAX_BYTES, Verification, fingerprint, verify_bytes
from bottleneck_lab.wording import counted

CONTEXT = b"bottleneck-lab grades\n"
"""Prefix of the signed bytes: no other signature of the cohort can pass for this one."""
GRADES, TABLE, KEY = "grades.json", "grades.csv", "cohort.pem.pub"


class Figure(msgspec.Struct, frozen=True):
    """One learner's points in one lab, and what they follow from.

    `submissions` are all that were measured, oldest first; those in `altered` score nothing, and
    `counts` is the one that counts. `due` (ISO 8601, UTC) has an extension in it. `score` is what
    `final_points` makes of the others.
    """

    learner: str
    student_id: str
    name: str
    lab: str
    due: str | None
    submissions: list[str]
    altered: list[str]
    counts: str | None
    raw_score: float
    late_penalty: float
    override: Override | None
    score: float
    max_score: float


class Evidence(msgspec.Struct, frozen=True):
    """Grades of a cohort with the rules in force when they were exported, signed with its key.

    `labs` are what partial credit needs to know of each. `signature` is Ed25519, in hexadecimal.
    """

    cohort: str
    exported_at: str
    version: str
    rules: GradingRules
    labs: dict[str, Basis]
    figures: list[Figure]
    schema: int = 1
    signature: str = ""


def _canonical(fields: dict[str, Any]) -> bytes:
    signed = {name: value for name, value in fields.items() if name != "signature"}
    # Sorted keys, no spaces, ASCII: the same bytes whichever program writes the JSON.
    return CONTEXT + json.dumps(signed, sort_keys=True, separators=(",", ":")).encode("ascii")


def make_evidence(
    cohort: str, at: float, grading: GradingRules, grades: list[Grade], key: Ed25519PrivateKey
) -> Evidence:
    """Return grades, as `load_grades` computed them under `grading`, with all they follow from."""
    figures = [
        Figure(
            grade.student.handle,
            grade.student.institution_id,
            grade.student.name,
            grade.lab,
            due=None if grade.due is None else iso(grade.due),
            submissions=grade.submissions,
            altered=grade.altered,
            counts=grade.submission,
            raw_score=grade.raw_score,
            late_penalty=grade.penalty,
            override=grade.override,
            score=grade.score,
            max_score=grade.max_score,
        )
        for grade in grades
    ]
    labs = {lab: basis_of(find_lab(lab)) for lab in grading.points}
    evidence = Evidence(cohort, iso(at), version("bottleneck-lab"), grading, labs, figures)
    return msgspec.structs.replace(
        evidence, signature=key.sign(_canonical(msgspec.to_builtins(evidence))).hex()
    )


def verify_evidence(data: bytes, key: Ed25519PublicKey) -> Verification:
    """Check every signature in an export of evidence, and compute every figure again.

    Uses nothing but the file and the key. Raises UsageError if it is no such export.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            fields = json.loads(_member(archive, GRADES))
            # Before anything in it is read: whatever was changed is that, and not unreadable.
            if _is_signed(fields, key):
                evidence = msgspec.convert(fields, Evidence)
                problems = _wrong_files(archive, evidence) or _problems(archive, evidence, key)
            else:
                problems = [f"{GRADES} is not what key {fingerprint(key)} signed."]
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, csv.Error) as error:
        raise UsageError(
            f"This is not an export of evidence: {error}.",
            "`lab cohort export evidence` writes one.",
        ) from error
    if problems:
        more = f" And {len(problems) - 1} more like it." if len(problems) > 1 else ""
        return Verification(False, f"{problems[0]}{more}")
    count = sum(len(figure.submissions) for figure in evidence.figures)
    return Verification(
        True,
        f"Verified: {counted(len(evidence.figures), 'figure')}, computed again from"
        f" {counted(count, 'signed verdict')} and the rules in force on {evidence.exported_at},"
        f" signed with key {fingerprint(key)}.",
    )


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of the archive. Raises KeyError if there is none, or one that is too large."""
    if archive.getinfo(name).file_size > MAX_BYTES:  # before it is unpacked
        raise KeyError(f"{name} is too large")
    return archive.read(name)


def _is_signed(fields: dict[str, Any], key: Ed25519PublicKey) -> bool:
    try:
        # Over all that the file holds, also what this version does not know.
        key.verify(bytes.fromhex(fields["signature"]), _canonical(fields))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False
    return True


def _wrong_files(archive: zipfile.ZipFile, evidence: Evidence) -> list[str]:
    """Return which files are missing, damaged, or none of those that the signed figures name."""
    belong = {TABLE: TABLE, GRADES: GRADES, KEY: KEY}
    for figure in evidence.figures:
        for handle in figure.submissions:
            whose = f"of {figure.name}'s submission {handle} to {figure.lab}"
            belong[f"verdicts/{handle}.json"] = f"The verdict {whose}"
            belong[f"receipts/{handle}.json"] = f"The receipt {whose}"
    counts = Counter(name for name in archive.namelist() if not name.endswith("/"))
    problems = [f"{text} is missing." for name, text in belong.items() if not counts[name]]
    for name, count in counts.items():
        if name not in belong:
            problems.append(f"{name} is in the file, but no figure names it.")
        elif count > 1:
            problems.append(f"{belong[name]} is in the file {count} times.")
        else:
            try:
                _member(archive, name)
            except (zipfile.BadZipFile, zlib.error, KeyError):
                problems.append(f"{belong[name]} is damaged.")
    return problems


def _problems(archive: zipfile.ZipFile, evidence: Evidence, key: Ed25519PublicKey) -> list[str]:
    """Return what does not follow: figures, and records that are not what the cohort signed."""
    table = csv.DictReader(io.StringIO(_member(archive, TABLE).decode("utf-8-sig", "replace")))
    shown = {(row.get("handle"), row.get("lab")): row.get("score") for row in table}
    problems = []
    for figure in evidence.figures:
        whose = f"{figure.name}'s points in {figure.lab}"
        if _number(shown.get((figure.learner, figure.lab))) != round(figure.score, 4):
            problems.append(f"{TABLE} and {GRADES} differ in {whose}.")
        judged = []
        for handle in figure.submissions:
            one = CheckedVerdict(handle, 0, figure.lab, 0, 0.0, 0.0, "")
            if handle not in figure.altered:
                one = _read(archive, one, evidence.cohort, key)
            if one.problem:
                problems.append(f"{whose}: submission {handle}: {one.problem}")
            judged.append(one)
        due = None if figure.due is None else parse_moment(figure.due)
        points = evidence.rules.points[figure.lab]
        works = score_work(judged, points, due, evidence.rules, evidence.labs[figure.lab])
        scored = counting(works, evidence.rules.scoring)
        raw, penalty = (scored.raw, scored.penalty) if scored else (0.0, 0.0)
        score = final_points(raw, penalty, figure.override, points)
        computed = (scored.work.submission if scored else None, raw, penalty, score, points)
        recorded = (figure.counts, figure.raw_score, figure.late_penalty, figure.score)
        if computed != (*recorded, figure.max_score):
            problems.append(
                f"{whose} are {figure.score:g}, but {score:g} follow from the verdicts."
            )
    return problems


def _number(cell: str | None) -> float:
    try:
        return float(cell or "nan")
    except ValueError:
        return math.nan


def _read(
    archive: zipfile.ZipFile, base: CheckedVerdict, cohort: str, key: Ed25519PublicKey
) -> CheckedVerdict:
    """Return what the verdict and the receipt of a submission say, with a `problem` if they are not
    what the cohort signed, or not of one submission.
    """
    name = f"{base.submission}.json"
    document = _member(archive, f"verdicts/{name}")
    try:
        receipt = msgspec.json.decode(_member(archive, f"receipts/{name}"), type=Receipt)
    except msgspec.DecodeError:
        return msgspec.structs.replace(base, problem="its receipt is not one.")
    checked = verify_bytes(document, key)
    if checked.verdict is None or not checked.ok:
        return msgspec.structs.replace(base, problem=checked.sentence)
    if problem := receipt_problem(receipt, key):
        return msgspec.structs.replace(base, problem=problem)
    bound = checked.verdict.binding
    of_receipt = (receipt.cohort, receipt.learner, receipt.submission)
    if bound is None or (bound.cohort, bound.learner, bound.submission) != of_receipt:
        return msgspec.structs.replace(base, problem="its verdict and its receipt do not belong.")
    if (receipt.cohort, receipt.submission) != (cohort, base.submission):
        return msgspec.structs.replace(base, problem="it is another submission's.")
    received = parse_moment(receipt.received_at)
    base = msgspec.structs.replace(base, received=received, recorded=received)
    return with_verdict(base, checked.verdict, document.decode())
