"""`lab run` and `lab profile` for a lab: the child process that runs the learner's code, and the device it may need."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bottleneck_lab.analysis.scaling import Sweep
from bottleneck_lab.capture.emulated import add_device_rows
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError, UsageError
from bottleneck_lab.measure import feed
from bottleneck_lab.measure.accelerator import BYTES_PER_IMAGE, SLOTS
from bottleneck_lab.measure.accelerators import A100
from bottleneck_lab.measure.children import OnLine, stream
from bottleneck_lab.measure.context import Context, Progress
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.janitor import Janitor
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.submission import collect
from bottleneck_lab.measure.wire import Arena, Kind, WireError, pack

TRACE = "trace.json.gz"
PROFILED_BATCHES = 12
"""Batches of the epoch that is profiled; the schedule below lies within it."""
RUN_BATCHES = 24
SCHEDULE = {"wait": 1, "warmup": 2, "active": 8}


def run_workload(
    lab: Lab,
    workspace: Path,
    device: Device,
    *,
    data: Path,
    home: Path,
    on_line: OnLine,
) -> int:
    """Runs the workload as it stands, line by line to `on_line`; its exit status."""
    with Janitor() as janitor:
        context = _context(lab, device, workspace, data, home, janitor)
        if lab.spec.measure == "feed":
            return _run_fed(context, on_line)
        command = [sys.executable, "-u", str(workspace / lab.spec.entry)]
        if lab.spec.measure == "ranks":
            command[2:2] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "gpu"]
        return stream(command, workspace, janitor, on_line, {"LAB_PHOTOS": str(data), "LAB_DEVICE": device})


def _context(lab: Lab, device: Device, workspace: Path, data: Path, home: Path, janitor: Janitor) -> Context:
    """What a kind of measurement needs to run the learner's code: in its own folder, or for ranks in a copy of the lab's files."""
    context = Context(lab, device, workspace, workspace, data, home, janitor, lambda _doing, _share: None)
    if lab.spec.measure == "ranks":
        context.submission = janitor.folder / "submission"
        try:
            collect(lab, workspace, context.submission)
        except LearnerFault as fault:
            raise UsageError(fault.detail, "`lab reset` brings the shipped files back.") from fault
    return context


def _run_fed(context: Context, on_line: OnLine) -> int:
    fed = FedWorkload(context, [], on_line, RUN_BATCHES)
    status, run = fed.run()
    if run.timed():
        on_line(_rate(run, fed.step_s))
    return status


def scale_workload(
    lab: Lab, workspace: Path, device: Device, ranks: list[int], *, data: Path, home: Path, progress: Progress
) -> list[Sweep]:
    """A distributed lab's script on emulated ranks, its modelled scaling carried on to `ranks`. Raises CaptureError when the script fails."""
    from bottleneck_lab.measure import ranks as kind

    with Janitor() as janitor:
        context = _context(lab, device, workspace, data, home, janitor)
        context.progress = progress
        try:
            return kind.run(context, ranks)
        except LearnerFault as fault:
            raise CaptureError(
                fault.detail, "Mend `train.py`, or take the shipped one back with `lab reset`."
            ) from fault


def profile(
    lab: Lab, workspace: Path, device: Device, tool: str, *, data: Path, home: Path, out: Path, progress: Progress
) -> Path:
    """Captures the workload with `tool` into the folder `out`; returns the trace file. Raises CaptureError, UsageError or MachineError."""
    if tool != "torch":
        from bottleneck_lab.capture.tools import profile_with

        return profile_with(lab, workspace, device, tool, data=data, out=out, progress=progress)
    code = lab.code_hash(workspace)  # of what is run: it may be edited meanwhile
    lines: list[str] = []
    with Janitor() as janitor:
        context = _context(lab, device, workspace, data, home, janitor)
        progress("running the workload under torch.profiler", 0.1)
        status = _run_profiled(context, out / TRACE, lines.append)
    if status or not (out / TRACE).is_file():
        last = "\n".join(line.rstrip() for line in lines[-12:])
        raise CaptureError(
            f"The workload ended with status {status} before its trace was written:\n{last}",
            "Mend the error above; `lab run` runs the workload without a profiler.",
        )
    (out / "output.txt").write_text("".join(lines)[-(1 << 20) :], encoding="utf-8")
    write_description(lab, code, device, tool, out, sorted(path.name for path in out.glob("trace*.json.gz")))
    return out / TRACE


