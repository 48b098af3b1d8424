"""Whose fault it is when a measurement ends early."""

from __future__ import annotations

from bottleneck_lab.catalog import FailReason
from bottleneck_lab.errors import MachineError


class LearnerFault(Exception):  # noqa: N818 - says who or what, as `raise` reads
    """The learner's code did this: the verdict is FAIL with `reason`. `detail` is what they are
    told.
    """

    def __init__(self, reason: FailReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: FailReason = reason
        self.detail = detail


class VerifierFault(MachineError):  # noqa: N818 - likewise
    """The machine or the checker failed: the verdict is ERROR, and it is not the learner's
    fault.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "Try again; if it happens again, report it with the verdict file.",
    ) -> None:
        super().__init__(message, remedy)


class NotModelled(NotImplementedError):  # noqa: N818 - likewise
    """A program does right what an emulated device cannot do: the verdict is ERROR, and it is not
    the learner's fault. Raised in the learner's process; a worker's report names it by `reason`.
    """

    reason = "not modelled"
