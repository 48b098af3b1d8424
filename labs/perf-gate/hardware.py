"""CI jobs whose runs are real work on a core or the GPU of this machine, timed by real clocks.

How long a run should take follows from the history and a secret seed. This machine's own
disturbances come on top, and the device notes them for every run. Only the verifier runs this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.bench import Bench, disturbance

STEADY, SHARE = 0.05, 0.05
"""By how much runs may miss the time they should take, and the share of a job's runs that may miss
it by more: twice as many made the solution miss some.
"""


def job_class(emulator: Any) -> type:
    """The emulator's Job, with its runs done on a bench."""

    class Job(emulator.Job):  # type: ignore[misc]  # the emulator is loaded by its path
        """A second of the job is `second_s` on this machine, so that histories of hours fit into a
        check.

        The job's own clock counts the time its runs should take: when this machine pauses, one
        run's figure is spoiled, but the job loses no time.
        """

        def __init__(
            self,
            history: Any,
            rng: np.random.Generator,
            budget_s: float,
            bench: Bench,
            second_s: float,
        ):
            super().__init__(history, rng, budget_s)
            self.bench, self.second_s = bench, second_s
            self._reports: list[np.ndarray[Any, np.dtype[np.float64]]] = []

        def run(self, commit: str, benchmark: str) -> tuple[int, float]:
            """A status and the seconds that a run took by the device's clock."""
            status, due_s = super().run(commit, benchmark)
            if status != emulator.OK:
                return status, 0.0
            self.bench.work(due_s * self.second_s)
            self._reports.append(self.bench.report())
            _, begin_s, end_s = self._reports[-1][-1].tolist()
            return status, (end_s - begin_s) / self.second_s

        @property
        def disturbed(self) -> str:
            """The cause why too many runs took longer than they should; empty if few did."""
            if not self._reports:
                return ""
            return disturbance(np.concatenate(self._reports), STEADY, SHARE)

    return Job
