"""Pairs that decide nothing: taken up by the protocol, slowed by kernels left running, or bought
with more threads than allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.sequential import PAIRS, SequentialTest
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.speedup.figures import SAMPLES, Case

MAX_OVERHEAD_SHARE = 0.02
"""Largest share of a timed call that the protocol itself may take (docs/trust.md)."""
MAX_SLOWED, SURELY_SLOWED = 1.3, 2.0
"""How much longer the reference's calls on a GPU may take beside the learner's stopped processes
than alone, and from where on no other cause is left.

In between lie clocks that fall under load and other users of the GPU, too: nobody is accused there.
Estimated from the clocks' range, never measured.
"""
MAX_CORES_SHARE = 1.1
"""Cores kept busy over the threads that a case allows: beyond this it is no slip."""
MAX_READY_SHARE = 1.25
"""Threads that computed or waited for a core, over those that a case allows. Beyond this other
programs hide how many cores they would keep busy.
"""
COUNTED_CALLS = 3
"""Calls in each of which more threads than allowed computed: so many are no accident. One thread is
never ready more than once, whatever else runs.
"""


def refuse_overhead(cases: list[Case], tests: dict[str, SequentialTest]) -> None:
    """Raise VerifierFault if the protocol's own time is all that stands between the pairs and a
    decision.

    A target that one case has missed for sure is missed, whatever the others would have needed.
    """
    if any(case.failed() for case in cases):
        return
    for case in cases:
        share = case.overhead_share
        plain = {
            id_: test.decide(SAMPLES[id_](case), exhausted=True).state
            for id_, test in tests.items()
        }
        if share > MAX_OVERHEAD_SHARE and plain != case.states() and not case.out_of_time:
            raise VerifierFault(
                f"The protocol itself takes {share:.0%} of a call: this lab's calls are too short"
                " to measure here."
            )


@dataclass(frozen=True)
class Turns:
    """Seconds of the reference's calls of one case: before the learner's code was loaded, taking
    turns with it, and after it had ended.
    """

    before_s: list[float]
    beside_s: list[float]
    after_s: list[float]

    @property
    def slowed(self) -> float:
        """A call's median time beside the learner's processes over that alone; 0 where none was
        timed there.
        """
        return median(self.beside_s or [0.0]) / max(median(self.before_s), median(self.after_s))

    def surely(self) -> bool:
        """Return True if three quarters of the calls took longer than every one alone, and their
        median by far.
        """
        slowest_alone, few = max(*self.before_s, *self.after_s), len(self.beside_s) // 4
        return self.slowed > SURELY_SLOWED and sorted(self.beside_s)[few] > slowest_alone


def refuse_kernels_left_running(cases: dict[str, Turns], *, failed: bool) -> None:
    """Raise LearnerFault if the reference was slowed while all of the learner's processes were
    stopped, and neither before nor after they lived.

    A kernel on a GPU goes on when its process is stopped, and takes turns with the reference's.
    What may have another cause raises BusyMachineError, unless the work has `failed` already: a
    slow reference is to nobody's harm.
    """
    sure = [name for name, turns in cases.items() if turns.surely()]
    case = max(sure or cases, key=lambda name: cases[name].slowed)
    times = (
        f"{cases[case].slowed:.1f} times as long alongside your code as before it was loaded and"
        f" after it ended ({case})"
    )
    if sure:
        raise LearnerFault(
            "tampered", f"The reference took {times}: your kernels kept running during its turns."
        )
    if cases[case].slowed > MAX_SLOWED and not failed:
        raise BusyMachineError(
            f"The reference took {times}: something else used the GPU, or its clocks fell.",
            "Check with `nvidia-smi` what else is running there and how hot it is, and make sure"
            " each call ends with its last kernel.",
        )


def refuse_counted_threads(cases: list[Case]) -> None:
    """Raise LearnerFault if in every call of some cases more threads computed than these allow, and
    were ready at the same time. That needs no core: a busy machine cannot hide it.
    """
    beyond = [
        case
        for case in cases
        if case.threads
        and min(case.computing, default=0) > case.threads
        and case.ready > MAX_READY_SHARE * case.threads
    ]
    if sum(len(case.computing) for case in beyond) < COUNTED_CALLS:
        return
    case = max(beyond, key=lambda one: len(one.computing))
    raise LearnerFault(
        "tampered",
        f"It may use {_allowed(case)} but computed with {min(case.computing)} in every call"
        f" ({case.name}).",
    )


def _allowed(case: Case) -> str:
    return "one thread" if case.threads == 1 else f"{case.threads} threads"


def refuse_more_threads(cases: list[Case]) -> None:
    """Raise LearnerFault if a case says how many threads it allows (`judge.threads`), and many
    more cores were busy: the reference keeps to it.

    A few percent more are charged as time (`Case.charged`). Raises BusyMachineError if more threads
    were ready and other programs kept them from running, unless a target is missed all the same.
    """
    refuse_counted_threads(cases)
    failed = any(case.failed() for case in cases)
    for case in cases:
        if not case.threads or len(case.learner_s) < PAIRS.looks[0]:
            continue
        if case.cores > MAX_CORES_SHARE * case.threads:
            raise LearnerFault(
                "tampered",
                f"It may use {_allowed(case)} but kept {case.cores:.1f} cores busy ({case.name}).",
            )
        if case.ready > MAX_READY_SHARE * case.threads and not failed:
            raise BusyMachineError(
                f"It may use {_allowed(case)}, and {case.ready:.1f} were ready on average: other"
                f" programs kept them from the cores ({case.name}; in {sum(case.learner_s):.2f} s"
                f" they ran for {case.cpu_s:.2f} s and waited {case.waited_s:.2f} s).",
                "Close other programs (`top` shows them), and use no more threads than the case"
                " allows.",
            )
