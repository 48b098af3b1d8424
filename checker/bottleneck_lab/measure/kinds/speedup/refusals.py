"""Pairs that decide nothing: taken up by the protocol, slowed by kernels left running, or bought with more threads than allowed."""

from __future__ import annotations

import math
from statistics import median

from bottleneck_lab.grading.sequential import PAIRS, SequentialTest
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.speedup.case import SAMPLES, Case

MAX_OVERHEAD_SHARE = 0.02
"""Largest share of a timed call that the protocol itself may take (VERDICT.md)."""
MAX_SLOWED = 1.3
"""How much longer the reference's calls on a GPU may take beside the learner's stopped processes than alone.

Clocks that fall under load are to stay within it; never measured.
"""
MAX_CORES_SHARE = 1.1
"""Cores kept busy over the threads that a case allows: beyond this it is no slip."""


def refuse_overhead(cases: list[Case], tests: dict[str, SequentialTest]) -> None:
    """Raises VerifierFault where the protocol's own time is all that stands between the pairs and a decision.

    A target that one case has missed for sure is missed, whatever the others would have needed.
    """
    for case in [] if any(case.failed() for case in cases) else cases:
        share = case.overhead_s / median(case.learner_s or [math.inf])
        plain = {id_: test.decide(SAMPLES[id_](case), exhausted=True).state for id_, test in tests.items()}
        if share > MAX_OVERHEAD_SHARE and plain != case.states() and not case.out_of_time:
            raise VerifierFault(
                f"The protocol itself takes {share:.0%} of a call: this lab's calls are too short to be judged here."
            )


def refuse_kernels_left_running(before_s: float, beside_s: list[float], after_s: float) -> None:
    """Raises LearnerFault where the reference was slowed while all of the learner's processes were stopped, and neither before nor after they lived.

    A kernel on a GPU goes on when its process is stopped, and takes turns with the reference's.
    """
    slowed = median(beside_s or [0.0]) / max(before_s, after_s, 1e-9)
    if slowed > MAX_SLOWED:
        raise LearnerFault(
            "tampered",
            f"The reference took {slowed:.1f} times as long as before your code was loaded and after it ended: your kernels kept running during its turns.",
        )


def refuse_more_threads(cases: list[Case]) -> None:
    """Raises LearnerFault where a case says how many threads it allows (`judge.threads`), and many more cores were busy: the reference keeps to it.

    A few percent more are charged as time (`Case.charged`).
    """
    for case in cases:
        if case.threads and len(case.learner_s) >= PAIRS.looks[0] and case.cores > MAX_CORES_SHARE * case.threads:
            asked = "one thread" if case.threads == 1 else f"{case.threads} threads"
            raise LearnerFault("tampered", f"It may use {asked} but kept {case.cores:.1f} cores busy ({case.name}).")
