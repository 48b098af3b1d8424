"""Run a cohort: learners who hand in work, and machines that measure it."""

from __future__ import annotations

from bottleneck_lab.commands.cohort import (
    backup,
    create,
    export,
    link,
    regrade,
    rehearse,
    restore,
    roster,
    runner,
    runsheet,
    serve,
    staff,
    status,
    token,
)

COMMANDS = {
    module.__name__.rpartition(".")[2]: (module.command, module.EXAMPLE)
    for module in (
        create,
        serve,
        status,
        runner,
        token,
        runsheet,
        rehearse,
        roster,
        export,
        regrade,
        backup,
        restore,
        staff,
        link,
    )
}
"""Every command of the group, with its example."""
