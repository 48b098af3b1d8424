"""`lab profile` of a lab that answers calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bottleneck_lab.measure.channel.messages import Call
from bottleneck_lab.measure.channel.wire import pack
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.profiling import child_command, schedule, trace_options
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.sandbox.children import OnLine, stream

CHILD = "bottleneck_lab.measure.kinds.speedup.child_profiled"


def profile(context: Context[SpeedupSettings], trace: Path, on_line: OnLine) -> int:
    """Call the entry file's function on inputs like those of a check, under torch.profiler. Returns
    the exit status.
    """
    judge, rng, settings = context.judge(), np.random.default_rng(0), context.settings.judge
    case = judge.cases(rng, settings)[0]
    # Made beforehand and handed over as files: making them must not be in the trace.
    folder = context.janitor.folder / "inputs"
    folder.mkdir()
    for call in range(sum(schedule(context.device).values())):
        values = judge.make_inputs(rng, case, context.data, settings)
        (folder / f"{call}.call").write_bytes(pack(Call(values)))
    options = trace_options(trace, context.device)
    options += ["--inputs", str(folder), "--device", context.device]
    return stream(
        child_command(CHILD, context, options), context.workspace, context.janitor, on_line, {}
    )
