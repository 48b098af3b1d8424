"""A check from start to verdict: collect the submission, measure it, conclude. Whatever happens,
the result is a verdict.
"""

from __future__ import annotations

import errno
import re
import shutil
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import CriterionSpec, Device, FailReason, Lab
from bottleneck_lab.errors import LabError, MachineError
from bottleneck_lab.grading.conclusion import Stopped, conclude
from bottleneck_lab.grading.criteria import BUSY_CORES, grade_check, not_measured
from bottleneck_lab.grading.verdict import (
    CriterionResult,
    Graded,
    Outcome,
    Quantity,
    Verdict,
    finite,
)
from bottleneck_lab.measure.clock import PhaseClock
from bottleneck_lab.measure.context import Context, Measured, Progress
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.sandbox.bubblewrap import require_sandbox
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import too_much_below
from bottleneck_lab.measure.submission import collect
from bottleneck_lab.programs import require_program

ENOUGH_BYTES = 256 << 20
"""Free at first, room enough for all that the verifier and the reference write."""


@dataclass
class _Ended:
    """How a measurement ended: its results, of which submission, and what held the code.

    `stopped`: why the learner's code was. `machine`: what was wrong with the machine, or with us.
    """

    measured: Measured = field(default_factory=lambda: Measured([]))
    submission_hash: str = ""
    isolation: dict[str, str] = field(default_factory=dict)
    stopped: Stopped | None = None
    machine: LabError | None = None
    clock: PhaseClock = field(default_factory=PhaseClock)


def check_lab(
    lab: Lab,
    workspace: Path,
    device: Device,
    *,
    data: Path,
    progress: Progress = lambda _doing, _share: None,
    graded: Graded | None = None,
    sandbox_required: bool = False,
) -> Verdict:
    """Measure the workspace's editable files and return the verdict.

    The results of the `graded` answers join the others once the work was measured: of work that
    ends a check at once nobody learns which answers are right. They are left out where the check
    judges the answers itself. With `sandbox_required`, as is right for code that may do harm,
    nothing runs where bubblewrap does not work: that is an ERROR.
    Whatever the learner's code does is in the verdict; KeyboardInterrupt alone comes through, with
    every process ended.
    """
    started = datetime.now(UTC)
    spec = lab.spec.devices[device]
    diagnosis = graded.results if graded and not spec.judges_diagnosis else []
    questions = [CriterionSpec(result.id, "diagnosis", result.id) for result in diagnosis]
    specs = [*spec.criteria, *questions]
    ended = _measure(
        lab,
        workspace,
        device,
        specs,
        data=data,
        progress=progress,
        sandbox_required=sandbox_required,
    )
    measured, stopped = ended.measured, ended.stopped
    results = _complete(
        [*measured.results, *_diagnosis_results(diagnosis, ended, specs, lab.spec.starter_fails)],
        specs,
        stopped is not None,
    )
    conclusion = conclude(
        results,
        specs=specs,
        about=lab.spec.starter_fails,
        machine=ended.machine,
        stopped=stopped,
        conditions=measured.conditions,
    )
    predicted = None
    if graded and graded.prediction:
        quantity: Quantity = "memory" if lab.predicts_memory(device) else "time"
        gain = measured.speedup if quantity == "memory" else measured_speedup(measured)
        predicted = msgspec.structs.replace(graded.prediction, measured=gain, quantity=quantity)
    return Verdict(
        outcome=conclusion.outcome,
        reason=conclusion.reason,
        summary=conclusion.summary,
        advice=conclusion.advice,
        lab=lab.slug,
        lab_hash=lab.content_hash(),
        submission_hash=ended.submission_hash,
        device=device,
        criteria=results,
        environment=fingerprint(),
        isolation=ended.isolation,
        started_at=started.isoformat(timespec="seconds"),
        duration_s=round(ended.clock.total_s(), 3),
        seconds={phase: round(seconds, 3) for phase, seconds in ended.clock.seconds().items()},
        notes=measured.notes,
        prediction=predicted,
        measurement=finite(measured.details),
    )


def measured_speedup(measured: Measured) -> float | None:
    """Return the speed-up that a check measured; None where other programs took the cores from it
    and the target stayed open: the figure is then theirs as much as the work's.
    """
    disturbed = (measured.conditions.other_cores or 0.0) > BUSY_CORES
    is_open = any(each.kind == "target" and each.holds is None for each in measured.results)
    return None if disturbed and is_open else measured.speedup


def without_answers(lab: Lab, verdict: Verdict) -> Verdict:
    """Return the verdict as learners get it: without figures that would answer the lab's
    questions, unless it is a PASS.
    """
    judged = lab.spec.devices[verdict.device].judges_diagnosis
    if judged and verdict.outcome is not Outcome.PASS:
        return msgspec.structs.replace(verdict, measurement={})
    return verdict


def _diagnosis_results(
    diagnosis: list[CriterionResult],
    ended: _Ended,
    specs: list[CriterionSpec],
    about: FailReason,
) -> list[CriterionResult]:
    """Return the results of the answers, all unmeasured unless the work ran to its end and is no
    more wrong than the shipped code: else who wants to know could stop the work before it is
    judged. `about`: the reason for which the shipped code fails.
    """
    correctness = {each.id: each for each in ended.measured.results if each.kind == "correctness"}
    # Where the shipped code is wrong, its questions can be answered before that is mended.
    wrong_counts = about != "wrong output"
    wrong = wrong_counts and any(result.holds is False for result in correctness.values())
    unreached = {spec.id for spec in specs if spec.kind == "correctness"} - set(correctness)
    if ended.measured.results and not (wrong or unreached or ended.stopped or ended.machine):
        return diagnosis
    if ended.machine:
        why = "since the check ended before it had judged your work"
    else:
        right = " and is right" if wrong_counts else " to its end"
        why = f"since answers are graded only with work that runs{right}"
    return [
        not_measured(CriterionSpec(result.id, "diagnosis", result.id), why) for result in diagnosis
    ]


