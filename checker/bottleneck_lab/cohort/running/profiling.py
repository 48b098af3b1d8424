"""Captures that a runner makes of submitted code: `lab profile` in the sandbox of this machine.

The program that profiles starts the submitted code itself, so all of it is contained. `python -m
bottleneck_lab.cohort.running.profiling FOLDER` reads `request.json` there, and leaves the capture
in `out` or the problem in `problem.json`.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import msgspec

from bottleneck_lab.capture.tools import locate_tool, profile_workload
from bottleneck_lab.capture.workload import Workload
from bottleneck_lab.catalog import Device, Lab, find_lab
from bottleneck_lab.cohort.protocol import MAX_CAPTURE_BYTES, Tool
from bottleneck_lab.cohort.submissions.handing_in import DESCRIPTION, files_problem
from bottleneck_lab.errors import CaptureError, LabError
from bottleneck_lab.measure.sandbox.cgroup import Cgroup
from bottleneck_lab.measure.sandbox.limits import Limits, set_limits
from bottleneck_lab.measure.sandbox.process import python_module
from bottleneck_lab.measure.sandbox.visible import Paths, sandboxed, worker_environment

REQUEST, PROBLEM = "request.json", "problem.json"
LIMITS = Limits(total_s=600.0, cpu_s=1800, memory_bytes=16 << 30, file_bytes=1 << 30)
THREADS = 2
"""Threads of the profiled code, as in a check of most labs."""


class _Request(msgspec.Struct, frozen=True):
    """The capture to make: of which lab on which device, and where its data set is."""

    lab: str
    device: Device
    tool: Tool
    data: str


class _Description(msgspec.Struct, frozen=True):
    """The part of a `capture.json` that is needed: the files that are read, and a report."""

    files: list[str]
    extra: list[str] = []


def make_capture(lab: Lab, files: Path, device: Device, tool: Tool, data: Path) -> dict[str, bytes]:
    """Profile the code in `files`, and return the files of the capture.

    Raises MachineError if this machine lacks the profiler, CaptureError if the code fails under it
    or the capture is too large.
    """
    program = locate_tool(tool)
    with tempfile.TemporaryDirectory(prefix="lab-profiling-") as name:
        folder = Path(name)
        _lay_out(folder, lab, files, _Request(lab.slug, device, tool, str(data)))
        shown, environment = [data], {}
        if program is not None:
            # A profiler's own programs lie beside it, outside of what a sandbox shows otherwise.
            shown += [Path(program).parent, Path(program).resolve().parents[1]]
            environment["PATH"] = f"{Path(program).parent}:/usr/local/bin:/usr/bin:/bin"
        output = _run_contained(Paths(folder, shown), environment, gpu=device == "cuda")
        return _collect(folder, output)


def _run_contained(paths: Paths, environment: dict[str, str], *, gpu: bool) -> str:
    """Run `main` in a sandbox and a control group, and return the end of its output. Raises
    CaptureError when it takes too long.
    """
    folder = paths.scratch
    command = sandboxed(python_module(__name__, str(folder)), paths, LIMITS.memory_bytes, gpu=gpu)
    group = Cgroup.create(LIMITS.memory_bytes, LIMITS.processes)
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **worker_environment(paths, THREADS, gpu=gpu),
                "BOTTLENECK_LAB_CONTENT": str(folder / "content"),
                "BOTTLENECK_LAB_HOME": str(folder / "home"),
                **environment,
            },
            cwd=folder,
            timeout=LIMITS.total_s,
            check=False,
            # Before anything of it runs: what has forked first would stay outside.
            preexec_fn=(lambda: group.add(0)) if group else None,
        )
    except subprocess.TimeoutExpired as error:
        raise CaptureError(
            f"The capture took longer than {LIMITS.total_s:.0f} s.",
            "Try the code with `lab run` first.",
        ) from error
    finally:
        if group is not None:
            group.kill()
            group.remove()
    return ended.stdout[-2000:].decode("utf-8", errors="replace")


def _lay_out(folder: Path, lab: Lab, files: Path, request: _Request) -> None:
    """Write the workspace to profile, and a course of this lab alone, without its solution."""
    shutil.copytree(lab.path, folder / "content" / "labs" / lab.slug)
    (folder / "content" / "solutions" / lab.slug).mkdir(parents=True)
    course = f'title = "Capture"\n[[stages]]\nname = "{lab.stage}"\nlabs = ["{lab.slug}"]\n'
    (folder / "content" / "labs" / "course.toml").write_text(course, encoding="utf-8")
    (folder / "work").mkdir()
    for name in lab.spec.files:
        path = folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lab.path / name, path)
    shutil.copytree(files, folder / "work", dirs_exist_ok=True)
    for name in ("out", "home"):
        (folder / name).mkdir()
    (folder / REQUEST).write_bytes(msgspec.json.encode(request))


def _collect(folder: Path, output: str) -> dict[str, bytes]:
    """Return the capture's files. Raises CaptureError for what is none, or is too large."""
    if (folder / PROBLEM).exists():
        problem = _read(folder / PROBLEM, 4000).decode("utf-8", errors="replace")
        raise CaptureError(problem, "`lab run` runs the code without a profiler.")
    try:
        description = _read(folder / "out" / DESCRIPTION, MAX_CAPTURE_BYTES)
        described = msgspec.json.decode(description, type=_Description)
        files = {DESCRIPTION: description}
        for name in [*described.files, *described.extra]:
            # A name that leads elsewhere would be refused afterwards, but must not be read at all.
            if name == Path(name).name:
                files[name] = _read(folder / "out" / name, MAX_CAPTURE_BYTES)
    except (OSError, msgspec.DecodeError) as error:
        raise CaptureError(
            f"The profiler left no capture: {output.strip() or error}",
            "Try the code with `lab run`.",
        ) from error
    if wrong := files_problem(files):
        raise CaptureError(wrong, "Submit it again.")
    if sum(map(len, files.values())) > MAX_CAPTURE_BYTES:
        raise CaptureError(
            f"The capture is larger than {MAX_CAPTURE_BYTES >> 20} MiB.",
            "Profile fewer steps on your own machine with `lab profile`.",
        )
    return files


def _read(path: Path, most: int) -> bytes:
    """Return at most one byte more than `most` of a plain file.

    What ran there was not trusted: a link could lead to the key, and a pipe would never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name} is not a file")
        return file.read(most + 1)


def main() -> None:
    """Run the contained program."""
    set_limits(LIMITS)
    folder = Path(sys.argv[1])
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=_Request)
    try:
        lab, data = find_lab(request.lab), Path(request.data)
        workload = Workload(lab, folder / "work", request.device, data)
        profile_workload(workload, request.tool, folder / "out")
    except LabError as error:
        (folder / PROBLEM).write_text(f"{error.message} {error.remedy}", encoding="utf-8")
    except Exception:
        (folder / PROBLEM).write_text(traceback.format_exc()[-4000:], encoding="utf-8")


if __name__ == "__main__":
    main()
