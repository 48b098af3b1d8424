"""The reference compared with itself (an A/A test): with as many pairs as the decision needs."""

from __future__ import annotations

import time

from bottleneck_lab.analysis.statistics import log_ratios
from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.sequential import (
    SELF_TEST_PAIRS,
    SelfTest,
    Side,
    self_test,
    shuffled_order,
)
from bottleneck_lab.grading.verdict import WHEN_QUIET
from bottleneck_lab.measure.kinds.speedup.session import Workers

SELF_TEST_SIZES = (6, 9, *SELF_TEST_PAIRS)
"""Pairs of the A/A test: six are the fewest that bound anything, and nine bear an outlier. Where
they leave no doubt, more would change nothing.
"""


class AgainstItself:
    """The A/A test of one case: as few pairs as show that the machine is fit, and more of them
    (`narrow`) while what they leave in doubt is all that keeps the work from a verdict.

    `waited_s`: seconds in which the reference's threads waited for a core in these pairs, which the
    learner has no part in. `spent_s`: seconds that they took. Raises BusyMachineError when the
    machine is unfit.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._margin = workers.context.settings.self_test_margin
        self._case = workers.names[0]
        # Two inputs by turns: the reference has no use for knowing one again.
        self._by_turns = [workers.inputs(self._case) for _ in range(2)]
        self._seconds: dict[Side, list[float]] = {"reference": [], "learner": []}
        self._sizes = list(SELF_TEST_SIZES)
        self.waited_s = self.spent_s = 0.0
        self.outcome = self._measure()
        while not self.outcome.fit and self.narrow():
            pass
        if not self.outcome.fit:
            raise BusyMachineError(self.outcome.sentence, WHEN_QUIET)

    def narrow(self) -> bool:
        """Measure more pairs, which bound the doubt more closely. Returns False, with none
        measured, if there is no doubt or no larger size.
        """
        if self.outcome.quiet or not self._sizes:
            return False
        self.outcome = self._measure()
        return True

    def _measure(self) -> SelfTest:
        """Measure up to the next size, and judge all pairs so far."""
        reference, seconds = self._workers.reference, self._seconds
        waiting, begin = reference.worker.waiting(), time.monotonic()
        wanted = self._sizes.pop(0)
        while (done := len(seconds["reference"])) < wanted:
            # The second call finds this input warm: a coin, as in the pairs that count, says which
            # side has that.
            for side in shuffled_order(self._workers.context.rng, 1)[0]:
                seconds[side].append(reference.call(self._by_turns[done % 2])[0])
        self.waited_s += waiting.seconds()
        self.spent_s += time.monotonic() - begin
        return self_test(log_ratios(seconds["reference"], seconds["learner"]), self._margin)
