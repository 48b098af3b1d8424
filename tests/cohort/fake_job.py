"""A job whose check is this test's own: what the submission says is what comes out, at once.
Started as `bottleneck_lab.cohort.running.job` is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bottleneck_lab.cohort.running.job import main
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict


def verdict_of(lab, files: Path, device, outcome=Outcome.PASS, value=3.0, **_) -> Verdict:
    """A verdict as `check_lab` gives it."""
    reason = "correct but slow" if outcome is Outcome.FAIL else None
    return Verdict(
        outcome=outcome,
        reason=reason,
        summary=f"{outcome}: measured {value}x.",
        lab=lab.slug,
        lab_hash=lab.content_hash(),
        submission_hash=lab.code_hash(files),
        device=device,
        criteria=[
            CriterionResult("right-answers", "correctness", True, "Every answer is right."),
            CriterionResult(
                "speedup",
                "target",
                outcome is Outcome.PASS,
                f"{value}x",
                value,
                value - 0.1,
                value + 0.1,
                2.0,
                unit="x",
            ),
        ],
        environment={"cpu": "none"},
        isolation={"sandbox": "none: a test's own check"},
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=0.1,
        prediction=Prediction(2.5, value),
    )


def check(lab, files: Path, device, **_) -> Verdict:
    """`WORD [SECONDS]` on the submission's first line decides; what runs when and where is noted in
    $BOTTLENECK_LAB_FAKE_LOG.
    """
    word, *rest = (files / "work.py").read_text().split("\n")[0].removeprefix("# ").split() or [
        "wrong"
    ]
    began, seconds = time.time(), float(rest[0]) if rest and rest[0][0].isdigit() else 0.0
    if word == "hostile":
        sys.stdout.write('{"outcome":"PASS"}' * 1000)
    time.sleep(seconds)
    if log := os.environ.get("BOTTLENECK_LAB_FAKE_LOG"):
        slot = os.environ.get("SLURMD_NODENAME") or os.environ.get("CUDA_VISIBLE_DEVICES", "cpu")
        with Path(log).open("a") as file:
            file.write(
                json.dumps({"slot": slot, "began": began, "ended": time.time(), "word": word})
                + "\n"
            )
    if word == "broken":
        raise MachineError("The machine is too busy.", "Wait.")
    if word == "dies":
        os._exit(9)
    outcome = {
        "right": Outcome.PASS,
        "slow": Outcome.PASS,
        "undecided": Outcome.INCONCLUSIVE,
        "error": Outcome.ERROR,
    }
    chosen = outcome.get(word, Outcome.FAIL)
    return verdict_of(lab, files, device, chosen, 3.0 if chosen is Outcome.PASS else 1.2)


COMMAND = [sys.executable, __file__]

if __name__ == "__main__":
    main(check)
