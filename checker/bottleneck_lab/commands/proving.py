"""Proving a lab for its author: the starter's capture, the starter, the solution, every variant and
every mutant, each graded like a learner's work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.capture import workload
from bottleneck_lab.capture.doctor import choose_device
from bottleneck_lab.catalog import Device, Lab, SiblingSpec
from bottleneck_lab.commands.evidence import read_capture
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.grading.criteria import NOT_YOURS
from bottleneck_lab.grading.diagnosis import for_check, grade_diagnosis
from bottleneck_lab.grading.margins import Part, Proof, Row, margins_of
from bottleneck_lab.grading.siblings import misdescribed
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.lab_rules import variants
from bottleneck_lab.measure.lab_rules.captured import captured
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers, with_answer
from bottleneck_lab.workspace.folder import handed_out
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.mutants import load_mutants, mutant_problems, write_mutant
from bottleneck_lab.workspace.siblings import generate

_SLOW = ("correct but slow", "the mechanism is still there")
"""Reasons that say that a target was missed."""


def prove(lab: Lab, device: str | None, only: Part | None, name: str | None) -> Iterator[Row]:
    """Capture the starter and grade it, the solution, every variant and every mutant; or a part of
    these, or one by name.
    """
    chosen = choose_device(lab, device)
    if name is None and only in (None, "capture") and _has_capture(lab):
        what = "solution" if kind_of(lab).records_itself else "starter"
        yield Row(lab.slug, f"capture of the {what} on {chosen}", capture_problems(lab, chosen))
    if name is None and only in (None, "capture"):
        for sibling in lab.spec.siblings:
            yield Row(
                lab.slug,
                f"capture of the sibling {sibling.program}",
                sibling_problems(lab, sibling),
            )
    if name is None and only in (None, "starter"):
        verdict = check(lab, lab.path, chosen)
        yield _row(
            lab, "starter", "", chosen, verdict, starter_problems(lab, verdict), _missed(verdict)
        )
    if name is None and only in (None, "solution"):
        verdict = check(lab, lab.solution, chosen)
        yield _row(lab, "solution", "", chosen, verdict, pass_problems(verdict))
    for folder in variants(lab, chosen) if only in (None, "variants") else []:
        if name in (None, folder.name):
            verdict = check(lab, folder, chosen)
            yield _row(lab, "variants", folder.name, chosen, verdict, pass_problems(verdict))
    if only in (None, "mutants"):
        yield from _prove_mutants(lab, chosen, name)


def _prove_mutants(lab: Lab, device: Device, name: str | None) -> Iterator[Row]:
    for mutant in load_mutants(lab, device):
        if name in (None, mutant.id):
            with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as folder:
                write_mutant(lab, mutant, Path(folder))
                verdict = check(
                    lab, Path(folder), device, sandbox_required=True, breaks=mutant.criterion
                )
            problems = mutant_problems(mutant, verdict)
            misses = [mutant.criterion] if mutant.criterion else _missed(verdict)
            yield _row(lab, "mutants", mutant.id, device, verdict, problems, misses)


def _missed(verdict: Verdict) -> list[str]:
    """The criteria that did not hold."""
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
    """The result of one check. `misses` are the criteria that wrong work must fail; None for
    correct work, which must meet all.
    """
    found = margins_of(verdict, lab.spec.devices[device].criteria)
    margins = [margin for margin in found if misses is None or margin.criterion in misses]
    what = " ".join(filter(None, (part.removesuffix("s"), name, f"on {device}")))
    return Row(
        lab.slug,
        what,
        problems,
        Proof(part, name, device, verdict.outcome, margins, machine(), right=misses is None),
    )


def machine() -> str:
    """A short name for this machine, by which calibration tells machines apart: its GPU, or else
    its CPU.
    """
    found = fingerprint()
    gpu = found.get("gpu", "none")
    return gpu if gpu != "none" else f"{found['cpu']}, {found['cores']} cores"


def _has_capture(lab: Lab) -> bool:
    """Whether learners capture this lab, or lab.toml says something about a capture anyway."""
    spec = lab.spec
    said = [
        spec.taught,
        *(hint.finding for hint in spec.hints),
        *(asked.from_capture or asked.shows for asked in spec.questions),
    ]
    return spec.evidence == "profile" or any(said)


def capture_problems(lab: Lab, device: Device) -> list[str]:
    """Where a capture of the shipped workload contradicts lab.toml. If recording is the learner's
    task, the solution records it.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as temporary:
        workspace, out = Path(temporary) / "work", Path(temporary) / "capture"
        out.mkdir()
        for name in handed_out(lab):
            solved = kind_of(lab).records_itself and name in lab.spec.editable
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_bytes(
                ((lab.solution if solved else lab.path) / name).read_bytes()
            )
        try:
            with progress() as show:
                workload.profile(
                    lab,
                    workspace,
                    device,
                    "torch",
                    data=data_folder(lab),
                    home=home(),
                    out=out,
                    progress=show,
                )
            return captured(lab, read_capture(out))
        except (UsageError, CaptureError) as error:
            return [error.message]


