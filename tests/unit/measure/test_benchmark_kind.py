"""The `benchmark` kind: a trial is a conversation, and the emulated machine's rows are a trace that
says so.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from bottleneck_lab.catalog import CriterionSpec, find_lab
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.channel.messages import Answer, Ask, Ready
from bottleneck_lab.measure.channel.wire import Channel, Closed, TimedOut
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.benchmark import KIND, run, session
from bottleneck_lab.measure.kinds.benchmark.check import grade
from bottleneck_lab.measure.kinds.benchmark.child import serve_trials
from bottleneck_lab.measure.kinds.benchmark.run import _serve, kineto_trace, profile
from bottleneck_lab.measure.kinds.benchmark.session import TrialSession
from bottleneck_lab.measure.kinds.benchmark.trials import Counted, Open
from bottleneck_lab.trace import load
from bottleneck_lab.trace.names import MODELLED_HOST

HARNESS = "def run(entry, ask, name):\n    return entry.twice(ask, name)\n"
ENTRY = (
    "def twice(ask, name):\n    (first,), (second,) = ask(name, 1), ask(name, 2)\n    return first,"
    " second\n"
)


class Echo:
    """A trial whose machine returns what it was asked, times ten."""

    name, arguments, late = "one", ("weather",), False

    def __init__(self):
        self.questions, self.answer = [], None

    def serve(self, values):
        self.questions.append(values)
        if values[1] == 3:
            raise ValueError("never three")
        return [10 * values[1]]

    def finish(self, values):
        self.answer = values


@pytest.fixture
def worker(tmp_path):
    """The verifier's end of a channel, at whose other end a worker serves trials."""
    (tmp_path / "harness_of_test.py").write_text(HARNESS)
    (tmp_path / "entry_of_test.py").write_text(ENTRY)
    ours, theirs = Channel.pair()
    arguments = (Channel(theirs), tmp_path / "entry_of_test.py", tmp_path / "harness_of_test.py")

    def serve():
        with pytest.raises(Closed):
            serve_trials(*arguments)

    thread = threading.Thread(target=serve)
    thread.start()
    yield Channel(ours)
    ours.close()
    thread.join()
    theirs.close()


def test_the_learners_code_asks_and_is_told(worker):
    trials, shown = [Echo(), Echo()], []
    _serve(worker, trials, shown.append)
    assert shown == trials
    assert all(
        trial.questions == [["weather", 1], ["weather", 2]] and trial.answer == [10, 20]
        for trial in trials
    )


class Deaf(TrialSession):
    """A session without a process, that is told what its worker sends."""

    _loading = True

    def __init__(self, *messages):
        self.role, self.messages, self.sent = "learner", list(messages), []
        self.worker = type("Worker", (), {"limits": type("Limits", (), {"call_s": 1})})
        self.channel = type("Ends", (), {"send": lambda _, *message: self.sent.append(message)})()

    def receive(self, timeout_s, doing):
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message


def test_many_questions_may_take_longer_than_one_answer_but_not_for_ever(monkeypatch):
    clock, waited = iter([0.0, 0.2, 5.0, 9.75]), []
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    class Timed(Deaf):
        def receive(self, timeout_s, doing):
            waited.append(timeout_s)
            return super().receive(timeout_s, doing)

    Timed(*(Ask(["weather", 1]) for _ in range(2)), Answer([10])).run(Echo())
    assert waited == [1, 1, 0.25]


def test_a_question_that_no_harness_asks_is_tampering():
    with pytest.raises(LearnerFault, match="never three") as caught:
        Deaf(Ask(["weather", 3])).run(Echo())
    assert caught.value.reason == "tampered"


def test_another_message_than_a_question_or_an_answer_is_tampering():
    with pytest.raises(LearnerFault, match="Ready arrived instead of Ask"):
        Deaf(Ready()).run(Echo())


