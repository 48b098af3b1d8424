"""A backward counts to the lines of the forward that it undoes. Every case is made up, with what
each line launches beside it, before and after.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from bottleneck_lab import load, query, summarise
from bottleneck_lab.analysis.questions import ask
from bottleneck_lab.trace.names import LINES_OF

MAIN, ENGINE, OTHER = 8, 9, 10
ENGINE_CALL = "autograd::engine::evaluate_function: "
BACKWARD = "train.py(50): main"


class Program:
    """Rows of a made-up training step: every operator takes 10 us and launches its kernel."""

    def __init__(self, *, functions: bool = False, pid: int = 7, device: int = 0) -> None:
        self.rows, self.at, self.launches = [], 0.0, 1000 * device
        self.functions, self.pid, self.device = functions, pid, device

    def row(self, category: str, name: str, start: float, dur: float, tid, **args) -> None:
        fields = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": tid}
        self.rows.append({**fields, "ts": 1e6 + start, "dur": dur, "args": args})

    def line(self, name: str, start: float, end: float, tid=MAIN) -> None:
        track = tid if self.functions else f"{LINES_OF}{tid}"
        self.row("python_function", name, start, end - start, track)

    @contextmanager
    def on_line(self, name: str, tid=MAIN) -> Iterator[None]:
        """Have a line call all that the block adds."""
        begin = self.at
        yield
        self.line(name, begin, self.at, tid)

    def operator(self, name: str, sequence: int, kernel_us: float, tid=MAIN, forward: int = 0):
        """Take 10 us for an operator, which launches a kernel of its own in its middle."""
        self.launches += 1
        numbers = {"Sequence number": sequence, "Fwd thread id": forward} if sequence >= 0 else {}
        self.row("cpu_op", name, self.at, 10, tid, **{"External id": self.launches}, **numbers)
        self.row("cuda_runtime", "cudaLaunchKernel", self.at + 4, 2, tid, correlation=self.launches)
        where = {"device": self.device, "stream": 7, "correlation": self.launches}
        self.row("kernel", "k", self.at + 6, kernel_us, 7, **where)
        self.at += 12

    def node(self, name: str, sequence: int, kernel_us: float, tid=ENGINE, forward: int = 1):
        self.operator(f"{ENGINE_CALL}{name}", sequence, kernel_us, tid, forward)

    def lines(self, tmp_path, name: str = "x.json"):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": self.rows}))
        return summarise(load(path))


def device_us(summary) -> dict[str, tuple[float, float]]:
    """What each line launched, and what of that its backward did, us."""
    return {row.line: (row.device_ns / 1e3, row.backward_device_ns / 1e3) for row in summary.lines}


def forward_of_two_lines(program: Program, first: int = 20, tid=MAIN) -> None:
    """Line 31 makes node `first` (3 us), and line 32 the next (5 us); an operator without a node
    has the number of the one that comes after it.
    """
    with program.on_line("model.py(31): forward", tid):
        program.operator("aten::mul", first, 3, tid)
        program.operator("aten::ones_like", first + 1, 1, tid)
    with program.on_line("model.py(32): forward", tid):
        program.operator("aten::mm", first + 1, 5, tid)


def backward_of_both(program: Program, first: int = 20, tid=ENGINE, forward: int = 1) -> None:
    with program.on_line(BACKWARD):
        program.node("MmBackward0", first + 1, 7, tid, forward)
        program.node("MulBackward0", first, 9, tid, forward)
        program.operator(f"{ENGINE_CALL}torch::autograd::AccumulateGrad", -1, 2, tid)


@pytest.mark.parametrize("engine", [ENGINE, MAIN])
def test_a_backward_counts_to_the_lines_that_made_its_nodes(tmp_path, engine):
    program = Program()
    forward_of_two_lines(program)
    backward_of_both(program, tid=engine)
    summary = program.lines(tmp_path)
    assert device_us(summary) == {
        "model.py(31): forward": (3 + 1 + 9, 9),
        "model.py(32): forward": (5 + 7, 7),
        BACKWARD: (2, 0),  # no operator made what accumulates gradients
    }
    host_us = {row.line: row.backward_ns / 1e3 for row in summary.lines}
    assert host_us == {"model.py(31): forward": 10, "model.py(32): forward": 10, BACKWARD: 0}


def test_functions_have_their_backward_too(tmp_path):
    """torch.profiler's own frames, of which a thread of the backward has none."""
    program = Program(functions=True)
    program.line("train.py(1): main", 0, 500)
    forward_of_two_lines(program)
    backward_of_both(program)
    assert device_us(program.lines(tmp_path)) == {
        "model.py(31): forward": (3 + 1 + 9, 9),
        "model.py(32): forward": (5 + 7, 7),
        "train.py: main": (0, 0),
        BACKWARD: (0, 0),
    }