def write_description(lab: Lab, code: str, device: Device, tool: str, out: Path, files: list[str]) -> None:
    """Says in `capture.json` what was captured, of which code, where and when. No host name, no environment variables."""
    description = {
        "lab": lab.slug,
        "device": device,
        "emulated": device == "virtual",
        "tool": tool,
        "files": files,
        "code": code,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": fingerprint(),
    }
    (out / "capture.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def _run_profiled(context: Context, trace: Path, on_line: OnLine) -> int:
    measure = context.lab.spec.measure
    options = ["--trace", str(trace), "--schedule", json.dumps(SCHEDULE)]
    if measure == "feed":
        return FedWorkload(context, options, on_line, PROFILED_BATCHES).run(trace)[0]
    if measure == "speedup":
        return _run_calls(context, options, on_line)
    return int(importlib.import_module(f"bottleneck_lab.measure.{measure}").profile(context, trace, on_line))


def _run_calls(context: Context, options: list[str], on_line: OnLine) -> int:
    """Calls the entry file's function on inputs like those of a check, made beforehand and handed over as files."""
    judge, rng = context.judge(), np.random.default_rng(0)
    case = judge.cases(rng, context.settings)[0]
    folder = context.janitor.folder / "inputs"
    folder.mkdir()
    for call in range(sum(SCHEDULE.values())):
        values = judge.make_inputs(rng, case, context.data, context.settings)
        (folder / f"{call}.call").write_bytes(pack(Kind.CALL, values))
    command = child_command("calls", context, [*options, "--inputs", str(folder), "--device", context.device])
    return stream(command, context.workspace, context.janitor, on_line, {})


def child_command(mode: str, context: Context, options: list[str]) -> list[str]:
    """The command line of the child that runs the learner's code."""
    entry = context.workspace / context.lab.spec.entry
    return [sys.executable, "-u", "-m", "bottleneck_lab.capture.child", mode, "--entry", str(entry), *options]


@dataclass
class FedWorkload:
    """A training script with its device: what `lab check` does, without the secrets, the clock or the sandbox.

    `step_s` is how long an emulated device is to take for a step, by default calibrated as in a check; once there, the device says what it takes.
    """

    context: Context
    options: list[str]
    on_line: OnLine
    batches: int
    step_s: float = 0.0

    def run(self, trace: Path | None = None) -> tuple[int, feed.Run]:
        """Runs the script; with `trace`, writes the device's rows into it afterwards. The exit status, and what the device saw."""
        context, run = self.context, feed.Run(int(self.context.settings.get("batch", 16)))
        count = context.judge().count(context.data)
        if not self.step_s:
            self.step_s = float(context.settings.get("device_share", 0.4)) * feed.calibrate(context, count) * run.batch
        arena = Arena.create(SLOTS * run.batch * BYTES_PER_IMAGE)
        device, channel, theirs = feed.start_device(context, arena, self.step_s, run.batch)
        server = threading.Thread(target=_serve, args=(channel, run, count, self.batches, self.on_line), daemon=True)
        try:
            self.step_s = feed.device_step_s(channel, float(context.settings.get("start_s", 240)))
            server.start()
            status = self._run_child(theirs.fileno(), arena.fd)
        finally:
            theirs.close()
            device.kill()
            device.wait()
            context.janitor.forget(device.pid)
            arena.close()
        server.join()
        if trace is not None and trace.is_file():
            add_device_rows(trace, run.steps, None if context.device == "cuda" else A100, run.batch)
        return status, run

    def _run_child(self, socket: int, arena: int) -> int:
        context = self.context
        places = ["--socket", str(socket), "--arena", str(arena), "--photos", str(context.data)]
        command = child_command("train", context, [*self.options, *places])
        return stream(command, context.workspace, context.janitor, self.on_line, {}, (socket, arena))


def _rate(run: feed.Run, step_s: float) -> str:
    busy = run.images_per_s() * step_s / run.batch
    return f"{run.images_per_s():.1f} images/s; the device was useful {busy:.0%} of the time (a hint, not a verdict)"


def _serve(channel: Any, run: feed.Run, count: int, batches: int, on_line: OnLine) -> None:
    """Hands out a short warm-up and one epoch to a script that is only run or profiled; says why where the device takes no more from it."""
    rng = np.random.default_rng(0)
    with contextlib.suppress(WireError):
        while True:
            kind, values = channel.receive(None)
            if kind is Kind.RECORD:
                run.steps.append(feed.Step(*values))
            elif kind is Kind.EPOCH:
                epoch = feed.plan_epoch(rng, run, count, [feed.WARM_UP_BATCHES, batches])
                channel.send(Kind.EPOCH, epoch.number, epoch.seed, epoch.order, epoch.rows)
            elif kind is Kind.BROKEN:
                on_line(f"The device was sent what is no training step ({values[0]}) and takes no more.\n")
