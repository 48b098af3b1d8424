"""`lab status`: where a learner stands in the cohort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.client import PATIENCE_S, Client
from bottleneck_lab.cohort.members.membership import remember, require_membership
from bottleneck_lab.cohort.moments import local_iso
from bottleneck_lab.commands.ui import OUTCOME_STYLES, Json, note, print_json, say
from bottleneck_lab.wording import counted, spell_duration

if TYPE_CHECKING:
    from bottleneck_lab.cohort.members.membership import Membership
    from bottleneck_lab.cohort.protocol import Me, Standing

EXAMPLE = "lab status --web"


def command(
    submission: Annotated[
        str | None,
        typer.Argument(
            help="One of your submissions: show its verdict, and save it.", show_default=False
        ),
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Print a one-time link to your own page.")
    ] = False,
    need_help: Annotated[
        str | None,
        typer.Option(
            "--need-help",
            metavar="MESSAGE",
            help="Show the room that you need help, and with what.",
            show_default=False,
        ),
    ] = None,
    helped: Annotated[bool, typer.Option("--helped", help="Take that back.")] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help=(
                "Wait for the verdict of SUBMISSION, and up to two minutes for a server that does"
                " not answer."
            ),
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show your standing in the cohort: submissions, how many are left, announcements.

    With SUBMISSION, the exit code is that of its verdict, as for `lab submit`.
    """
    membership = require_membership()
    patience_s = PATIENCE_S if wait else 0.0
    client = Client(membership.url, membership.joined.token, on_retry=note, patience_s=patience_s)
    if need_help is not None or helped:
        client.call_for_help(None if helped else need_help)
        say("You have taken it back." if helped else "The room sees that you need help.")
    elif web:
        say(f"{client.url}{client.login_path()}")
    elif submission is not None:
        _show_one(membership, client, submission, wait=wait, json=json)
    elif json:
        print_json(client.me())
    else:
        me = client.me()
        _keep_labs(membership, me)
        _show(me, client.url)


def _keep_labs(membership: Membership, me: Me) -> None:
    """Note which labs the workshop has now: `lab list` marks them without asking the server."""
    labs = [lab.slug for lab in me.labs]
    if labs != membership.joined.labs:
        remember(replace(membership, joined=replace(membership.joined, labs=labs)))


def _show_one(
    membership: Membership, client: Client, submission: str, *, wait: bool, json: bool
) -> None:
    # Half a second of imports, which `lab status` needs for nothing else.
    from bottleneck_lab.commands.submit import finish, follow  # noqa: PLC0415

    standing = follow(client, submission, quiet=json) if wait else client.standing(submission)
    if standing.state in ("done", "uncaptured", "failed"):
        finish(membership, standing, json=json)
    elif json:
        print_json(standing)
    else:
        _show_standing(standing, standing.timezone)


def _show(me: Me, url: str) -> None:
    say(f"{me.cohort_name} at {url}, as {me.name}", style="bold")
    for text in me.announcements:
        say(f"» {text}", style="yellow", hang=2)
    if me.needs_help:
        since = local_iso(me.needs_help, me.timezone)
        say(f"You asked for help at {since}; `lab status --helped` takes it back.")
    if me.paused:
        say("Measuring is paused. You can still submit.", style="yellow")
    for lab in me.labs:
        left = "" if lab.left is None else f", {counted(lab.left, 'submission')} left"
        due = f", opens {local_iso(lab.opens, me.timezone)}" if lab.opens else ""
        if lab.due:
            due += f", due {local_iso(lab.due, me.timezone)}"
        points = ""
        if lab.points is not None:
            points = f", {lab.points:g} of {lab.max_points:g} points"
            if lab.penalty:
                points += f" ({lab.penalty:g} off: {spell_duration(lab.late_s)} late)"
        mark = "✓" if lab.passed else "·"
        say(f"{mark} {current_name(lab.slug)}: {lab.submissions} submitted{points}{left}{due}")
        if lab.reason:
            say(f"    points: {lab.reason}", hang=4)
        if lab.comment:
            say(f"    overridden by your instructor: {lab.comment}", hang=4)
    if any(lab.points is not None and lab.points < lab.max_points for lab in me.labs):
        say("`lab status --web` opens your page: click points there to see how they add up.")
    for standing in me.submissions[:10]:
        _show_standing(standing, me.timezone)


def _show_standing(standing: Standing, zone: str) -> None:
    # On one line: a summary may quote an error of several.
    result = " ".join(f"{standing.outcome or ''} {standing.summary or standing.note or ''}".split())
    if standing.state == "queued":
        wait = "" if standing.wait_s is None else f", about {standing.wait_s:.0f} s"
        wait += " once measuring goes on (it is paused)" if standing.paused else ""
        result = f"waiting, {standing.ahead} ahead of you{wait}"
    elif standing.state == "running":
        result = "being measured"
    received, lab = local_iso(standing.received_at, zone), current_name(standing.lab)
    say(
        f"  {received}  {standing.submission}  {lab}: {result}",
        style=OUTCOME_STYLES.get(standing.outcome or ""),
        hang=4,
    )
