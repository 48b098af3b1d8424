"""The checks of a learner's kernels on `cuda` besides answers and time: whose work they do, stray
accesses and races, machine code.

A lab asks for it in its device's settings: `triton_sources` are read before they are run,
`sanitize` names a program of the lab that launches the kernel under compute-sanitizer, and a
criterion `load-bytes` wants tensor cores fed by loads of at least that many bytes per thread.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from bottleneck_lab.analysis.machine_code.sass import KernelReport, describe, faults
from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.criteria import grade_value
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.cuda.static_check import check_binary, readable
from bottleneck_lab.measure.kinds.speedup.cuda.triton_rules import forbidden
from bottleneck_lab.measure.sandbox.limits import WATCH_S, Limits
from bottleneck_lab.measure.sandbox.process import Worker, printable
from bottleneck_lab.measure.sandbox.visible import Paths, sandboxed
from bottleneck_lab.measure.submission import collect
from bottleneck_lab.programs import find_program
from bottleneck_lab.trace.sanitizer import count_problems, first_problem

SANITIZER = "compute-sanitizer"
SANITIZER_CHECKS = ("memcheck", "racecheck")
LIMITS = Limits(total_s=240.0, memory_bytes=24 << 30)
AHEAD_S = 20.0
"""Seconds before the comparison for runs under the sanitizer: captures with it took 4 to 11 s on an
H100 and an H200. A kernel that hangs costs no more than this before the comparison finds out.
"""
MAX_BINARIES, MAX_BINARY_BYTES = 16, 256 << 20
MEMORY_BYTES = 8 << 30


def refuse_forbidden(context: Context[SpeedupSettings]) -> None:
    """Raise LearnerFault for a Triton source that does anything but launch kernels."""
    for name in context.settings.triton_sources:
        if problem := forbidden((context.submission / name).read_bytes(), name):
            raise LearnerFault("forbidden call", problem)


class Sanitizer:
    """Runs of the lab's program under compute-sanitizer, one for each of its checks, side by side.

    They start with the reference, while nothing is timed. One that is not done before the
    comparison is ended, and runs again after it.
    """

    def __init__(self, context: Context[SpeedupSettings]) -> None:
        self._context = context
        self._wanted = context.settings.sanitize is not None and context.device == "cuda"
        self._tool = find_program(SANITIZER) if self._wanted else None
        self._runs: dict[str, Worker] = {}
        self._ends: dict[str, _End] = {}
        self._start(AHEAD_S)

    def finish_ahead(self) -> None:
        """Wait for the runs, or end them when AHEAD_S have passed since their start."""
        self._finish(0.1)

    def refuse_stray_accesses(self) -> list[str]:
        """Return notes for the verdict that say what was checked. Raises LearnerFault for an error
        that the sanitizer reports.
        """
        if not self._wanted:
            return []
        if self._tool is None:
            return [
                f"Out-of-bounds accesses and races were not checked: {SANITIZER} is not installed"
                " here."
            ]
        self._start(LIMITS.total_s)
        self._finish(0.9)
        return [self._note(check, self._ends[check]) for check in SANITIZER_CHECKS]

    def _start(self, within_s: float) -> None:
        """Start the runs that have not come to an end."""
        if self._tool is None:
            return
        for check in SANITIZER_CHECKS:
            if check not in self._ends or self._ends[check].status is None:
                # Collected afresh: without anything that the code has written when it ran.
                folder = self._context.janitor.folder / f"{check}-{within_s:.0f}"
                collect(self._context.lab, self._context.workspace, folder)
                self._runs[check] = self._under_sanitizer(folder, check, within_s)

    def _finish(self, share: float) -> None:
        """Wait for the runs, `share` (0–1) of the check being done."""
        if self._runs:
            self._context.progress(f"running the kernel under {SANITIZER}", share)
        self._ends |= {check: _end_of(worker) for check, worker in self._runs.items()}
        self._runs = {}

    def _under_sanitizer(self, folder: Path, check: str, within_s: float) -> Worker:
        """Start a folder's program under the sanitizer."""
        tool, program = self._tool, self._context.settings.sanitize
        assert tool is not None
        assert program is not None
        return Worker(
            [str(tool), "--tool", check, "--target-processes", "all", sys.executable, program],
            # It may lie outside the system's folders: all of its toolkit is shown.
            Paths(folder, [tool.resolve().parents[1], Path("/opt/nvidia")]),
            replace(LIMITS, total_s=within_s),
            pass_fds=[],
            cores=None,
            threads=2,
            gpu=True,
            janitor=self._context.janitor,
        )

    def _note(self, check: str, end: _End) -> str:
        """Return the note for a clean run, or for one without a conclusion. Raises LearnerFault for
        problems, which are a wrong output that was lucky.
        """
        context, last = self._context, printable("".join(end.output.strip().splitlines()[-1:]))
        last = last[:200] or "it said nothing"
        if problems := count_problems(end.output):
            first = printable(first_problem(end.output))[:300]
            raise LearnerFault(
                "wrong output",
                f"{SANITIZER} ({check}) found {problems} problems, first:"
                f" {first or 'see `lab profile --tool sanitizer`'}.",
            )
        if end.status is None:
            return (
                f"{SANITIZER} ({check}) did not finish within {LIMITS.total_s:.0f} s and"
                f" {LIMITS.memory_bytes >> 30} GiB, so it proves nothing."
            )
        if problems == 0 and end.status == 0:
            return f"{SANITIZER} ({check}) found nothing."
        # Where the shipped kernel cannot finish either, the sanitizer is at fault, not the learner.
        shipped = _end_of(self._under_sanitizer(context.pristine(), check, LIMITS.total_s))
        if shipped.status == 0:
            raise LearnerFault(
                "wrong output",
                f"Under {SANITIZER} ({check}) {context.settings.sanitize} failed with this kernel:"
                f" {last}",
            )
        return (
            f"{SANITIZER} ({check}) could not finish, not even with the shipped kernel, so it"
            f" proves nothing: {last}"
        )


