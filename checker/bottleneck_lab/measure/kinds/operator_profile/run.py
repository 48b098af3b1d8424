"""`lab profile` of a lab in which recording a trace is the learner's own task."""

from __future__ import annotations

import shutil
from pathlib import Path

from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.operator_profile import OperatorProfileSettings
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.sandbox.children import OnLine, stream


def profile(context: Context[OperatorProfileSettings], trace: Path, on_line: OnLine) -> int:
    """Run the learner's script and copy the trace that it writes to `trace`. Returns its exit
    status.

    Raises UsageError for a script that runs but writes none, as the shipped one does.
    """
    written = context.workspace / "trace.json.gz"
    written.unlink(missing_ok=True)  # an older one would be taken for this run's
    command = list(kind_of(context.lab).program(context.lab, context.device))
    status = stream(command, context.workspace, context.janitor, on_line, context.environment())
    if status == 0 and not written.is_file():
        raise UsageError(
            f"{context.lab.spec.entry} ran to the end but wrote no trace.",
            "Recording one is your task in this lab: see README.md or `lab hint`, then run `lab"
            " profile` again.",
        )
    if status == 0:
        shutil.copyfile(written, trace)
    return status