def test_what_was_not_recorded_stays_on_the_line_that_calls_the_backward(tmp_path):
    """The forward of node 20 was before the recording; node 21 has no numbers at all."""
    program = Program()
    with program.on_line("model.py(32): forward"):
        program.operator("aten::mm", 22, 5)
    with program.on_line(BACKWARD):
        program.node("MmBackward0", 22, 7)
        program.node("MulBackward0", 20, 9)
        program.operator(f"{ENGINE_CALL}AddBackward0", -1, 11, ENGINE)
    assert device_us(program.lines(tmp_path)) == {
        "model.py(32): forward": (5 + 7, 7),
        BACKWARD: (9 + 11, 0),
    }


def test_a_capture_without_frames_has_no_lines(tmp_path):
    program = Program()
    forward_of_two_lines(program)
    backward_of_both(program)
    program.rows = [row for row in program.rows if row["cat"] != "python_function"]
    assert program.lines(tmp_path).lines == []


def test_the_gradient_of_a_gradient_counts_to_the_first_forward(tmp_path):
    """The first backward makes node 3 of its own thread, which the second backward undoes."""
    program = Program()
    forward_of_two_lines(program)
    begin = program.at
    node, launch = program.at, len(program.rows)
    program.operator("aten::mul", 3, 4, ENGINE)  # inside the node, with a node of its own
    program.at += 4
    program.launches += 1
    numbers = {"Sequence number": 20, "Fwd thread id": 1, "External id": program.launches}
    row = (f"{ENGINE_CALL}MulBackward0", node - 1, program.at - node + 2, ENGINE)
    program.row("cpu_op", *row, **numbers)
    program.rows.insert(launch, program.rows.pop())
    program.at += 4
    program.line("train.py(45): penalty", begin - 1, program.at)
    with program.on_line(BACKWARD):
        program.node("MulBackward0", 3, 6, forward=2)
    assert device_us(program.lines(tmp_path)) == {
        "model.py(31): forward": (3 + 1 + 4 + 6, 4 + 6),
        "model.py(32): forward": (5, 0),
        "train.py(45): penalty": (0, 0),
        BACKWARD: (0, 0),
    }


@pytest.mark.parametrize("engine", [ENGINE, MAIN])
def test_a_checkpoint_s_second_forward(tmp_path, engine):
    """Inside the checkpoint's node the forward runs again, on the engine's thread where no lines
    are recorded, or on the main one with its own; then its own backward runs.
    """
    program = Program()
    with program.on_line("model.py(60): forward"):
        program.operator("CheckpointFunction", 20, 3)
    begin, launch = program.at, len(program.rows)
    program.at += 12
    again = program.at
    second = 40 if engine == MAIN else 5  # every thread counts its own
    program.operator("aten::mm", second, 5, engine)
    ended = program.at
    program.node("MmBackward0", second, 7, engine, 1 if engine == MAIN else 2)
    program.launches += 1
    numbers = {"Sequence number": 20, "Fwd thread id": 1, "External id": program.launches}
    name = f"{ENGINE_CALL}CheckpointFunctionBackward"
    program.row("cpu_op", name, begin, program.at - begin, engine, **numbers)
    program.rows.insert(launch, program.rows.pop())
    program.at += 2
    if engine == MAIN:
        program.line(BACKWARD, begin - 1, again - 1)
        program.line("model.py(31): block", again - 1, ended)
        program.line(BACKWARD, ended, program.at)
    else:
        program.line(BACKWARD, begin - 1, program.at)
    expected = {
        MAIN: {
            "model.py(60): forward": (3, 0),
            "model.py(31): block": (5 + 7, 7),
            BACKWARD: (0, 0),
        },
        ENGINE: {"model.py(60): forward": (3 + 5 + 7, 5 + 7), BACKWARD: (0, 0)},
    }
    assert device_us(program.lines(tmp_path)) == expected[engine]


@pytest.mark.parametrize("functions", [False, True])
def test_a_second_forward_is_no_time_of_the_backward_that_needs_it(tmp_path, functions):
    """A node of 30 us runs line 31 again for 10 of them, which the line has already."""
    program, line = Program(functions=functions), "model.py(31): forward"
    with program.on_line("train.py(1): main") if functions else nullcontext():
        with program.on_line(line):
            program.operator("aten::mm", 20, 5)
        begin, numbers = program.at, {"Sequence number": 20, "Fwd thread id": 1, "External id": 90}
        program.row("cpu_op", f"{ENGINE_CALL}MmBackward0", begin + 2, 30, MAIN, **numbers)
        parts = [(BACKWARD, 0, 10), (line, 10, 20), (BACKWARD, 20, 40)]
        if functions:
            parts = [(BACKWARD, 0, 40), (line, 10, 20)]
        for name, start, end in parts:
            program.line(name, begin + start, begin + end)
        program.at += 40
    rows = {row.line: row for row in program.lines(tmp_path).lines}
    assert (rows[line].host_ns, rows[line].backward_ns) == (22_000, 20_000)


