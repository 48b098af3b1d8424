"""`lab join`: become a learner of a cohort."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.members.membership import Membership, load_membership, remember
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.commands.ui import note, say

EXAMPLE = "lab join http://192.168.1.20:8321 K7QM-X2DF-9RHT --name Ada"


def command(
    url: Annotated[str, typer.Argument(help="The server's address, from your instructor.")],
    code: Annotated[str, typer.Argument(help="The join code.")],
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Your name, or a pseudonym.", show_default=False),
    ] = None,
    student_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="Your student id, if the cohort has a roster.", show_default=False
        ),
    ] = None,
) -> None:
    """Join a cohort. No account is needed: a name or pseudonym will do."""
    if name is None:
        name = getpass.getuser()
        if sys.stdin.isatty():
            name = str(typer.prompt("Your name or pseudonym", default=name))
    client, earlier = Client(url, on_retry=note), load_membership()
    joined = client.join(Join(code, name, student_id))
    remember(Membership(client.url, joined))
    say(f"You have joined '{joined.cohort_name}' as {joined.name}.", style="green")
    if earlier and earlier.joined.cohort != joined.cohort:
        say(f"`lab submit` now goes there instead of to '{earlier.joined.cohort_name}'.")
    say(
        "\nNext: lab list, to choose a lab; then `lab submit` when your own check passes. `lab"
        " status` shows where you stand."
    )
