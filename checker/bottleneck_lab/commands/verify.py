"""`lab verify`: check that verdicts were signed with the expected key, and grades with them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.submissions.receipts import verify_receipt
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.attest import Verification, load_public_key, verify_file

EXAMPLE = "lab verify verdict.json --key cohort.pub"


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="A verdict signed by a cohort's runner, a receipt, or an export of evidence."
        ),
    ],
    key: Annotated[
        Path,
        typer.Option(
            "--key",
            "-k",
            metavar="KEYFILE",
            help="The public key to check it with.",
            show_default=False,
        ),
    ],
    learner: Annotated[
        str | None,
        typer.Option(
            "--learner",
            metavar="HANDLE",
            help=(
                "Whose verdict or receipt it must be, by their handle: the column `handle` of the"
                " export csv, or the end of their page's address."
            ),
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Verify a verdict's signature, offline, and see whose verdict it is.

    Of an export of evidence, every signature is checked and every figure computed again.

    Exit code 0: signed with that key, for that learner if you name one; 1: not.
    """
    public_key = load_public_key(key)
    if zipfile.is_zipfile(file):
        if learner is not None:
            raise UsageError(
                "--learner is for one verdict or receipt; an export of evidence has everybody's.",
                "Unpack it, and name a file of its folder verdicts or receipts.",
            )
        # Half a second of imports, of packages that only a cohort needs.
        from bottleneck_lab.cohort.grading.evidence import verify_evidence  # noqa: PLC0415

        verification = verify_evidence(file.read_bytes(), public_key)
    else:
        verification = verify_receipt(file, public_key) or verify_file(file, public_key)
    verification = _require_learner(learner, verification)
    if json:
        print_json(
            {
                "file": str(file),
                "ok": verification.ok,
                "sentence": verification.sentence,
                "verdict": verification.verdict,
            }
        )
    else:
        _show(verification)
    if not verification.ok:
        raise typer.Exit(ExitCode.FAIL)


def _show(verification: Verification) -> None:
    verdict = verification.verdict
    passed = verdict is None or verdict.outcome == "PASS"
    mark = "✓" if verification.ok else "✗"
    say(
        f"{mark} {_one_line(verification.sentence)}",
        style="green" if verification.ok and passed else "red",
    )
    if verdict:
        lab = current_name(verdict.lab)
        about = f"{verdict.outcome} for '{lab}' on {verdict.device}, measured {verdict.started_at}"
        say(f"  {_one_line(about)}")
        # The same PASS is worth nothing in another name.
        whose = "For nobody in particular: it was not measured for a cohort."
        if bound := verdict.binding:
            whose = (
                f"For {bound.learner} in cohort {bound.cohort}, submission {bound.submission},"
                f" nonce {bound.nonce}"
            )
        say(f"  {_one_line(whose)}")


def _require_learner(learner: str | None, verification: Verification) -> Verification:
    """Turn down a genuine verdict or receipt that is somebody else's."""
    verdict = verification.verdict
    theirs = verdict.binding.learner if verdict and verdict.binding else verification.learner
    if learner is None or not verification.ok or theirs == learner:
        return verification
    whose = f"{theirs}'s" if theirs else "nobody's in particular"
    what = "receipt" if verdict is None else "verdict"
    # A verdict carries no name: it may be published.
    where = "--learner takes a handle, as in the column `handle` of the export csv."
    return Verification(
        False,
        f"The signature is genuine, but the {what} is {whose}, not {learner}'s. {where}",
        verdict,
    )


def _one_line(text: str) -> str:
    """Return text from an unverified file without control characters.

    It could otherwise drive the terminal, or imitate our output.
    """
    return "".join(char for char in text if char.isprintable())[:300]
