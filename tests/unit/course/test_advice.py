"""The advice of a check, after what was done in this folder already."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from bottleneck_lab.course import advice
from bottleneck_lab.course.advice import fit_advice, note_first_fix
from bottleneck_lab.grading.conclusion import ADVICE, IN_COMMON, WRONG_ANSWERS, WRONG_AS_SHIPPED
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict
from bottleneck_lab.workspace.attempts import Attempt
from bottleneck_lab.workspace.captures import make_capture
from bottleneck_lab.workspace.commitments import load_record
from bottleneck_lab.workspace.hints import take_hint

CAPTURE = Path(__file__).parents[3] / "datasets" / "captures" / "synthetic-input.json.gz"


def slow(workspace) -> Verdict:
    """A FAIL of the workspace's code as it is now."""
    return Verdict(
        outcome=Outcome.FAIL,
        reason="correct but slow",
        summary="",
        advice=list(ADVICE["correct but slow"]),
        lab=workspace.lab.slug,
        lab_hash="",
        submission_hash=workspace.lab.code_hash(workspace.root),
        device="virtual",
        criteria=[],
        environment={},
        isolation={},
        started_at="2026-01-02T00:00:00+00:00",
        duration_s=1.0,
    )


def advised(workspace, verdict: Verdict) -> list[str]:
    return fit_advice(workspace, load_record(workspace), verdict).advice


def capture(workspace) -> None:
    """Make a capture of the code as it is now."""
    code = workspace.lab.code_hash(workspace.root)

    def fill(out: Path) -> None:
        shutil.copy(CAPTURE, out / "trace.json.gz")
        facts = {"files": ["trace.json.gz"], "code": code, "made_at": "2026-01-01"}
        (out / "capture.json").write_text(json.dumps(facts))

    make_capture(workspace, "torch", fill)


def test_advice_does_not_request_a_second_capture_of_the_checked_code(start):
    workspace = start("stuttering-tagger")
    assert advised(workspace, slow(workspace)) == ADVICE["correct but slow"], "there is none"
    capture(workspace)
    look, _ = advised(workspace, slow(workspace))
    assert look == (
        "Capture 1 is of the code that was checked: `lab report 1` shows what takes the time."
    )
    checked, train = slow(workspace), workspace.root / "train.py"
    shipped = train.read_text()
    train.write_text("raise SystemExit")
    capture(workspace)
    train.write_text(shipped)
    assert advised(workspace, checked)[0] == look, "of two captures the first is of this code"
    edited = replace(slow(workspace), submission_hash="1" * 64)
    assert advised(workspace, edited) == ADVICE["correct but slow"], "it is of other code"


def test_no_hint_is_advised_where_all_were_taken(start):
    workspace = start("stuttering-tagger")
    while take_hint(workspace) is not None:
        pass
    assert advised(workspace, slow(workspace)) == ADVICE["correct but slow"][:1]


def test_what_is_met_is_not_among_what_to_do(start):
    workspace = start("stuttering-tagger")
    left = "Not there yet: most memory, 9.79 MiB (wanted at most 4 MiB)."
    verdict = replace(slow(workspace), advice=[f"Met: speed of a step. {left}"])
    assert advised(workspace, verdict) == [left]


def test_where_a_run_is_the_evidence_no_capture_is_advised(start):
    workspace = start("timing-pitfalls")
    look, _ = advised(workspace, slow(workspace))
    assert look == "`lab run` shows what your code does now."


def test_a_capture_that_cannot_be_read_loses_no_verdict(start):
    workspace = start("stuttering-tagger")
    capture(workspace)
    (workspace.captures / "0001-torch" / "capture.json").write_text("half a file")
    assert advised(workspace, slow(workspace)) == ADVICE["correct but slow"]


def test_the_lines_whose_memory_grows_are_named(start, monkeypatch):
    workspace = start("forecaster-out-of-memory")
    capture(workspace)
    holders = [
        SimpleNamespace(line="train.py(31): forecast", blocks=114, held_bytes=1 << 20, grows=True),
        SimpleNamespace(line="train.py(48): train", blocks=6, held_bytes=1 << 20, grows=False),
    ]
    read = SimpleNamespace(memory=[SimpleNamespace(holders=holders)])
    monkeypatch.setattr(advice, "read_capture", lambda _: read)
    look, _ = advised(workspace, slow(workspace))
    assert look.endswith("by what these lines make: train.py(31) (114 blocks, 1.0 MiB at its end).")


