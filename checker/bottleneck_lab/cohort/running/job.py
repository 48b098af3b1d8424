"""The trusted program that an executor starts for one lease: it measures a submission and leaves
the result in the job's folder.

It holds no key and no way to the database. The code under test is in `check_lab`'s sandbox, which
shows neither this folder nor the nonce in it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from bottleneck_lab.catalog import Device, Lab, find_lab
from bottleneck_lab.cohort.protocol import Tool
from bottleneck_lab.cohort.running.disturbance import wait_until_undisturbed
from bottleneck_lab.cohort.running.profiling import make_capture
from bottleneck_lab.cohort.submissions.diagnosis import Diagnosis
from bottleneck_lab.errors import CaptureError, LabError, MachineError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.lifetime import end_with_parent
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.cgroup import limits_problem, take_charge
from bottleneck_lab.measure.verifier import check_lab, without_answers
from bottleneck_lab.workspace.atomic import write_bytes
from bottleneck_lab.workspace.commitments import Record
from bottleneck_lab.workspace.dataset import data_folder

JOB, RESULT, FILES, CAPTURE = "job.json", "result.json", "files", "capture"
UNSANDBOXED = (
    "Measured without a sandbox, which the instructor allowed: the code could have interfered."
)
UNLIMITED = (
    "Measured without a control group's limits, which the instructor allowed: the code's memory and"
    " processes were monitored, not limited by the kernel."
)
HOW_TO_LIMIT = (
    "Start it with `systemd-run --user --scope -p Delegate=yes` before the command, or as the"
    " systemd unit in the folder deploy/ of the source; --allow-no-cgroup measures without one, and"
    " every verdict says so."
)
MAX_RESULT_BYTES = 32 << 20

Check = Callable[..., Verdict]
"""`check_lab`, or a test's own in its place."""


class Job(msgspec.Struct, frozen=True):
    """A submission to measure, and how; with `tool`, one to profile."""

    nonce: str
    lab: str
    lab_hash: str
    device: Device
    sandbox_required: bool = True
    quiet_s: float = 0.0
    record: Record | None = None
    limits_required: bool = True
    tool: Tool | None = None


class Result(msgspec.Struct, frozen=True):
    """A verdict that is not signed yet, the files of a capture, or why there is neither.

    `uncaptured` if the profiler ran and recorded nothing, so that another try would be no better.
    """

    nonce: str
    checker: str
    verdict: Verdict | None = None
    problem: str | None = None
    capture: dict[str, bytes] = {}
    uncaptured: bool = False


def write_job(folder: Path, job: Job, files: dict[str, bytes], capture: dict[str, bytes]) -> None:
    """Lay out a job's folder with the submitted files and those of the learner's capture.

    Only the runner's user can read it.
    """
    folder.mkdir(mode=0o700, parents=True)
    for part, contents in ((FILES, files), (CAPTURE, capture)):
        for name, data in contents.items():
            path = folder / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    write_bytes(folder / JOB, msgspec.json.encode(job))


def read_result(folder: Path) -> Result | None:
    """Return a job's result; None while there is none. Raises MachineError for anything else."""
    path = folder / RESULT
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RESULT_BYTES + 1)
        return msgspec.json.decode(data, type=Result)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise MachineError(
            f"The job's result cannot be read: {error}.", "It is measured again."
        ) from error


def run_job(folder: Path, check: Check | None = None) -> None:
    """Measure what `folder` describes, and leave `result.json` there, completely or not at all."""
    job = msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
    checker = f"bottleneck-lab {version('bottleneck-lab')}"
    try:
        if job.tool is None:
            result = Result(job.nonce, checker, verdict=_measure(job, folder, check))
        else:
            result = Result(job.nonce, checker, capture=_profile(job, job.tool, folder))
    except CaptureError as error:
        problem = f"Nothing was recorded. {error.message} {error.remedy}"
        result = Result(job.nonce, checker, problem=problem, uncaptured=True)
    except LabError as error:
        # Learners read it too, and their own machine has nothing to do with it.
        problem = f"On the machine that measures: {error.message} {error.remedy}"
        result = Result(job.nonce, checker, problem=problem)
    except Exception as error:  # whatever it is, it is ours: the learner's code runs elsewhere
        traceback.print_exc()
        result = Result(
            job.nonce, checker, problem=f"The checker failed: {type(error).__name__}: {error}"
        )
    write_bytes(folder / RESULT, msgspec.json.encode(result))


def _profile(job: Job, tool: Tool, folder: Path) -> dict[str, bytes]:
    lab = _same_lab(job)
    _containment_notes(job)
    return make_capture(lab, folder / FILES, job.device, tool, data_folder(lab))


def _same_lab(job: Job) -> Lab:
    """Return the job's lab. Raises MachineError if this runner has another edition of it."""
    lab = find_lab(job.lab)
    if lab.content_hash() != job.lab_hash:
        raise MachineError(
            f"The runner has another edition of '{job.lab}'.",
            "Install the server's version on the runner.",
        )
    return lab


def _measure(job: Job, folder: Path, check: Check | None) -> Verdict:
    lab, files = _same_lab(job), folder / FILES
    notes = _containment_notes(job)
    wait_until_undisturbed(job.quiet_s)
    diagnosis = Diagnosis(lab, files, folder / CAPTURE, job.record)
    verdict = (check or check_lab)(
        lab,
        files,
        job.device,
        data=data_folder(lab),
        graded=diagnosis.graded(job.device),
        sandbox_required=job.sandbox_required,
    )
    if verdict.prediction and any(question.to_reference for question in diagnosis.questions):
        # How much faster the reference is was not measured here, so nothing was predicted of it.
        unmeasured = msgspec.structs.replace(verdict.prediction, measured=None)
        verdict = msgspec.structs.replace(verdict, prediction=unmeasured)
    return msgspec.structs.replace(
        without_answers(lab, verdict),
        notes=[*verdict.notes, *notes, *diagnosis.notes],
        diagnosis=diagnosis.standing(verdict),
    )


def _containment_notes(job: Job) -> list[str]:
    """Return what a verdict must say of missing containment.

    Raises MachineError where the job requires what is missing.
    """
    notes = []
    if bubblewrap() is None:
        if job.sandbox_required:
            raise MachineError(
                "bubblewrap does not work on this runner.",
                "Install it, or start the runner with --allow-unsandboxed.",
            )
        notes.append(UNSANDBOXED)
    take_charge()
    if problem := limits_problem():
        if job.limits_required:
            raise MachineError(
                "The code under test cannot be limited by a control group on this runner:"
                f" {problem}.",
                HOW_TO_LIMIT,
            )
        notes.append(UNLIMITED)
    return notes


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    # An exception, unlike the default action, lets `check_lab` end its sandbox on the way out.
    raise SystemExit(128 + signum)


def end_with(parent: int) -> None:
    """Have the kernel send SIGTERM when `parent` ends, however it ends.

    Raises SystemExit if it has ended already.
    """
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        raise SystemExit(0)


def main(check: Check | None = None) -> None:
    """Run `python -m bottleneck_lab.cohort.running.job FOLDER [PARENT]`.

    With PARENT, a process number, it ends when that process does.
    """
    signal.signal(signal.SIGTERM, _stop)
    if len(sys.argv) > 2:
        end_with(int(sys.argv[2]))
    run_job(Path(sys.argv[1]), check)


if __name__ == "__main__":
    main()
