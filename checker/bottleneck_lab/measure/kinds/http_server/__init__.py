"""The `http_server` kind: the load that any HTTP server sustains, compared with the shipped one.
The lab's judge makes the requests and judges the answers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.base import Criteria, JudgeFunctions, Kind, S
from bottleneck_lab.measure.settings import LOADING_CORES, WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context
    from bottleneck_lab.measure.sandbox.children import OnLine


UNDER_LOAD = "bottleneck_lab.measure.kinds.http_server.under_load"
"""The program that has a server under load for an outside profiler."""


class HttpServerSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """clients: connections of the closed loop, which lasts `closed_s`. most_a_second: requests
    drawn for each second of it.

    judged: answers of each loop that are judged, drawn in secret; the others only have to arrive.
    """

    clients: int = 16
    closed_s: float = 7.0
    most_a_second: int = 3000
    judged: int = 1000


class LoadedKind(Kind[S]):
    """The family of kinds whose workload is a server: it does nothing until it is under load."""

    def cores(self, lab: Lab, device: Device) -> int:  # noqa: ARG002 - alike in every lab and on all
        """Return one more than the learner's code gets: the clients have their own."""
        return LOADING_CORES + 1

    def under_load(self, context: Context[S], on_line: OnLine) -> int:
        """Run the server under load, its parts marked as NVTX ranges for as long as a capture
        lasts: `under_load` in the kind's run.py. Returns its exit status.
        """
        status: int = self._load("run", "under_load")(context, on_line)
        return status

    def captured_work(self, tool: str) -> tuple[str, ...]:
        if tool not in ("torch", "nsys"):
            return ()
        return super().captured_work(tool)

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        if tool == "nsys":
            return (sys.executable, "-u", "-m", UNDER_LOAD)
        if tool is not None:
            raise UsageError(
                f"`--tool {tool}` does not capture a server under load.",
                "`lab profile` does, and `lab profile --tool nsys`.",
            )
        return super().program(lab, device, tool)


class HttpServerKind(LoadedKind[HttpServerSettings]):
    """A server under load."""

    name = "http_server"
    settings_type = HttpServerSettings
    criteria: ClassVar[Criteria] = {
        "right-answers": "correctness",
        "bad-requests": "correctness",
        "throughput": "target",
        "p99-ms": "target",
    }
    required = ("right-answers", "throughput")
    judge_functions: ClassVar[JudgeFunctions] = {"make_request": 3, "judge": 3}
    run = Kind.run_by_kind


KIND = HttpServerKind()