@pytest.mark.parametrize(
    ("error", "reason"), [(TimedOut("nobody reads"), "timed out"), (Closed("gone"), "crashed")]
)
def test_a_worker_that_does_not_read_or_is_gone_is_the_learners(error, reason):
    def send(_self, _message):
        raise error

    deaf = Deaf()
    deaf._relay = None
    deaf.channel = type("Ends", (), {"send": send})()
    deaf.closed = lambda doing: LearnerFault("crashed", doing)
    with pytest.raises(LearnerFault) as caught:
        deaf.run(Echo())
    assert caught.value.reason == reason


@pytest.mark.parametrize("late", [True, False])
def test_an_exception_is_no_crash_when_the_machines_time_was_up(late):
    trial = Echo()
    trial.late = late
    deaf = Deaf(LearnerFault("crashed", "OutOfTimeError"))
    if late:
        deaf.run(trial)
        assert trial.answer is None
    else:
        with pytest.raises(LearnerFault):
            deaf.run(trial)


def test_the_emulated_machines_rows_are_a_trace_that_says_so(tmp_path):
    rows = [
        ("call", True, 0.0, 1e-6),
        ("function", False, 2e-6, 5e-6),
        ("synchronize", True, 1e-6, 6e-6),
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(kineto_trace(rows)).encode()))
    timeline = load(path)
    assert timeline.emulated
    assert MODELLED_HOST in timeline.facts, "every time of this machine is modelled"
    assert timeline.device.start.size == 1
    assert {timeline.strings[i] for i in timeline.runtime.name.tolist()} == {
        "cudaDeviceSynchronize"
    }


def test_an_outside_profiler_sees_the_learners_benchmark_on_the_gpu():
    lab = find_lab("timing-pitfalls")
    assert KIND.program(lab, "cuda", "nsys")[-3:] == ("stopwatch.py", "--device", "cuda")
    assert KIND.program(lab, "virtual")[-1] == "stopwatch.py"


def test_measuring_code_never_sees_the_gpu_that_it_measures(monkeypatch, tmp_path):
    given, end = {}, SimpleNamespace(socket=SimpleNamespace(fileno=lambda: 9))

    def start(*_, gpu):
        given["gpu"] = gpu
        raise LearnerFault("crashed", "no further")

    monkeypatch.setattr(session, "start_worker", start)
    monkeypatch.setattr(session, "Channel", SimpleNamespace(pair=lambda: (end, end.socket)))
    lab = find_lab("perf-gate")
    context = SimpleNamespace(submission=tmp_path, lab=lab, settings=KIND.settings(lab, "cuda"))
    with pytest.raises(LearnerFault, match="no further"):
        TrialSession.start(context)
    assert given == {"gpu": False}


ALARMS = CriterionSpec("alarms", "correctness", "At most {target} alarms", 0.01, "at_most", "share")


COUNTS = "calls = []\ndef twice(ask, name):\n    calls.append(name)\n    return len(calls)\n"


@pytest.mark.parametrize(("options", "counts"), [((), [1, 2]), (("--own-process",), [1, 1])])
def test_a_trial_in_its_own_process_keeps_nothing_in_memory(tmp_path, options, counts):
    (tmp_path / "harness_of_test.py").write_text(HARNESS)
    (tmp_path / "entry_of_test.py").write_text(COUNTS)
    ours, theirs = Channel.pair()
    command = [sys.executable, "-I", "-m", session.PROGRAM, "--socket", str(theirs.fileno())]
    command += ["--entry", tmp_path / "entry_of_test.py"]
    command += ["--harness", tmp_path / "harness_of_test.py", *options]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        trials = [Echo(), Echo()]
        _serve(Channel(ours), trials, lambda _: None)
    assert process.returncode == 0
    assert [trial.answer for trial in trials] == [[count] for count in counts]


def test_a_trial_that_raises_in_its_own_process_ends_the_worker(tmp_path):
    (tmp_path / "harness_of_test.py").write_text(HARNESS)
    (tmp_path / "entry_of_test.py").write_text("def twice(ask, name):\n    return 1 / 0\n")
    ours, theirs = Channel.pair()
    command = [sys.executable, "-I", "-m", session.PROGRAM, "--socket", str(theirs.fileno())]
    command += ["--entry", tmp_path / "entry_of_test.py", "--own-process"]
    command += ["--harness", tmp_path / "harness_of_test.py"]
    with subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
    ) as process:
        theirs.close()
        _serve(Channel(ours), [Echo()], lambda _: None)
        printed = process.stderr.read()
    assert process.returncode == 70
    assert "entry_of_test.py" in printed
    assert "bottleneck_lab" not in printed, "frames of the checker explain nothing to a learner"