def test_threads_number_their_nodes_alike(tmp_path):
    """Two threads each make nodes 20 and 21, of different lines, which one engine undoes."""
    program = Program()
    with program.on_line("critic.py(5): forward", OTHER):
        program.operator("aten::relu", 20, 2, OTHER)
        program.operator("aten::add", 21, 4, OTHER)
    forward_of_two_lines(program)
    with program.on_line(BACKWARD):
        program.node("AddBackward0", 21, 8, forward=2)
        program.node("ReluBackward0", 20, 16, forward=2)
    backward_of_both(program)
    counted = device_us(program.lines(tmp_path))
    assert counted["critic.py(5): forward"] == (2 + 4 + 8 + 16, 8 + 16)
    assert counted["model.py(31): forward"] == (3 + 1 + 9, 9)
    assert counted["model.py(32): forward"] == (5 + 7, 7)


def test_numbers_that_start_again_are_those_of_the_latest_forward(tmp_path):
    """Node 20 of the second step is made on line 33, with the number of line 31's in the first."""
    program = Program()
    forward_of_two_lines(program)
    backward_of_both(program)
    with program.on_line("model.py(33): forward"):
        program.operator("aten::mul", 20, 30)
    with program.on_line("train.py(51): main"):
        program.node("MulBackward0", 20, 50)
    counted = device_us(program.lines(tmp_path))
    assert counted["model.py(31): forward"] == (3 + 1 + 9, 9)
    assert counted["model.py(33): forward"] == (30 + 50, 50)


def test_two_processes_in_one_file_have_numbers_of_their_own(tmp_path):
    first, second = Program(), Program(pid=70, device=1)
    second.launches = 0  # External ids, too, start again
    for program in (first, second):
        program.row("user_annotation", "ProfilerStep#1", 0, 200, MAIN)
    forward_of_two_lines(first)
    backward_of_both(first)
    with second.on_line("model.py(41): forward"):
        second.operator("aten::mul", 20, 11)
    with second.on_line(BACKWARD):
        second.node("MulBackward0", 20, 13)
    first.rows += second.rows
    rows = {(row.rank, row.line): row for row in first.lines(tmp_path).lines}
    assert rows[0, "model.py(31): forward"].backward_device_ns == 9000
    assert rows[1, "model.py(41): forward"].device_ns == (11 + 13) * 1000
    assert rows[1, BACKWARD].device_ns == 0


def test_a_compiled_graph_counts_to_the_line_that_calls_it(tmp_path):
    program = Program()
    with program.on_line("train.py(30): main"):
        program.operator("CompiledFunction", 20, 40)
    with program.on_line(BACKWARD):
        program.node("CompiledFunctionBackward", 20, 80)
    assert device_us(program.lines(tmp_path)) == {
        "train.py(30): main": (40 + 80, 80),
        BACKWARD: (0, 0),
    }


def test_a_query_and_a_question_have_the_line_that_a_call_undoes(tmp_path):
    program = Program()
    forward_of_two_lines(program)
    backward_of_both(program)
    # A wait has the number of what it waits for.
    wait, at = "cudaStreamSynchronize", program.at + 100
    program.row("cuda_runtime", wait, at, 2, MAIN, correlation=program.launches)
    program.lines(tmp_path)
    timeline = load(tmp_path / "x.json")
    sql = "SELECT line, undoes FROM runtime WHERE name LIKE '%Launch%' ORDER BY start DESC LIMIT 3"
    calls = query(timeline, sql).rows
    assert calls == [
        [BACKWARD, ""],
        [BACKWARD, "model.py(31): forward"],
        [BACKWARD, "model.py(32): forward"],
    ]
    answer = ask(timeline, "lines")
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert {row["name"]: (row["device_ms"], row["backward_ms"] or 0) for row in rows} == {
        "model.py(31): forward": pytest.approx((0.013, 0.009)),
        "model.py(32): forward": pytest.approx((0.012, 0.007)),
        BACKWARD: pytest.approx((0.002, 0)),
    }


def test_a_finding_names_the_lines_whose_backward_launches_late(tmp_path):
    """Per step, line 31's backward runs for 30 nodes of 12 us, of which the device works for 3."""
    program = Program()
    for step in range(4):
        begin = program.at
        with program.on_line("model.py(31): forward"):
            for number in range(30):
                program.operator("aten::mul", 100 * step + number, 11)
        with program.on_line(BACKWARD):
            for number in reversed(range(30)):
                program.node("MulBackward0", 100 * step + number, 3)
        program.row("user_annotation", f"ProfilerStep#{step}", begin, program.at - begin, MAIN)
    finding = next(row for row in program.lines(tmp_path).findings if row.id == "launch-bound")
    expected = f" Most of that is in {BACKWARD}, mostly in the backward of model.py(31): forward."
    assert expected in finding.evidence