def test_a_pass_sets_the_prediction_beside_the_first_check_that_was_fast_enough(start):
    """Later fixes were for another criterion, and no part of the predicted one."""
    workspace = start("stuttering-tagger")

    def check(gain, *, target, mechanism, outcome=Outcome.FAIL):
        return replace(
            slow(workspace),
            outcome=outcome,
            reason="the mechanism is still there" if target else "correct but slow",
            criteria=[
                CriterionResult("right", "correctness", True, ""),
                CriterionResult("speed", "target", target, ""),
                CriterionResult("waits", "mechanism", mechanism, ""),
            ],
            prediction=Prediction(1.4, gain),
        )

    verdicts = [
        check(1.17, target=False, mechanism=False),
        check(1.41, target=True, mechanism=False),
        check(1.6, target=True, mechanism=False),
    ]
    earlier = [Attempt(n, each, workspace.root) for n, each in enumerate(verdicts, 1)]
    passed = check(1.93, target=True, mechanism=True, outcome=Outcome.PASS)
    (note,) = note_first_fix(earlier, passed).notes
    assert note.startswith("Check 2 was the first with right results that met the speed target")
    assert note.endswith(", at 1.41x. What was changed since made that 1.93x.")
    assert note_first_fix(earlier[:1], passed) == passed
    assert note_first_fix(earlier, verdicts[2]) == verdicts[2], "it has not passed yet"


def test_where_memory_is_predicted_the_first_check_counts_that_needed_little_enough(start):
    """As fast as ever is no fix of a lab whose target only keeps a fix from being slow."""
    workspace = start("forecaster-out-of-memory")

    def check(gain, *, peak, kept, outcome=Outcome.FAIL):
        return replace(
            slow(workspace),
            outcome=outcome,
            reason="the mechanism is still there",
            criteria=[
                CriterionResult("right-reports", "correctness", True, ""),
                CriterionResult("step-speedup", "target", True, "", unit="x"),
                CriterionResult("peak-mib", "mechanism", peak, "", unit="MiB"),
                CriterionResult("kept-tensors", "mechanism", kept, "", unit="tensors"),
            ],
            prediction=Prediction(18.0, gain, "memory"),
        )

    verdicts = [check(1.0, peak=False, kept=False), check(17.2, peak=True, kept=False)]
    earlier = [Attempt(n, each, workspace.root) for n, each in enumerate(verdicts, 1)]
    passed = check(17.9, peak=True, kept=True, outcome=Outcome.PASS)
    assert note_first_fix(earlier[:1], passed) == passed
    (note,) = note_first_fix(earlier, passed).notes
    assert note.startswith("Check 2 was the first with right results that needed little enough")
    assert note.endswith(", at 17.20x. What came after it was for the other criteria.")


def test_wrong_work_begins_with_the_time_that_ended_its_check_or_with_any_of_its_cases(start):
    def wrong(id_, kind="correctness", **fields):
        return CriterionResult(id_, kind, False, fields.pop("sentence", "no."), **fields)

    workspace = start("timing-pitfalls")
    verdict = replace(slow(workspace), reason="wrong output", advice=[IN_COMMON])
    none = wrong("coverage", counted="0 of 500 (0%)")
    assert "any one of them" in advised(workspace, replace(verdict, criteria=[none]))[0]
    some = replace(none, counted="411 of 500 (82%)")
    assert advised(workspace, replace(verdict, criteria=[none, some])) == [IN_COMMON]
    ended = wrong("cost", sentence="1 of 3. Counted up to function 33, with which the check ended.")
    late = [ended, wrong("budget", "target")]
    first = advised(workspace, replace(verdict, advice=[WRONG_AS_SHIPPED], criteria=late))
    assert "have the loop ask `seconds_left()`" in first[0]


@pytest.mark.parametrize("advice", [WRONG_AS_SHIPPED, WRONG_ANSWERS])
def test_advice_that_the_next_step_gives_as_well_is_left_out(start, advice):
    workspace = start("resnet-top-ops", "cpu")
    assert advised(workspace, replace(slow(workspace), advice=[advice])) == []
