"""`lab cohort regrade`: measure again what was submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import current_name, load_labs
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.wording import counted

EXAMPLE = "lab cohort regrade idle-gpu --folder autumn-workshop"


def command(
    lab: Annotated[str, typer.Argument(help="A lab, or the handle of one submission.")],
    folder: Folder = Path(),
    checker: Annotated[
        str | None,
        typer.Option(
            "--checker",
            metavar="VERSION",
            help="Only submissions that this version of the checker measured.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure submissions again. Earlier verdicts stay on record; the newest counts."""
    wanted = current_name(lab)
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        judged = verdict_reader_of(cohort.public_key).latest(connection)
        if wanted not in load_labs() and wanted not in {one.submission for one in judged}:
            raise UsageError(
                f"'{lab}' is neither a lab nor a measured submission of this cohort.",
                "`lab list` shows the labs; a submission's handle ends its page's address.",
            )
        chosen = [
            one.submission
            for one in judged
            if wanted in (one.lab, one.submission) and checker in (None, one.checker)
        ]
        count = leases.regrade(connection, chosen, cohort.database.clock())
    say(f"Queued again: {counted(count, 'submission')}.")