def test_what_may_be_chance_stays_undecided():
    result = grade(ALARMS, (Open("3 of 100."), 100, 0.03))
    assert (result.holds, result.value) == (None, 0.03)
    assert result.sentence == "At most 1% alarms: undecided. 3 of 100."
    assert grade(ALARMS, ("9 of 100.", 100, 0.09)).holds is False


def test_a_count_stands_beside_what_it_decides():
    seen = grade(ALARMS, (None, 144, Counted(1, 144, "jobs", note="1 in 100 has up to 6")))
    assert seen.counted == "1 of 144 jobs (0.694%); 1 in 100 has up to 6"
    assert seen.sentence == f"At most 1% alarms: yes. {seen.counted}."
    assert (seen.holds, seen.value) == (True, pytest.approx(1 / 144))
    assert "counted" not in json.loads(msgspec.json.encode(grade(ALARMS, (None, 144, 0.01))))
    assert Counted(9996, 10000, against=1.0).words == "9,996 of 10,000 (99.96%)"


def test_a_run_ends_with_a_summary_of_all_trials(monkeypatch):
    judge = SimpleNamespace(
        practice=lambda _: [1, 2],
        practice_line=lambda trial: f"trial {trial}",
        practice_summary=lambda done, settings: f"{len(done)} trials, {settings}",
    )
    context = SimpleNamespace(
        judge=lambda: judge, device="virtual", settings=SimpleNamespace(judge="as set")
    )

    def play(_context, trials, show, _on_line, status=0):
        for trial in trials:
            show(trial)
        return status

    printed = []
    monkeypatch.setattr(run, "_play", play)
    assert run.run(context, printed.append) == 0
    assert printed == ["trial 1\n", "trial 2\n", "\n2 trials, as set\n"]
    monkeypatch.setattr(run, "_play", partial(play, status=1))
    assert run.run(context, printed.append) == 1
    assert printed[-1] == "trial 2\n", "a run that fails shows its error last"


@pytest.mark.parametrize("late", [True, False])
def test_a_run_that_ran_out_of_time_names_the_trial_in_place_of_a_traceback(monkeypatch, late):
    judge = SimpleNamespace(
        practice=lambda _: [SimpleNamespace(late=late)],
        practice_line=lambda trial: "ragged used the machine for 2.01 s",
    )
    context = SimpleNamespace(
        judge=lambda: judge, device="virtual", settings=SimpleNamespace(judge={})
    )

    def play(_context, trials, _show, on_line):
        next(iter(trials))
        for line in ("my own print\n", "Traceback (most recent call last):\n", "Error\n"):
            on_line(line)
        return 70

    printed = []
    monkeypatch.setattr(run, "_play", play)
    assert run.run(context, printed.append) == 70
    assert printed[0] == "my own print\n"
    assert printed[-1] == ("ragged used the machine for 2.01 s\n" if late else "Error\n")
    assert ("Error\n" in printed) is not late


def test_a_capture_is_of_the_emulated_machine_alone(tmp_path):
    lab = find_lab("perf-gate")
    with pytest.raises(UsageError, match="emulated machine"):
        profile(SimpleNamespace(device="cpu", lab=lab), tmp_path / "trace", print)


def test_a_setting_that_there_is_not_is_named():
    lab = find_lab("timing-pitfalls")
    device = lab.spec.devices["virtual"]
    wrong = msgspec.structs.replace(device, settings=device.settings | {"speed": 3})
    lab = msgspec.structs.replace(
        lab, spec=msgspec.structs.replace(lab.spec, devices={"virtual": wrong})
    )
    with pytest.raises(LabError, match="speed"):
        KIND.settings(lab, "virtual")
