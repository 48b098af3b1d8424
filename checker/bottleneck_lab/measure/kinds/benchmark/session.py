"""The verifier's end of the child: one trial is a conversation with the learner's code."""

from __future__ import annotations

import time
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Ready, Reply
from bottleneck_lab.measure.channel.session import Session, limits_of, start_worker
from bottleneck_lab.measure.channel.wire import Channel, Closed, Malformed, TimedOut
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.trials import Trial
from bottleneck_lab.programs import as_options

PROGRAM = "bottleneck_lab.measure.kinds.benchmark.child"
LONGEST_TRIAL = 10.0
"""A trial may take this many times as long as code may take between two questions: tens of
thousands of questions are right, and take long where other programs keep the cores busy.
"""


def child_options(context: Context[BenchmarkSettings], folder: Path, fd: int) -> list[str]:
    """Return the options of a child on the code in `folder`, whose end of the channel is `fd`."""
    files = {"--entry": context.lab.spec.entry, "--harness": context.settings.harness}
    options = as_options({name: folder / file for name, file in files.items()})
    own = ["--own-process"] if context.settings.own_process else []
    return [*options, "--socket", str(fd), *own]


class TrialSession(Session):
    """The learner's worker, which may ask the machine anything between the start of a trial and its
    answer.
    """

    @classmethod
    def start(cls, context: Context[BenchmarkSettings]) -> TrialSession:
        """Start the worker and wait until the learner's code is loaded."""
        ours, theirs = Channel.pair()
        folder, limits = context.submission, limits_of(context.settings)
        options = child_options(context, folder, theirs.fileno())
        # Measuring code never sees the GPU that it measures: it could ask its timers.
        worker = start_worker(
            context, PROGRAM, options, folder, limits, [theirs.fileno()], gpu=False
        )
        theirs.close()
        session = cls("learner", worker, Channel(ours), clock=context.clock)
        try:
            session.expect(Ready, limits.start_s, "starting up")
        except BaseException:
            session.close()
            raise
        session.channel.limit_sends(limits.call_s)
        return session

    def run(self, trial: Trial) -> None:
        """Run one trial from start to answer. Raises LearnerFault, except for code that ran out of
        the machine's time.
        """
        call_s, doing = self.worker.limits.call_s, trial.name
        deadline = time.monotonic() + LONGEST_TRIAL * call_s
        self._send(Call(list(trial.arguments)), doing)
        while True:
            try:
                message = self.receive(min(call_s, max(0.0, deadline - time.monotonic())), doing)
            except LearnerFault as fault:
                if fault.reason == "crashed" and trial.late:
                    return
                raise
            if isinstance(message, Answer):
                trial.finish(message.outputs)
                return
            question = self.require(message, Ask, doing).question
            try:
                answer = list(trial.serve(question))
            except (ValueError, Malformed) as error:
                raise self.fault(
                    "tampered",
                    f"{trial.name}: the machine received a question that the harness never asks"
                    f" ({error}).",
                ) from None
            self._send(Reply(answer), doing)

    def _send(self, message: Call | Reply, doing: str) -> None:
        try:
            self.channel.send(message)
        except TimedOut:
            raise self.fault(
                "timed out", f"{doing}: your code did not read the machine's answer."
            ) from None
        except Closed:
            raise self.closed(doing) from None
