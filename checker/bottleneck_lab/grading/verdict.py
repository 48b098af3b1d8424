"""The verdict: one versioned object that every view renders."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

from bottleneck_lab.catalog import CriterionKind, Device, FailReason
from bottleneck_lab.errors import ExitCode

SCHEMA = 1

WHEN_QUIET = (
    "Close other programs, or let `lab check --when-quiet 10` wait up to ten minutes for them."
)
"""The advice on a check that other programs disturbed; the next step follows it."""


class Outcome(StrEnum):
    """The four outcomes of a check."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"

    @property
    def exit_code(self) -> ExitCode:
        """The exit status of `lab check`."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.PASS: ExitCode.OK,
    Outcome.FAIL: ExitCode.FAIL,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.ERROR: ExitCode.ERROR,
}


class CriterionResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result for one criterion.

    `holds` is None when the measurement could not decide. `low` and `high` bound `value` at the
    verdict's confidence; both None if nothing is sampled.
    """

    id: str
    kind: CriterionKind
    holds: bool | None
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    target: float | None = None
    direction: Literal["at_least", "at_most"] = "at_least"
    unit: str = ""
    samples: int = 0
    corrected: bool | msgspec.UnsetType = msgspec.UNSET
    """Of an answer that was wrong at first: it holds, and earns no points. Left out of the
    JSON where it is not known, so that verdicts signed before it existed still verify.
    """
    counted: str | msgspec.UnsetType = msgspec.UNSET
    """The count behind `value`, in words such as `3 of 576 jobs (0.52%)`, where there is one.
    Left out of the JSON likewise.
    """


Quantity = Literal["time", "memory", "reference"]
"""What a predicted factor is about: the time of the work, its peak memory, or the factor by which
the reference is faster than the shipped code.
"""


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The gain that a learner predicted first, and the measured one: factors over the shipped
    workload. `corrected`: a later prediction, made after the tool's figures were shown; 0 if there
    is none.

    Defaults are left out of the JSON, so that verdicts signed before they existed still verify.
    """

    predicted: float
    measured: float | None
    quantity: Quantity = "time"
    corrected: float = 0.0


class Graded(NamedTuple):
    """Graded answers: a result for each question that is judged, and the prediction if a usable one
    was made.
    """

    results: list[CriterionResult]
    prediction: Prediction | None


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The worth of a learner's diagnosis: of the one that was committed first, before anything was
    revealed.

    `named`: its cause was right, and nothing had revealed it; None if that is not known.
    `measured`: so were its figures and stretches; left out if that is not known. `missed`: the ids
    of those that were wrong; left out by versions that did not keep them. `corrections`
    counts later commitments; `hints` those taken before the first; `told` is what gave the cause
    away before it. `copied`: what was checked is the reference solution's code, which never counts
    as solved.
    """

    named: bool | None
    copied: bool = False
    corrections: int = 0
    hints: int = 0
    told: Literal["", "hints", "revealed", "solution"] = ""
    measured: bool | msgspec.UnsetType = msgspec.UNSET
    missed: list[str] | msgspec.UnsetType = msgspec.UNSET


class Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose work a cohort's runner measured, and the nonce that only this measurement had: a signed
    verdict is nobody else's and of no other attempt.
    """

    cohort: str
    learner: str
    submission: str
    nonce: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete result of one check. `attestation` is `self-attested` on the learner's own
    machine, `verified` when a runner measured and signed.

    `seconds`: where `duration_s` went, by the phases of bottleneck_lab.measure.clock; empty in
    verdicts of earlier versions.
    """

    outcome: Outcome
    reason: FailReason | None
    summary: str
    lab: str
    lab_hash: str
    submission_hash: str
    device: Device
    criteria: list[CriterionResult]
    environment: dict[str, str]
    isolation: dict[str, str]
    started_at: str
    duration_s: float
    attestation: Literal["self-attested", "verified"] = "self-attested"
    advice: list[str] = []
    notes: list[str] = []
    prediction: Prediction | None = None
    diagnosis: Standing | None = None
    measurement: dict[str, Any] = {}
    binding: Binding | None = None
    seconds: dict[str, float] = {}
    schema: int = SCHEMA
    signature: str | None = None


def finite(figures: Any) -> Any:
    """Return figures as JSON has them: None in place of NaN and infinity, which a learner's
    parameters can make of any sum.
    """
    if isinstance(figures, dict):
        return {name: finite(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [finite(value) for value in figures]
    if isinstance(figures, float) and not math.isfinite(figures):
        return None
    return figures
