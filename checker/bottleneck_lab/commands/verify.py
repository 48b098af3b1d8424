"""`lab verify`: whether a verdict was signed with the expected key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.receipts import verify_receipt
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.grading.attest import load_public_key, verify_file

EXAMPLE = "lab verify verdict.json --key cohort.pub"


def command(
    file: Annotated[Path, typer.Argument(help="A verdict signed by a cohort's runner, or a receipt.")],
    key: Annotated[Path, typer.Option("--key", "-k", help="The public key to check it with.", show_default=False)],
    json: Json = False,
) -> None:
    """Verify a verdict's signature, offline. Exit code 0: signed with that key; 1: not."""
    public_key = load_public_key(key)
    verification = verify_receipt(file, public_key) or verify_file(file, public_key)
    if json:
        print_json({"file": str(file), **{name: getattr(verification, name) for name in ("ok", "sentence", "verdict")}})
    else:
        passed = verification.verdict is None or verification.verdict.outcome == "PASS"
        say(
            f"{'✓' if verification.ok else '✗'} {_one_line(verification.sentence)}",
            style="green" if verification.ok and passed else "red",
        )
        if verification.verdict:
            verdict = verification.verdict
            about = f"{verdict.outcome} for '{verdict.lab}' on {verdict.device}, measured {verdict.started_at}"
            say(f"  {_one_line(about)}")
    if not verification.ok:
        raise typer.Exit(ExitCode.FAIL)


def _one_line(text: str) -> str:
    """Text from an unverified file, without control characters, so that it cannot drive the terminal or fake our output."""
    return "".join(char for char in text if char.isprintable())[:300]
