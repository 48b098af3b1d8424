"""Made-up verdicts that every rendering is tested with."""

from __future__ import annotations

from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict

ENVIRONMENT = {"cpu": "Example CPU 9000, 2 cores", "torch": "2.15.0"}
ISOLATION = {"files": "bubblewrap", "network": "none", "memory limit": "not enforced"}

SAMPLES = CriterionResult(
    id="samples",
    kind="correctness",
    holds=True,
    sentence="Every sample was trained once an epoch, with the right label and pixels.",
    samples=640,
)


def utilisation(value: float, low: float, high: float, *, holds: bool | None) -> CriterionResult:
    """The idle-gpu lab's main criterion with the given figures."""
    return CriterionResult(
        id="useful-utilisation",
        kind="target",
        holds=holds,
        sentence="The device does useful work for 80% of the time or more.",
        value=value,
        low=low,
        high=high,
        target=0.8,
        unit="share",
        samples=12,
    )


DATA_WAIT = CriterionResult(
    id="data-wait",
    kind="mechanism",
    holds=False,
    sentence="The trace shows the device waiting for data for less than 15% of the step.",
    value=0.55,
    target=0.15,
    direction="at_most",
    unit="share",
)


def _verdict(**fields: object) -> Verdict:
    base: dict[str, object] = {
        "reason": None,
        "lab": "idle-gpu",
        "lab_hash": "a" * 64,
        "submission_hash": "b" * 64,
        "device": "virtual",
        "environment": ENVIRONMENT,
        "isolation": ISOLATION,
        "started_at": "2026-11-21 09:30:00 UTC",
        "duration_s": 33.6,
    }
    return Verdict(**(base | fields))


def passed() -> Verdict:
    """Everything holds, and the gain was predicted well."""
    return _verdict(
        outcome=Outcome.PASS,
        summary="The device is kept busy: 91.3% of the time it does useful work.",
        criteria=[SAMPLES, utilisation(0.913, 0.902, 0.921, holds=True)],
        prediction=Prediction(predicted=2.2, measured=2.28),
    )


def slow() -> Verdict:
    """Right answers, too slow, with a prediction far off."""
    return _verdict(
        outcome=Outcome.FAIL,
        reason="correct but slow",
        summary=(
            "The work is right, but the device still waits for data more than half of the time."
        ),
        criteria=[SAMPLES, utilisation(0.412, 0.401, 0.423, holds=False), DATA_WAIT],
        prediction=Prediction(predicted=3.0, measured=1.03),
        advice=[
            (
                "Look at the largest gap in your own capture: `lab report` shows what the host did"
                " meanwhile."
            ),
            "Change one thing, then run `lab check` again.",
        ],
        notes=["The machine was quiet: an A/A run of the reference differed by 0.6%."],
    )


def undecided() -> Verdict:
    """The interval spans the target, on a busy machine."""
    return _verdict(
        outcome=Outcome.INCONCLUSIVE,
        summary="The measurement was too noisy to decide: other programs kept 1.2 of 2 cores busy.",
        criteria=[SAMPLES, utilisation(0.79, 0.71, 0.85, holds=None)],
        advice=["Close what else is running and check again."],
    )


def broken() -> Verdict:
    """The machine is unfit; nothing was measured."""
    return _verdict(
        outcome=Outcome.ERROR,
        summary="This machine is too busy to measure: identical runs differed by 31%.",
        criteria=[],
        device="cuda",
        attestation="verified",
    )


def hostile() -> Verdict:
    """Text that tries to become markup, script or terminal commands."""
    nasty = (
        "</script><script>alert(1)</script> \x1b[2J\x1b]0;owned\x07 [bold]x[/bold] | `rm`"
        " \u202egnp.exe"
    )
    return _verdict(
        outcome=Outcome.FAIL,
        reason="crashed",
        summary=nasty,
        criteria=[CriterionResult(id="<b>", kind="correctness", holds=False, sentence=nasty)],
        advice=[nasty],
        environment={"cpu": nasty},
    )
