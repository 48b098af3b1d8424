"""`lab dev key`: create a runner's signing key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.commands.ui import say
from bottleneck_lab.grading.attest import generate_key

EXAMPLE = "lab dev key runner.pem"


def command(
    file: Annotated[
        Path, typer.Argument(help="Where to write the private key; the public key goes next to it.")
    ],
) -> None:
    """Create a runner's signing key, for `lab check --sign`."""
    public = generate_key(file)
    say(f"private  {file}   (keep it on the runner, readable by nobody else)")
    say(f"public   {public}   (publish it)")
