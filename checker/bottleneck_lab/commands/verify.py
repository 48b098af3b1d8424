"""`lab verify`: whether a certificate or a verdict was signed by the key it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.commands.ui import Json

EXAMPLE = "lab verify verdict.json --key runner.pub"


def command(
    file: Annotated[Path, typer.Argument(help="A signed verdict.", show_default=False)],
    key: Annotated[
        Path, typer.Option("--key", "-k", help="The public key of who is said to have signed it.", show_default=False)
    ],
    json: Json = False,
) -> None:
    """Check the signature on a verdict against a public key."""
    from bottleneck_lab.commands.ui import print_json, say
    from bottleneck_lab.grading.attest import verify_file

    verdict = verify_file(file, key)
    if json:
        print_json({"file": str(file), "signed": True, "verdict": verdict})
    else:
        say(
            f"The signature is right: {verdict.outcome} for '{verdict.lab}' on {verdict.device}, measured {verdict.started_at}."
        )