class _End(NamedTuple):
    """The end of a run's output, and its exit status: the program's own where no error was
    reported, None when not done in time.
    """

    output: str
    status: int | None


def _end_of(worker: Worker) -> _End:
    """Wait for a run, at most until it exceeds its limits."""
    try:
        while worker.process.poll() is None and not worker.watch.now_and_then():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(WATCH_S)
        return _End(worker.log_tail(), worker.process.poll())
    finally:
        worker.end()


def with_machine_code(context: Context[SpeedupSettings], measured: Measured) -> Measured:
    """Add the machine code of the kernels to a measurement: the criterion `load-bytes` where the
    lab has it, and a few sentences.

    Raises VerifierFault if no compiled kernel is found.
    """
    spec = context.criterion("load-bytes")
    if spec is None or context.device != "cuda":
        return measured
    reports = read_binaries(context.submission)
    if not reports:
        raise VerifierFault(
            "No compiled kernel was found where the lab's binding should leave it, so its machine"
            " code could not be read."
        )
    details = {**measured.details, "machine_code": msgspec.to_builtins(reports, str_keys=True)}
    results = [*measured.results, grade_machine_code(spec, reports)]
    return replace(
        measured, results=results, details=details, notes=[*measured.notes, *explain(reports)]
    )


def read_binaries(folder: Path) -> list[KernelReport]:
    """Read every kernel that was compiled below a submission's folder: by the lab's binding into
    `cache/`, by Triton into its own cache. Files without a kernel are passed over.

    Raises MachineError without a disassembler.
    """

    # The disassembler sees only that folder: the file is the learner's.
    def around(command: list[str]) -> list[str]:
        return sandboxed(command, Paths(folder), MEMORY_BYTES, gpu=False)

    reports: list[KernelReport] = []
    binaries = [*sorted(folder.glob("cache/*.so")), *sorted(folder.glob(".triton/cache/*/*.cubin"))]
    usable = [
        path
        for path in binaries
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_BINARY_BYTES
    ]
    for binary in usable[:MAX_BINARIES]:
        try:
            reports += check_binary(binary, around)
        except (CaptureError, subprocess.TimeoutExpired):
            continue
    return reports


def grade_machine_code(spec: CriterionSpec, reports: list[KernelReport]) -> CriterionResult:
    """Grade the bytes a thread of the widest global load in a kernel that uses tensor cores; 0 when
    none does.
    """
    widths = [report.widest_load_bytes for report in reports if report.tensor_core_instructions]
    return grade_value(spec, float(max(widths, default=0)), len(reports), "kernels")


def explain(reports: list[KernelReport]) -> list[str]:
    """Describe the machine code of the kernel that does most, and what is wrong with any other, a
    sentence a line.
    """
    main = max(reports, key=lambda report: (report.tensor_core_instructions, report.instructions))
    worse = [report for report in reports if set(faults(report)) - set(faults(main))]
    lines = [f"Machine code of {readable(main.name)}: {' '.join(describe(main))}"]
    lines += [
        f"Machine code of {readable(report.name)}: {' '.join(faults(report))}"
        for report in worse[:2]
    ]
    return lines
