"""`lab join`: become a learner of a cohort."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members.membership import Membership, load_membership, remember
from bottleneck_lab.cohort.members.secrets import is_code
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.commands.ui import note, say
from bottleneck_lab.errors import LabError

EXAMPLE = "lab join http://192.168.1.20:8321 K7QM-X2DF-9RHT --name Ada"


def command(
    url: Annotated[str, typer.Argument(help="The server's address, from your instructor.")],
    code: Annotated[str, typer.Argument(help="The join code.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "-n", metavar="NAME", help="Your name, or a pseudonym.", show_default=False
        ),
    ] = None,
    student_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Your student id, if the cohort has a roster.",
            show_default=False,
        ),
    ] = None,
    same: Annotated[
        bool,
        typer.Option("--same", help="Somebody of your name has joined before, and that was you."),
    ] = False,
    other: Annotated[
        bool, typer.Option("--other", help="Somebody of your name has joined, and is not you.")
    ] = False,
) -> None:
    """Join a cohort. No account is needed: a name or pseudonym will do."""
    client, earlier = Client(url, on_retry=note), load_membership()
    if earlier and not (same or other) and _is_member(client, earlier, name):
        say(
            f"You have already joined '{earlier.joined.cohort_name}' as {earlier.joined.name}, and"
            " still belong to it.",
            style="green",
        )
        return
    if not name:
        name = getpass.getuser()
        # A link and a student id say who it is.
        if sys.stdin.isatty() and is_code(code) and student_id is None:
            name = str(typer.prompt("Your name or pseudonym", default=name))
    identity: bool | None = None
    if same or other:
        identity = same
    try:
        joined = client.join(Join(code, name, student_id, identity))
    except RefusedByServerError as refused:
        if refused.code != "same-name" or not sys.stdin.isatty():
            raise
        identity = typer.confirm(f"{refused.message} Was that you?", default=False)
        joined = client.join(Join(code, name, student_id, identity))
    remember(Membership(client.url, joined))
    say(f"You have joined '{joined.cohort_name}' as {joined.name}.", style="green")
    if identity and student_id is None:
        say("Your instructor sees that you are the same as before, and will confirm it.")
    if earlier and earlier.joined.cohort != joined.cohort:
        say(f"`lab submit` now goes there instead of to '{earlier.joined.cohort_name}'.")
    say(
        "\nNext: lab list, to choose a lab; then `lab submit` when your own check passes. `lab"
        " status` shows where you stand."
    )


def _is_member(client: Client, membership: Membership, name: str | None) -> bool:
    """Return True if this user is in the cohort of that server already, under that name."""
    joined = membership.joined
    if membership.url != client.url or (name or joined.name).casefold() != joined.name.casefold():
        return False
    try:
        return Client(client.url, joined.token, patience_s=0.0).me().cohort == joined.cohort
    except LabError:  # removed, or a new cohort at the same address
        return False
