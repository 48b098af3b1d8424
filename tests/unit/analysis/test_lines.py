"""Which line is to blame, and what it would bring."""

from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab import query, summarise
from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.lines import _longest_function
from bottleneck_lab.trace.names import LINES_OF

from .traces import load_events

PID, MAIN, T0 = 7, 8, 1_000_000.0


def event(cat, name, start, dur, tid=MAIN, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": PID,
        "tid": tid,
        "ts": T0 + start,
        "dur": dur,
        "args": args,
    }


def line(name, start, dur):
    return event("python_function", name, start, dur, tid=f"{LINES_OF}{MAIN}")


@pytest.fixture
def summary(tmp_path):
    def read(events):
        return summarise(load_events(tmp_path, events))

    return read


def a_loop(calls: int, us: float, rest_us: float) -> list[dict]:
    """Two steps, each of one large matrix product, a loop of `calls` small products on line 7, and
    their backward on line 20.
    """
    events, at = [], 0.0
    for step in range(2):
        begin = at
        events += [
            line("train.py(18): main", at, rest_us),
            event("cpu_op", "aten::mm", at + 1, rest_us - 2),
        ]
        at += rest_us
        for _ in range(calls):
            events += [
                line("train.py(7): loop", at, us),
                event("cpu_op", "aten::mul", at + 1, us - 2),
            ]
            at += us
        events.append(line("train.py(20): main", at, calls * us / 2))
        for _ in range(calls):
            events.append(
                event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", at, us / 2 - 1)
            )
            at += us / 2
        events.append(event("user_annotation", f"step {step}", begin, at - begin))
    return events


def test_a_loop_of_small_operators_is_found_by_its_line_with_its_backward(summary):
    """Every call takes 30 us, so that no threshold of smallness sees it: 200 of them and their
    backward are 9 of 10 ms.
    """
    found = summary(a_loop(calls=200, us=30.0, rest_us=1_000.0))
    rows = {row.line: row for row in found.lines}
    loop = rows["train.py(7): loop"]
    assert (loop.exact, loop.operators, loop.host_ns) == (True, 400, 2 * 200 * 30_000)
    assert loop.operator_ns == 400 * 28_000
    assert loop.backward_ns == 400 * 14_000
    assert rows["train.py(20): main"].operators == 0
    (finding,) = found.findings
    assert finding.id == "many-calls"
    assert "train.py(7): loop calls 200 operators per step" in finding.evidence
    share = (400 * 30_000 + 400 * 14_000) / found.wall_ns
    assert finding.share_of_wall == pytest.approx(share)
    assert finding.expected_gain_ratio == 0, "what stays of it in fewer calls is not recorded"
    assert not finding.at_most


@pytest.mark.parametrize(("calls", "us"), [(20, 300.0), (40, 30.0)])
def test_few_calls_or_long_ones_are_no_loop_to_be_replaced(summary, calls, us):
    found = summary(a_loop(calls=calls, us=us, rest_us=1_000.0)).findings
    assert "many-calls" not in {finding.id for finding in found}


def test_a_frame_that_was_open_all_along_has_no_line(summary):
    """Its line is where the profiler began, which cost nothing."""
    frames = [
        event("python_function", "train.py(57): main", 0, 1000),
        event("python_function", "train.py(12): forward", 100, 600),
    ]
    found = summary(
        [*frames, event("cpu_op", "aten::mm", 110, 500), event("cpu_op", "aten::mm", 900, 50)]
    )
    assert {row.line: row.host_ns for row in found.lines} == {
        "train.py: main": 400_000,
        "train.py(12): forward": 600_000,
    }
    assert not any(row.exact for row in found.lines)


def test_a_thread_that_only_sleeps_has_no_functions(summary):
    """A progress bar's monitor waits beside the steps for all of their time."""
    frames = [
        event("python_function", "train.py(12): forward", 0, 600),
        event("python_function", "tqdm/_monitor.py(60): run", 0, 900, tid=99),
        event("cpu_op", "aten::mm", 10, 500),
    ]
    assert [row.line for row in summary(frames).lines] == ["train.py: forward"]


