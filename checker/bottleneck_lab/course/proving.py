"""Proving a lab for its author: the starter's capture, the starter, the solution, every variant and
every mutant, each graded like a learner's work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.capture.devices import choose_device
from bottleneck_lab.capture.tools import profile_workload
from bottleneck_lab.capture.workload import Workload
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.course.captures import read_capture
from bottleneck_lab.course.progress import ShowProgress, no_progress
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.grading.conclusion import NOT_YOURS
from bottleneck_lab.grading.diagnosis import grade_diagnosis
from bottleneck_lab.grading.margins import Part, Proof, Row, margins_of
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.lab_rules.captured import captured
from bottleneck_lab.measure.lab_rules.mutants import (
    Mutant,
    load_mutants,
    mutant_problems,
    write_mutant,
)
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.measured_key import has_key, measure_key
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers, with_answer
from bottleneck_lab.workspace.folder import handed_out

_MISSED_TARGET = ("correct but slow", "the mechanism is still there")
"""The reasons of a FAIL for missing a target."""


def prove(
    lab: Lab,
    device: str | None,
    only: Part | None,
    name: str | None,
    show_progress: ShowProgress = no_progress,
) -> Iterator[Row]:
    """Capture the starter and grade it, the solution, every variant and every mutant.

    `only` restricts that to a part, `name` to one variant or mutant.
    """
    chosen = choose_device(lab, device)
    if name is None:
        yield from _prove_lab(lab, chosen, only, show_progress)
    if only in (None, "variants"):
        for folder in variants(lab, chosen):
            if name in (None, folder.name):
                verdict = check(lab, folder, chosen, show_progress)
                yield _row(lab, "variants", folder.name, chosen, verdict, pass_problems(verdict))
    if only in (None, "mutants"):
        for mutant in load_mutants(lab, chosen):
            if name in (None, mutant.id):
                yield _prove_mutant(lab, mutant, chosen, show_progress)


def _prove_lab(
    lab: Lab, device: Device, only: Part | None, show_progress: ShowProgress
) -> Iterator[Row]:
    """Prove what the lab ships: its captures, its key, the starter and the solution."""
    if only in (None, "capture") and _has_capture(lab):
        subject = "solution" if kind_of(lab).records_itself else "starter"
        problems = capture_problems(lab, device, show_progress)
        yield Row(lab.slug, f"capture of the {subject} on {device}", problems)
    if only in (None, "starter"):
        if has_key(lab):
            yield Row(lab.slug, f"key on {device}", key_problems(lab, device))
        verdict = check(lab, lab.path, device, show_progress)
        problems = starter_problems(lab, verdict)
        yield _row(lab, "starter", "", device, verdict, problems, _missed(verdict))
    if only in (None, "solution"):
        verdict = check(lab, lab.solution, device, show_progress)
        yield _row(lab, "solution", "", device, verdict, pass_problems(verdict))


def _prove_mutant(lab: Lab, mutant: Mutant, device: Device, show_progress: ShowProgress) -> Row:
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        write_mutant(lab, mutant, Path(scratch))
        verdict = check(
            lab,
            Path(scratch),
            device,
            show_progress,
            sandbox_required=True,
            breaks=mutant.criterion,
        )
    problems = mutant_problems(mutant, verdict)
    misses = [mutant.criterion] if mutant.criterion else _missed(verdict)
    return _row(lab, "mutants", mutant.id, device, verdict, problems, misses)


def _missed(verdict: Verdict) -> list[str]:
    """Return the criteria that did not hold."""
    return [result.id for result in verdict.criteria if result.holds is False]


def _row(
    lab: Lab,
    part: Part,
    name: str,
    device: Device,
    verdict: Verdict,
    problems: list[str],
    misses: list[str] | None = None,
) -> Row:
    """Return the result of one check.

    `misses` are the criteria that wrong work must fail; None for correct work, which must meet all.
    """
    margins = margins_of(verdict, lab.spec.devices[device].criteria)
    if misses is not None:
        margins = [margin for margin in margins if margin.criterion in misses]
    what = " ".join(filter(None, (part.removesuffix("s"), name, f"on {device}")))
    proof = Proof(part, name, device, verdict.outcome, margins, machine(), right=misses is None)
    return Row(lab.slug, what, problems, proof)


def machine() -> str:
    """Return a short name for this machine: its GPU, or else its CPU.

    Calibration tells machines apart by it.
    """
    facts = fingerprint()
    gpu = facts.get("gpu", "none")
    return gpu if gpu != "none" else f"{facts['cpu']}, {facts['cores']} cores"


def _has_capture(lab: Lab) -> bool:
    """Return True if learners capture this lab, or lab.toml refers to a capture anyway."""
    spec = lab.spec
    return (
        spec.evidence == "profile"
        or bool(spec.taught)
        or any(hint.finding for hint in spec.hints)
        or any(question.from_capture or question.shows for question in spec.questions)
    )


def capture_problems(
    lab: Lab, device: Device, show_progress: ShowProgress = no_progress
) -> list[str]:
    """Return where a capture of the shipped workload contradicts lab.toml.

    If recording is the learner's task, the solution records it.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as temporary:
        workspace, out = Path(temporary) / "work", Path(temporary) / "capture"
        out.mkdir()
        for name in handed_out(lab):
            solved = kind_of(lab).records_itself and name in lab.spec.editable
            source = lab.solution if solved else lab.path
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_bytes((source / name).read_bytes())
        try:
            with show_progress() as show:
                workload = Workload(lab, workspace, device, data_folder(lab))
                profile_workload(workload, "torch", out, show)
            return captured(lab, read_capture(out))
        except (UsageError, CaptureError) as error:
            return [error.message]


