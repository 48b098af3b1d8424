"""The `http_server` kind: what any HTTP server sustains, compared with the shipped one. The lab's
judge makes the requests and judges the answers.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.base import Calls, Criteria, Kind, S
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine


class RequestsSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """clients: connections of the closed loop, which lasts `closed_s`. most_a_second: requests made
    for each second of it.

    judged: answers of each loop that are judged, drawn in secret; the others only have to arrive.
    """

    clients: int = 16
    closed_s: float = 7.0
    most_a_second: int = 3000
    judged: int = 1000


class Loaded(Kind[S]):
    """A kind whose workload is a server: without load it would have nothing to do."""

    @abstractmethod
    def under_load(self, context: Context[S], on_line: OnLine) -> int:
        """Runs the server under load, its parts marked as NVTX ranges for as long as a capture
        lasts; its exit status.
        """

    def captured_work(self, tool: str) -> tuple[str, ...]:
        return super().captured_work(tool) if tool in ("torch", "nsys") else ()

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        if tool == "nsys":
            return (
                sys.executable,
                "-u",
                "-m",
                "bottleneck_lab.measure.kinds.http_server.under_load",
            )
        if tool is not None:
            raise UsageError(
                f"`--tool {tool}` does not capture a server under load.",
                "`lab profile` does, and `lab profile --tool nsys`.",
            )
        return super().program(lab, device, tool)


class RequestsKind(Loaded[RequestsSettings]):
    """A server under load."""

    name = "http_server"
    settings_type = RequestsSettings
    criteria: ClassVar[Criteria] = {
        "right-answers": "correctness",
        "bad-requests": "correctness",
        "throughput": "target",
        "p99-ms": "target",
    }
    required = ("right-answers", "throughput")
    judge_calls: ClassVar[Calls] = {"make_request": 3, "judge": 3}

    def measure(self, context: Context[RequestsSettings]) -> Measured:
        from bottleneck_lab.measure.kinds.http_server.check import measure

        return measure(context)

    def profile(self, context: Context[RequestsSettings], trace: Path, on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.http_server.run import profile

        return profile(context, trace, on_line)

    def under_load(self, context: Context[RequestsSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.http_server.run import under_load

        return under_load(context, on_line)

    def run(self, context: Context[RequestsSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.http_server.run import run

        return run(context, on_line)


KIND = RequestsKind()
