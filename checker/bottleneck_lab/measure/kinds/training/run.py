"""`lab run` and `lab profile` of a training script, in the learner's own folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.profiling import child_command, trace_options
from bottleneck_lab.measure.kinds.training import TrainingSettings, figures
from bottleneck_lab.measure.sandbox.children import OnLine, stream
from bottleneck_lab.measure.virtual_gpu.books import Books
from bottleneck_lab.measure.virtual_gpu.owner import engine_process
from bottleneck_lab.measure.virtual_gpu.spec import H200, GpuSpec
from bottleneck_lab.measure.virtual_gpu.trace import write_trace

CHILD = "bottleneck_lab.measure.kinds.training.child_profiled"


def run(context: Context[TrainingSettings], on_line: OnLine) -> int:
    """Run the script on the virtual GPU, then say how long a step took. Returns its exit status."""
    capacity_bytes = context.settings.run_capacity_mib * figures.MIB
    spec = msgspec.structs.replace(
        H200.at_scale(context.settings.scale), capacity_bytes=capacity_bytes
    )
    status, books = _run_modelled(context, spec, on_line, [], recording=False)
    modelled = books.figures
    for line in modelled.races:
        on_line(
            f"{line}: this pinned buffer was overwritten before anything had waited for the copy;"
            " a check fails that"
        )
    if status and modelled.steps:
        on_line(f"the script ended in step {modelled.steps}")
    if status == 0 and modelled.steps > figures.WARM_UP_STEPS:
        on_line(
            f"{figures.step_time_us(modelled) / 1000:.2f} ms per step,"
            f" {round(figures.launches_per_step(modelled), 1):,g} operators launched in a step"
            f" besides copies, at most {figures.peak_mib(modelled):.1f} MiB allocated"
            f" (modelled: {spec.name}; a hint, not a verdict)"
        )
    return status


def profile(context: Context[TrainingSettings], trace: Path, on_line: OnLine) -> int:
    """Write the run's timeline to `trace`: of the virtual GPU as modelled, of a real device as
    torch.profiler saw it. Returns the script's exit status.
    """
    if context.device != "virtual":
        options = [*trace_options(trace, context.device), "--device", context.device]
        return stream(
            child_command(CHILD, context, options), context.workspace, context.janitor, on_line, {}
        )
    captured = context.settings.captured_steps
    # The first steps allocate what later ones reuse: they run, and are left out of the trace.
    steps = ["--steps", str(figures.WARM_UP_STEPS + captured)] if captured else []
    spec = H200.at_scale(context.settings.scale)
    status, books = _run_modelled(context, spec, on_line, steps, recording=True)
    if books.figures.steps > figures.WARM_UP_STEPS:
        write_trace(books, spec, trace, skip_steps=figures.WARM_UP_STEPS)
    return status


def _run_modelled(
    context: Context[TrainingSettings],
    spec: GpuSpec,
    on_line: OnLine,
    options: list[str],
    *,
    recording: bool,
) -> tuple[int, Books]:
    """Run the script with its tensors in an engine. Returns its exit status and the engine's
    books.
    """
    with engine_process() as engine:
        engine.begin(spec, recording=recording)
        program = engine.program.fileno()
        command = child_command(
            CHILD, context, ["--device", "virtual", "--engine", str(program), *options]
        )
        status = stream(command, context.workspace, context.janitor, on_line, {}, (program,))
        return status, engine.end()