def _measure(
    lab: Lab,
    workspace: Path,
    device: Device,
    specs: list[CriterionSpec],
    *,
    data: Path,
    progress: Progress,
    sandbox_required: bool,
) -> _Ended:
    """Measure with the lab's kind, and return how it ended: no exception but KeyboardInterrupt
    leaves this function.
    """
    ended = _Ended()
    with Janitor() as janitor:
        # Noted before anything is written: afterwards nobody could say who filled the disk.
        room_bytes = shutil.disk_usage(janitor.folder).free
        try:
            kind = kind_of(lab)
            context = Context(
                lab,
                device,
                kind.settings(lab, device),
                janitor.folder / "submission",
                workspace,
                data,
                janitor,
                progress,
                clock=ended.clock,
                isolation=ended.isolation,
            )
            ended.submission_hash = collect(lab, workspace, context.submission)
            if sandbox_required:
                require_sandbox()
            for tool in context.settings.tools:
                require_program(tool)
            ended.measured = kind.measure(context)
        except LearnerFault as fault:
            ended.stopped, ended.measured = _blame(fault, specs, lab.spec.editable)
        except LabError as error:
            ended.machine = error
        except Exception as error:
            # Ours, whatever it is; the learner's only where its files filled the disk.
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                ended.stopped, ended.machine = _blame_full_disk(janitor, room_bytes)
            else:
                ended.machine = _lab_fault(lab, error) or LabError(
                    f"The checker itself failed: {type(error).__name__}: {error}",
                    "Report this with the verdict file.",
                )
                ended.measured = Measured([], details={"traceback": traceback.format_exc()})
    return ended


def _lab_fault(lab: Lab, error: Exception) -> LabError | None:
    """Return the fault of a file of the lab that the verifier runs, such as judge.py, with the line
    that raised it.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == lab.path
    ]
    if not frames:
        return None
    where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    return LabError(
        f"The lab's own {Path(frames[-1].filename).name} failed: {type(error).__name__}: {error}"
        f" ({where}).",
        "The lab's author must correct it; the traceback is in the verdict file.",
    )


def _blame_full_disk(janitor: Janitor, room_bytes: int) -> tuple[Stopped | None, LabError | None]:
    """Return whose fault a full disk is: the learner's where the check's files fill half of a disk
    that had room, otherwise nobody's.
    """
    litter = too_much_below(janitor.folder, room_bytes // 2) if room_bytes > ENOUGH_BYTES else None
    if litter:
        return Stopped("crashed", f"The disk is full: your code wrote {litter}."), None
    where = janitor.folder.parent
    return None, MachineError(
        f"The disk that holds {where} is full.", "Make room there, or set TMPDIR to another disk."
    )


def _blame(
    fault: LearnerFault, specs: list[CriterionSpec], editable: list[str]
) -> tuple[Stopped | None, Measured]:
    """Return how a fault counts: a wrong output as a correctness result, every other one as what
    stopped the code.
    """
    if fault.reason == "crashed":
        return Stopped("crashed", without_given_frames(fault.detail, editable)), Measured([])
    # The criteria say nothing of code that did not run to its end.
    if fault.reason in ("crashed", "timed out", "tampered", "forbidden call", "does not compile"):
        return Stopped(fault.reason, fault.detail), Measured([])
    spec = next(
        (spec for spec in specs if spec.kind == "correctness"),
        CriterionSpec("right-answers", "correctness", "the output is right"),
    )
    return None, Measured([grade_check(spec, fault.detail, 1)])


_FRAME = re.compile(r"(\S+\.py), line \d+, in [^:\n]+: [^\n]*\n")
"""A frame as `worker.explain` prints it."""


def without_given_frames(detail: str, editable: list[str]) -> str:
    """Return what a crash says without the frames of files that the lab gives: no learner can mend
    those. Where no other is left, the one file to edit is named instead.
    """
    theirs = {Path(name).name for name in editable}
    kept = _FRAME.sub(lambda frame: frame[0] if frame[1] in theirs else "", detail)
    if kept == detail or _FRAME.search(kept) or len(theirs) != 1:
        return kept
    first = next(_FRAME.finditer(detail)).start()
    return f"{kept[:first]}{theirs.pop()}: {kept[first:]}"


def _complete(
    results: list[CriterionResult], specs: list[CriterionSpec], stopped: bool
) -> list[CriterionResult]:
    """Return the results in the lab's order, with an unmeasured one for each criterion that an
    earlier failure kept from being reached.
    """
    # Of a check that ended well a missing criterion is no result but a fault, which `conclude`
    # reports: nothing is filled in for it here.
    measured = {result.id: result for result in results}
    failed = stopped or any(result.holds is False for result in results)
    ordered = []
    for spec in specs:
        if spec.id in measured:
            ordered.append(measured.pop(spec.id))
        elif failed:
            ordered.append(not_measured(spec, "because the check ended first"))
    return [*ordered, *measured.values()]
