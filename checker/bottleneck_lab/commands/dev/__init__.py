"""Write labs: create one and prove that it works."""

from __future__ import annotations

from bottleneck_lab.commands.dev import calibrate, check, key, new, play

COMMANDS = {
    module.__name__.rpartition(".")[2]: (module.command, module.EXAMPLE)
    for module in (check, calibrate, play, new, key)
}
"""Every command of the group, with its example."""
