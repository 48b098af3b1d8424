"""The verifier's end of the two workers of a check: fresh inputs, calls to either side, judged
answers, and the reference's own times on this machine.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.sequential import Side, shuffled_order
from bottleneck_lab.measure.channel.messages import Value
from bottleneck_lab.measure.channel.session import CallSession
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.figures import FAR_PAIRS, MOVED_PAIRS, Case
from bottleneck_lab.measure.kinds.speedup.judging import complaint

QUICK, WAYS = 0, 1
"""The last argument of a lab's standards: for the reference's answer, or those of other ways."""
ROUNDING = 1e-3
"""How far a quick reference may be from the shipped code, in the judge's `disagreement`.

Measured: 1.5e-6 on a CPU. Arithmetic in TF32 on a GPU adds some; bfloat16 throughout is 2e-2.
"""


class TimedCall(NamedTuple):
    """The inputs of a timed call, and both sides' answers."""

    inputs: list[Value]
    answer: list[Any]
    reference: list[Any]


class UntimedCall(NamedTuple):
    """A call that is not timed: its case and inputs."""

    case: str
    inputs: list[Value]


class Workers:
    """The two workers of a check, the learner's from when it is there, and that of the lab's
    standards once these are loaded; the judge, the names of the cases, and the inputs.

    `untimed_answers`: how many answers were judged and not timed.
    """

    learner: CallSession

    def __init__(
        self,
        context: Context[SpeedupSettings],
        reference: CallSession,
        judge: ModuleType,
    ) -> None:
        self.context = context
        self.reference = reference
        self.judge = judge
        self.standards: CallSession | None = None
        self.generator = np.random.default_rng(context.rng.getrandbits(128))
        self.names = list(judge.cases(self.generator, context.settings.judge))
        self._ready: dict[str, list[Value]] = {}
        self.untimed_answers = 0
        self._timed: list[TimedCall] = []
        self._warm: list[tuple[list[Value], list[Any]]] = []

    def inputs(self, case: str, *, timed: bool = True) -> list[Value]:
        """Make fresh inputs for one call of a case. For calls that are not timed, a judge may have
        others (`untimed_inputs`).
        """
        if timed and case in self._ready:
            return self._ready.pop(case)
        data, settings = self.context.data, self.context.settings.judge
        make = self.judge.make_inputs
        if not timed:
            make = getattr(self.judge, "untimed_inputs", make)
        return list(make(self.generator, case, data, settings))

    def draw_ahead(self) -> None:
        """Make each case's next inputs now. The first may take a judge seconds, in which processes
        can start.
        """
        self._ready = {name: self.inputs(name) for name in self.names}

    def check(
        self, case: str, inputs: list[Value], answer: list[Any], reference: list[Any]
    ) -> None:
        """Raise LearnerFault when the judge does not accept the answer."""
        settings = self.context.settings.judge
        if wrong := complaint(self.judge, case, inputs, answer, reference, settings):
            raise LearnerFault("wrong output", wrong)

    def warm_up(self, case: str, calls: int) -> None:
        """Let both sides meet a case's shapes before it is timed, at the same time; the answers are
        judged.
        """
        for _ in range(calls):
            inputs = self.inputs(case)
            answer, reference = self._answers(self.reference, inputs, inputs)
            self.check(case, inputs, answer, reference)
            self._warm.append((inputs, reference))

    def _answers(
        self, trusted: CallSession, question: list[Value], inputs: list[Value]
    ) -> tuple[list[Any], list[Any]]:
        """Return the learner's answer to the inputs, and that of a trusted worker to its question,
        computed at the same time.
        """
        began = trusted.hand_over(question)
        answer = self.learner.call(inputs)[1]
        return answer, trusted.collect(began)[1]

    def time_pair(self, case: Case) -> None:
        """Time one pair on one fresh input, in random order, and judge the answer."""
        inputs = self.inputs(case.name)
        answers = dict[Side, list[Any]]()
        for side in shuffled_order(self.context.rng, 1)[0]:
            if side == "reference":
                seconds, answers[side] = self.reference.call(inputs)
                case.reference_s.append(seconds)
                continue
            worker = self.learner.worker
            # Reading the queue of every thread costs time: only where threads are limited.
            waiting, cpu_s = worker.waiting() if case.threads else None, worker.cpu_s()
            seconds, answers[side] = self.learner.call(inputs)
            case.learner_s.append(seconds)
            case.cpu_s += worker.cpu_s() - cpu_s
            if waiting:
                case.waited_s += waiting.seconds_within(seconds)
                case.computing.append(waiting.computing())
        if case.idle and len(case.moved_s) < MOVED_PAIRS:
            case.moved_s.append(self.reference.call(list(self.judge.idle(inputs)))[0])
        self.check(case.name, inputs, answers["learner"], answers["reference"])
        if self.context.settings.standards is not None:
            self._timed.append(TimedCall(inputs, answers["learner"], answers["reference"]))

    def untimed(self) -> Generator[UntimedCall, None, None]:
        """Draw calls that are not timed, without end: each while the workers compute the one
        before.
        """
        with ThreadPoolExecutor(1) as beside:
            ahead = beside.submit(self._draw_untimed)
            while True:
                call = ahead.result()
                ahead = beside.submit(self._draw_untimed)
                yield call

    def _draw_untimed(self) -> UntimedCall:
        case = self.context.rng.choice(self.names)
        return UntimedCall(case, self.inputs(case, timed=False))

    def judge_untimed(self, call: UntimedCall) -> None:
        """Call the learner for nothing but the answer, and judge that, by the lab's quick reference
        if it has one. Both compute at the same time.
        """
        case, inputs = call
        if self.standards is None:
            answer, reference = self._answers(self.reference, inputs, inputs)
        else:
            answer, reference = self._answers(self.standards, [*inputs, QUICK], inputs)
        self.check(case, inputs, answer, reference)
        self.untimed_answers += 1

    def refuse_overall(self) -> None:
        """Raise LearnerFault for what only all answers together show, where the judge looks at
        them so. Those that it holds against the standards are timed ones, drawn in secret: in these
        it would pay to compute less precisely.
        """
        if self.standards is not None:
            compared = min(self.context.settings.compared, len(self._timed))
            for one in self.context.rng.sample(self._timed, compared):
                ways = self.standards.call([*one.inputs, WAYS])[1]
                self.judge.compare(one.answer, one.reference, ways)
        overall = getattr(self.judge, "overall", lambda _settings: None)
        if wrong := overall(self.context.settings.judge):
            raise LearnerFault("wrong output", wrong)

    def load_standards(self, standards: CallSession) -> None:
        """Let the worker that runs the lab's standards load them; from then on untimed answers are
        judged by its quick ones. Raises LabError unless those to the warm-up's inputs are the
        shipped code's, but for rounding.
        """
        standards.release()
        standards.wait_ready()
        self.standards = standards
        for inputs, shipped in self._warm:
            quick = standards.call([*inputs, QUICK])[1]
            apart = self.judge.disagreement(quick[0], shipped[0])
            if apart <= ROUNDING:
                continue
            raise LabError(
                f"The lab's quick reference is {apart:.2g} away from the shipped code, more than"
                f" the {ROUNDING:.2g} that rounding explains.",
                "The lab's author must correct its standards file: untimed answers are judged by"
                " it.",
            )

    def adversarial(self) -> int:
        """Judge the answers to the untimed inputs that the judge holds in store. Returns how many.
        Raises LearnerFault on a wrong answer.
        """
        if not hasattr(self.judge, "adversarial"):
            return 0
        # Inputs on which shortcuts fail: awkward lengths, zeros, one call asked twice.
        hard = self.judge.adversarial(self.generator, self.context.settings.judge)
        for case, inputs in hard:
            answer, reference = self._answers(self.reference, list(inputs), list(inputs))
            self.check(case, list(inputs), answer, reference)
        return len(hard)

    def reference_alone_s(self, *, warm: bool) -> dict[str, list[float]]:
        """Return seconds of calls by the reference, a few of each case, while there is nobody to
        take turns with. Unless `warm`, it meets each case's shapes first.
        """
        seconds = {}
        for case in self.names:
            # Two inputs by turns: the reference has no use for knowing one again.
            inputs = [self.inputs(case) for _ in range(2)]
            for call in range(0 if warm else self.context.settings.warmup_calls):
                self.reference.call(inputs[call % 2])
            seconds[case] = [self.reference.call(inputs[call % 2])[0] for call in range(FAR_PAIRS)]
        return seconds

    def overhead_s(self, inputs: list[Value]) -> float:
        """Return the seconds that the protocol takes for inputs and answers of this size, with
        nothing computed.
        """
        # The trusted side measures it, and the median of five: one echo may meet another program.
        return median(self.reference.echo(inputs) for _ in range(5))
