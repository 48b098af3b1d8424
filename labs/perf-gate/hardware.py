"""CI jobs whose runs are real work on a core of this machine, timed by its clock. How long a run is to take follows from the history and a secret seed.

What this machine does to a run comes on top, and the device notes it run by run. Run by the verifier alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.bench import Bench, disturbance

STEADY, SHARE = 0.05, 0.05
"""By how much runs may take longer than they were to take, and the share of a job's runs that may exceed it: twice as many cost the solution regressions."""


def job_class(emulator: Any) -> type:
    """The emulator's Job, whose runs are worked off on a bench."""

    class Job(emulator.Job):  # type: ignore[misc]  # the emulator is loaded by its path
        """A second of the job is `second_s` of this machine: histories of hours fit into a check.

        The job's own clock goes by what its runs are to take: a pause of this machine costs a run its figure, and the job none of its time.
        """

        def __init__(self, history: Any, rng: np.random.Generator, budget_s: float, bench: Bench, second_s: float):
            super().__init__(history, rng, budget_s)
            self.bench, self.second_s = bench, second_s
            self._reports: list[np.ndarray[Any, np.dtype[np.float64]]] = []

        def run(self, commit: str, benchmark: str) -> tuple[int, float]:
            """A status and the seconds that a run took, by the device's clock."""
            status, to_take_s = super().run(commit, benchmark)
            if status != emulator.OK:
                return status, 0.0
            self.bench.work(to_take_s * self.second_s)
            self._reports.append(self.bench.report())
            _, begin_s, end_s = self._reports[-1][-1].tolist()
            return status, (end_s - begin_s) / self.second_s

        @property
        def disturbed(self) -> str:
            """Whether this machine kept too many runs from taking their time: empty, or what was seen."""
            return disturbance(np.concatenate(self._reports), STEADY, SHARE) if self._reports else ""

    return Job
