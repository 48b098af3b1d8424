"""Whose fault it is when a measurement ends early."""

from __future__ import annotations

from bottleneck_lab.catalog import FailReason


class LearnerFault(Exception):  # noqa: N818 - says who or what, as `raise` reads
    """The learner's code did this: the verdict is FAIL with `reason`. `detail` is what they are told."""

    def __init__(self, reason: FailReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: FailReason = reason
        self.detail = detail


class VerifierFault(Exception):  # noqa: N818 - says who or what, as `raise` reads
    """The machine or the checker failed: the verdict is ERROR, and it is not the learner's fault. `advice` says what to do."""

    def __init__(
        self, detail: str, advice: str = "Try again; if it happens again, report it with the verdict file."
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.advice = advice