def test_time_outside_the_steps_is_no_line_s(summary):
    events = [
        line("train.py(3): load", 0, 5_000),
        *[{**e, "ts": e["ts"] + 5_000} for e in a_loop(100, 10.0, 500.0)],
    ]
    assert "train.py(3): load" not in {row.line for row in summary(events).lines}


def test_a_query_has_the_line_of_each_call(tmp_path):
    rows = [
        event("cuda_runtime", "cudaStreamSynchronize", 10, 5, correlation=1),
        event("cuda_runtime", "cudaStreamSynchronize", 30, 5, correlation=2),
        line("train.py(31): train", 8, 10),
    ]
    answer = query(load_events(tmp_path, rows), "SELECT line, duration FROM runtime ORDER BY start")
    assert answer.rows == [["train.py(31): train", 5000], ["", 5000]]


def test_a_line_is_not_blamed_for_time_in_which_no_line_was_recorded(summary):
    """The device is idle for 4 ms a step; the only line ran before that, while it worked."""
    events = []
    for step in range(4):
        at = 5_000.0 * step
        events += [
            line("train.py(40): main", at, 900),
            event("cpu_op", "aten::mm", at, 20),
            event("cuda_runtime", "cudaLaunchKernel", at + 1, 5, correlation=step + 1),
            event("kernel", "gemm", at + 10, 990, 0, device=0, stream=7, correlation=step + 1),
            event("user_annotation", f"step {step}", at, 5_000),
        ]
    (stalls,) = (each for each in summary(events).findings if each.id == "host-stalls")
    assert "train.py" not in stalls.evidence
    assert "No line of the program was recorded in that time" in stalls.evidence


@pytest.mark.parametrize("backward_thread", [MAIN, 99])
def test_device_time_of_the_backward_is_on_the_line_that_calls_it(tmp_path, backward_thread):
    """The operators of autograd's engine stand above those that launch; on a GPU they have a thread
    of their own. A query on the calls' lines has the same figures.
    """
    engine = "autograd::engine::evaluate_function: MmBackward0"
    rows = [
        line("train.py(19): forward", 0, 100),
        event("cpu_op", "aten::mm", 10, 20),
        event("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=1),
        event("kernel", "gemm", 30, 100, 0, device=0, stream=7, correlation=1),
        line("train.py(45): main", 100, 100),
        event("cpu_op", engine, 110, 60, backward_thread),
        event("cpu_op", "aten::mm", 110, 50, backward_thread),
        event("cuda_runtime", "cudaLaunchKernel", 115, 5, backward_thread, correlation=2),
        event("kernel", "gemm", 130, 200, 0, device=0, stream=7, correlation=2),
    ]
    timeline = load_events(tmp_path, rows)
    device_ns = {row.line: row.device_ns for row in summarise(timeline).lines}
    assert device_ns == {"train.py(19): forward": 100_000, "train.py(45): main": 200_000}
    answer = query(
        timeline,
        "SELECT line, SUM(device.duration) FROM device JOIN runtime USING (correlation)"
        " GROUP BY line",
    )
    assert dict(answer.rows) == device_ns


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({36: 14.9, 40: 70.0, 45: 15.1}, "train.py(40): train"),
        ({36: 15.1, 40: 70.0, 45: 14.9}, "train.py(40): train"),
        ({36: 30.0, 38: 25.0, 40: 45.0}, "train.py(36-40): train"),
        (dict.fromkeys(range(1, 11), 10.0), "train.py(1-6): train"),
    ],
)
def test_a_loss_is_in_the_fewest_lines_that_take_most_of_it(times, named):
    timeline = SimpleNamespace(strings=[f"src/train.py({number}): train" for number in times])
    whole = iv.Intervals(np.array([0]), np.array([100]))
    assert _longest_function(timeline, np.array(list(times.values())), whole).endswith(named)
