"""Did ranks run out of time because other programs had the machine's cores? A script cannot bring
this about: see `Starvation`.
"""

from __future__ import annotations

import os
import time

from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.sandbox.process import Worker

TAKEN_SHARE = 0.85
"""Share of all cores from which on the others have the machine: of two cores they leave the ranks
90 s in 300 s, and a run needs 40 to 60 s.
"""
WAITED_SHARE = 0.5
"""Share of the time for which a rank or another at least stood in the queue for a core."""
FROZEN_S = 2.0


class Starvation:
    """Watches a worker's ranks and the rest of the machine, from its making on.

    Ranks that sleep or hang do not queue for a core, ranks that spin are not the others, and
    anything that a script starts and hides from its account stands still when the load is measured
    again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._began, self._waiting = time.monotonic(), worker.waiting()
        self._load = LoadMeter(lambda: own_cpu_s() + worker.cpu_s())

    def happened(self) -> bool:
        """Return True if the ranks have been starved until now, by programs that run without them,
        too.
        """
        enough = TAKEN_SHARE * (os.cpu_count() or 1)
        queued_s, watched_s = self._waiting.seconds(), time.monotonic() - self._began
        if self._load.cores() < enough or queued_s < WAITED_SHARE * watched_s:
            return False
        # The same load again while the ranks stand still: it is not theirs.
        self._worker.freeze()
        self._load.restart()
        time.sleep(FROZEN_S)
        cores = self._load.cores()
        self._worker.thaw()
        return cores >= enough
