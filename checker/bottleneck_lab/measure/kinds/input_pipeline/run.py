"""Run and profile a training script (`lab run`, `lab profile`) as a check does, without secrets,
clock or sandbox.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np

from bottleneck_lab.measure.channel.messages import Broken, EpochAsked, Trained
from bottleneck_lab.measure.channel.wire import Channel, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.device_process import (
    DeviceProcess,
    calibrate,
    script_options,
    wanted_step_s,
)
from bottleneck_lab.measure.kinds.input_pipeline.device_rows import add_device_rows
from bottleneck_lab.measure.kinds.input_pipeline.records import (
    WARM_UP_BATCHES,
    PipelineRun,
    plan_epoch,
)
from bottleneck_lab.measure.kinds.profiling import child_command, trace_options
from bottleneck_lab.measure.sandbox.children import OnLine, stream

PROFILED_BATCHES = 12
"""Batches of the epoch that is profiled; the profiler's schedule lies within it."""
RUN_BATCHES = 24
CHILD = "bottleneck_lab.measure.kinds.input_pipeline.child_profiled"


def run(context: Context[InputPipelineSettings], on_line: OnLine) -> int:
    """Run the script on its device and report how busy that was. Returns the exit status."""
    status, seen, step_s = run_script(context, on_line, RUN_BATCHES)
    if seen.timed():
        rate = seen.samples_per_s()
        busy = rate * step_s / seen.batch
        on_line(
            f"{rate:.1f} {context.settings.samples.called}/s; the device was busy {busy:.0%} of the"
            " time. That is a hint: `lab check` gives the verdict."
        )
    return status


def profile(context: Context[InputPipelineSettings], trace: Path, on_line: OnLine) -> int:
    """Run the script under torch.profiler and add the device's rows to its trace. Returns the exit
    status.
    """
    status, seen, step_s = run_script(context, on_line, PROFILED_BATCHES, trace)
    if trace.is_file():
        emulated = context.device != "cuda"
        add_device_rows(trace, seen.steps, context.settings, emulated=emulated, step_s=step_s)
    return status


def run_script(
    context: Context[InputPipelineSettings],
    on_line: OnLine,
    batches: int,
    trace: Path | None = None,
    wanted_s: float | None = None,
) -> tuple[int, PipelineRun, float]:
    """Run the script for `batches` batches after a warm-up, under torch.profiler with `trace`.

    `wanted_s`: seconds that an emulated device should take for a step; by default it is calibrated
    as in a check. Returns the exit status, what the device saw, and the seconds per step.
    """
    count, seen = context.judge().count(context.data), PipelineRun(context.settings.batch)
    if wanted_s is None:
        wanted_s = wanted_step_s(context.settings, calibrate(context, count))
    with DeviceProcess.start(context, wanted_s) as device:
        arguments = (device.channel, seen, count, batches, on_line)
        server = threading.Thread(target=_serve, args=arguments, daemon=True)
        server.start()
        try:
            options = trace_options(trace, context.device) if trace else []
            status = _run_child(context, device, on_line, options)
        finally:
            # The end of the device ends the thread: it waits on the device's channel.
            device.end()
            server.join()
    return status, seen, device.step_s


def _run_child(
    context: Context[InputPipelineSettings],
    device: DeviceProcess,
    on_line: OnLine,
    options: list[str],
) -> int:
    fds = (device.script_socket.fileno(), device.arena.fd)
    command = child_command(CHILD, context, [*options, *script_options(context, device)])
    return stream(command, context.workspace, context.janitor, on_line, {}, fds)


def _serve(channel: Channel, seen: PipelineRun, count: int, batches: int, on_line: OnLine) -> None:
    """Hand out a short warm-up and one epoch to a script that is only run or profiled."""
    rng = np.random.default_rng(0)  # the same order each time: two captures can be compared
    with contextlib.suppress(WireError):
        while True:
            message = channel.receive(None)
            if isinstance(message, Trained):
                seen.steps.append(message)
            elif isinstance(message, EpochAsked):
                channel.send(plan_epoch(rng, seen, count, [WARM_UP_BATCHES, batches]).message())
            elif isinstance(message, Broken):
                on_line(
                    f"The script sent an invalid training step ({message.why}); the device takes no"
                    " more.\n"
                )
