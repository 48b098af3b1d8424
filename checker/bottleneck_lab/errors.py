"""Every error a user can see: one sentence on what is wrong, one on what to do about it."""

from __future__ import annotations

from enum import IntEnum

SITE = "https://bottleneck-lab.github.io/bottleneck-lab"
"""The documentation: installed packages do not have its pages as files."""


class ExitCode(IntEnum):
    """The exit statuses, the same for every command."""

    OK = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    ERROR = 4
    INTERRUPTED = 130


class LabError(Exception):
    """A problem the user can do something about.

    `remedy` names the next command or action. `exit_code` says whose fault it is: USAGE is the
    caller's, ERROR the machine's or ours, INCONCLUSIVE that of other programs.
    """

    exit_code: ExitCode = ExitCode.ERROR

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(LabError):
    """Bad arguments, an unknown lab, a broken file that the user wrote."""

    exit_code = ExitCode.USAGE


class MachineError(LabError):
    """The machine cannot do it: no space, no GPU, too busy, a missing tool."""


class BusyMachineError(MachineError):
    """Other programs took what a measurement needs, so it says nothing of the work."""

    exit_code = ExitCode.INCONCLUSIVE


class CaptureError(LabError):
    """A trace or report that cannot be read, or cannot be trusted."""


class WorkloadError(CaptureError):
    """The code that was to be captured ended with an error."""
