"""Grade corrected answers with the measurement of the check before, where nothing else has changed
since.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import CriterionSpec, Device, Lab
from bottleneck_lab.grading.conclusion import conclude
from bottleneck_lab.grading.verdict import Graded, Verdict
from bottleneck_lab.measure.machine import fingerprint

STANDS = "Only answers have changed since the check before, so its measurement stands."
_PASSING = ("load", "sm_clock_mhz", "gpu_processes")
"""Facts of an environment that belong to one moment."""


def regrade(
    lab: Lab,
    device: Device,
    last: Verdict,
    folder: Path,
    graded: Graded,
) -> Verdict | None:
    """Return the last verdict with the answers as they are graded now, or None if the work in
    `folder` has to be measured.

    That verdict must have failed for its answers alone: all that was measured was decided, and
    holds. Code, lab, device, machine and versions must be the same. Like the verdict that it is
    made from, it is self-attested: whoever signs measures.
    """
    spec = lab.spec.devices[device]
    measured = [result for result in last.criteria if result.kind != "diagnosis"]
    unchanged = (
        last.reason == "wrong diagnosis"
        and all(result.holds for result in measured)
        and last.signature is None
        and last.device == device
        and last.lab_hash == lab.content_hash()
        and last.submission_hash == lab.code_hash(folder)
        and _lasting(last.environment) == _lasting(fingerprint())
        and (graded.prediction is None or last.prediction is not None)
    )
    # Some labs judge the answers against what the check itself records.
    if not unchanged or spec.judges_diagnosis:
        return None
    results = [*measured, *graded.results]
    questions = [CriterionSpec(result.id, "diagnosis", result.id) for result in graded.results]
    conclusion = conclude(results, specs=[*spec.criteria, *questions], about=lab.spec.starter_fails)
    predicted = last.prediction
    if predicted is not None and graded.prediction is not None:
        predicted = msgspec.structs.replace(
            graded.prediction, measured=predicted.measured, quantity=predicted.quantity
        )
    return msgspec.structs.replace(
        last,
        outcome=conclusion.outcome,
        reason=conclusion.reason,
        summary=conclusion.summary,
        advice=conclusion.advice,
        criteria=results,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=0.0,
        seconds={},
        notes=list(dict.fromkeys([*last.notes, STANDS])),
        prediction=predicted,
        diagnosis=None,
    )


def _lasting(environment: dict[str, str]) -> dict[str, str]:
    return {name: fact for name, fact in environment.items() if name not in _PASSING}