def key_problems(lab: Lab, device: Device) -> list[str]:
    """Return where the solution's choices are not what this machine measures."""
    try:
        measured, solution = measure_key(lab, device), load_answers(lab.solution)
    except MachineError as error:
        return [error.message]
    return [
        f"{id_}: this machine measures '{answer}', and the solution says '{solution.get(id_)}'."
        for id_, answer in measured.items()
        if solution.get(id_) != answer
    ]


def starter_problems(lab: Lab, verdict: Verdict) -> list[str]:
    """Return the faults of a starter that must be correct, and too slow for its declared reason."""
    wanted = lab.spec.starter_fails
    if verdict.outcome != "FAIL" or verdict.reason != wanted:
        return [f"It should FAIL ({wanted}), but: {_in_one_line(verdict)}"]
    if wanted not in (*_MISSED_TARGET, "wrong diagnosis"):
        return []
    return [
        result.sentence
        for result in verdict.criteria
        if result.kind == "correctness" and not result.holds
    ]


def pass_problems(verdict: Verdict) -> list[str]:
    """Return why correct work did not pass."""
    if verdict.outcome == "PASS":
        return []
    return [f"It should PASS, but: {_in_one_line(verdict)}"]


def _in_one_line(verdict: Verdict) -> str:
    reason = f" ({verdict.reason})" if verdict.reason else ""
    # To learners an ERROR says that it is not their fault; it may well be the author's.
    return f"{verdict.outcome}{reason}: {verdict.summary.removeprefix(NOT_YOURS)}"


def check(
    lab: Lab,
    folder: Path,
    device: Device,
    show_progress: ShowProgress = no_progress,
    *,
    sandbox_required: bool = False,
    breaks: str | None = None,
) -> Verdict:
    """Return the verdict on the shipped files with those of `folder` laid over them.

    The diagnosis is the starter's own or the solution's; questions that only a learner's capture
    can answer are left out. `breaks` is the one criterion that a mutant must fail.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as temporary:
        workspace = Path(temporary)
        lay_out(lab, folder, workspace)
        verdict = _check_once(lab, folder, workspace, device, show_progress, sandbox_required)
        measured = kind_of(lab).answers(verdict.measurement)
        wrong = [one for one in verdict.criteria if one.kind == "diagnosis" and one.holds is False]
        if folder == lab.path or not wrong or not measured:
            return verdict
        changes_answers = (folder / "diagnosis.toml").exists()
        if not changes_answers and _missed(verdict) == [breaks]:
            return verdict
        # The solution's answers may be another machine's: a GPU has other operators, for example.
        # A second check gets what the first has measured, except for answers that `folder` changes.
        given, solution = load_answers(workspace), load_answers(lab.solution)
        text = (workspace / "diagnosis.toml").read_text(encoding="utf-8")
        for key, answer in measured.items():
            if given.get(key) == solution.get(key):
                text = with_answer(text, key, answer)
        (workspace / "diagnosis.toml").write_text(text, encoding="utf-8")
        return _check_once(lab, folder, workspace, device, show_progress, sandbox_required)


def _check_once(
    lab: Lab,
    folder: Path,
    workspace: Path,
    device: Device,
    show_progress: ShowProgress,
    sandbox_required: bool,
) -> Verdict:
    questions = [
        question for question in lab.spec.questions if not (question.from_capture or question.shows)
    ]
    solution = load_answers(lab.solution)
    # A starter is handed out with its questions unanswered: it gets the right answers, unless it
    # has to fail for its own.
    unanswered = folder == lab.path and lab.spec.starter_fails != "wrong diagnosis"
    answers = solution if unanswered else load_answers(workspace)
    graded = grade_diagnosis(questions, answers, solution, None)
    with show_progress() as show:
        return check_lab(
            lab,
            workspace,
            device,
            data=data_folder(lab),
            progress=show,
            graded=graded,
            sandbox_required=sandbox_required,
        )


def lay_out(lab: Lab, folder: Path, workspace: Path) -> None:
    """Copy the editable files of `folder` and the matching diagnosis into `workspace`."""
    for name in (*lab.spec.editable, "diagnosis.toml"):
        beside = lab.path if folder == lab.path else lab.solution
        source = next(
            (path for path in (folder / name, beside / name, lab.path / name) if path.is_file()),
            None,
        )
        if source:
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_bytes(source.read_bytes())