def sibling_problems(lab: Lab, sibling: SiblingSpec) -> list[str]:
    """Where the capture of a sibling contradicts lab.toml."""
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as folder:
        try:
            traces = generate(lab, sibling.program, 1, Path(folder))
            wrong = misdescribed(sibling, summarise(merge_ranks([load(path) for path in traces])))
        except (MachineError, CaptureError) as error:
            return [error.message]
    return [f"{sibling.program}: {wrong}"] if wrong else []


def starter_problems(lab: Lab, verdict: Verdict) -> list[str]:
    """Why the starter is not what it must be: correct, and too slow for its declared reason."""
    wanted = lab.spec.starter_fails
    if verdict.outcome != "FAIL" or verdict.reason != wanted:
        return [f"It should FAIL ({wanted}), but: {_said(verdict)}"]
    wrong = [
        result.sentence
        for result in verdict.criteria
        if result.kind == "correctness" and not result.holds
    ]
    return wrong if wanted in (*_SLOW, "wrong diagnosis") else []


def pass_problems(verdict: Verdict) -> list[str]:
    """Why correct work did not pass."""
    return [] if verdict.outcome == "PASS" else [f"It should PASS, but: {_said(verdict)}"]


def _said(verdict: Verdict) -> str:
    """The verdict in one line for the author, who may well have caused an ERROR."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{verdict.outcome}{reason}: {verdict.summary.removeprefix(NOT_YOURS)}"


def check(
    lab: Lab,
    folder: Path,
    device: Device,
    *,
    sandbox_required: bool = False,
    breaks: str | None = None,
) -> Verdict:
    """The verdict on the shipped files with those of `folder` laid over them.

    The diagnosis is the starter's own or the solution's; what only a learner's capture can answer
    is left out. The solution's answers may be another machine's (a GPU has other operators): then a
    second check gets what the first has measured, except for answers that `folder` changes. None is
    needed where `folder` changes no answer and the only criterion not met is the one that it
    `breaks`.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as temporary:
        workspace = Path(temporary)
        lay_out(lab, folder, workspace)
        verdict = _check_there(lab, folder, workspace, device, sandbox_required)
        measured = kind_of(lab).answers(verdict.measurement)
        fails_as_declared = not (folder / "diagnosis.toml").exists() and _missed(verdict) == [
            breaks
        ]
        if (
            folder == lab.path
            or verdict.reason != "wrong diagnosis"
            or not measured
            or fails_as_declared
        ):
            return verdict
        given, solution = load_answers(workspace), load_answers(lab.solution)
        text = (workspace / "diagnosis.toml").read_text(encoding="utf-8")
        for key, answer in measured.items():
            if given.get(key) == solution.get(key):
                text = with_answer(text, key, answer)
        (workspace / "diagnosis.toml").write_text(text, encoding="utf-8")
        return _check_there(lab, folder, workspace, device, sandbox_required)


def _check_there(
    lab: Lab, folder: Path, workspace: Path, device: Device, sandbox_required: bool
) -> Verdict:
    answers = load_answers(lab.solution)
    questions = [
        question for question in lab.spec.questions if not (question.from_capture or question.shows)
    ]
    unanswered = folder == lab.path and lab.spec.starter_fails != "wrong diagnosis"
    given = answers if unanswered else load_answers(workspace)
    results, prediction = grade_diagnosis(questions, given, answers, None)
    with progress() as show:
        return check_lab(
            lab,
            workspace,
            device,
            data=data_folder(lab),
            home=home(),
            progress=show,
            diagnosis=for_check(lab.spec.devices[device].criteria, results),
            prediction=prediction.predicted if prediction else None,
            sandbox_required=sandbox_required,
        )


def lay_out(lab: Lab, folder: Path, workspace: Path) -> None:
    """Copies the editable files of `folder` and the matching diagnosis into `workspace`."""
    for name in (*lab.spec.editable, "diagnosis.toml"):
        beside = lab.path if folder == lab.path else lab.solution
        source = next(
            (path for path in (folder / name, beside / name, lab.path / name) if path.is_file()),
            None,
        )
        if source:
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_bytes(source.read_bytes())
