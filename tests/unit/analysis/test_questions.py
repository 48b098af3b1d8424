"""Ready questions, and what they are asked of: graphs by node, start-up, tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bottleneck_lab.analysis.device.graphs import find_graph_nodes
from bottleneck_lab.analysis.host.startup import find_startup
from bottleneck_lab.analysis.query import query
from bottleneck_lab.analysis.questions import QUESTIONS, ask, time_of_allocations
from bottleneck_lab.analysis.selection import figures_within, select
from bottleneck_lab.analysis.steps.figures import find_step_figures
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.summary import analyse, summarise
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.report.breakdown import describe_capture
from bottleneck_lab.report.budget import describe_allocations
from bottleneck_lab.report.capture_words import describe_startup
from bottleneck_lab.report.page.tables import kernels_table
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.trace.names import STEP_NAME

from .traces import load_events

ALL = "all of these"
OTHERS = "on no line, or launched earlier"
ROOT = Path(__file__).parents[3]
DOCS, CAPTURES = ROOT / "docs" / "files.md", ROOT / "datasets" / "captures"


def event(category, name, start, length, tid=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start,
            "dur": length, "args": args}  # fmt: skip


def kernel(name, start, length, correlation, stream=7):
    return event("kernel", name, start, length, stream, device=0, stream=stream,
                 correlation=correlation)  # fmt: skip


@pytest.fixture
def loaded(tmp_path):
    return lambda *events: load_events(tmp_path, list(events))


@pytest.fixture
def replays(loaded):
    """Three replays of a graph of two gemms and a copy on another stream, one of another graph, and
    a kernel that was launched alone.
    """
    events = []
    for replay in range(3):
        begin, number = 1000 * (replay + 1), replay + 1
        events += [
            event("cuda_runtime", "cudaGraphLaunch", begin, 10, correlation=number),
            kernel("gemm", begin + 20, 100 + 10 * replay, number),
            kernel("gemm", begin + 200, 50, number),
            kernel("helper", begin + 30, 20, number, stream=8),
        ]
    events += [
        event("cuda_runtime", "hipGraphLaunch", 5000, 10, correlation=9),
        kernel("norm", 5020, 10, 9),
        event("cuda_runtime", "cudaLaunchKernel", 6000, 10, correlation=10),
        kernel("alone", 6020, 500, 10),
    ]
    return loaded(*events)


def test_every_node_of_a_graph_is_told_over_its_replays(replays):
    nodes = find_graph_nodes(replays)
    first, second, helper, norm = nodes
    assert [node.name for node in nodes] == ["gemm", "gemm", "helper", "norm"]
    assert [(node.graph, node.node, node.replays) for node in nodes] == [
        (1, 1, 3),
        (1, 3, 3),
        (1, 2, 3),
        (2, 1, 1),
    ]
    assert (first.mean_us, first.shortest_us, first.longest_us) == (110, 100, 120)
    assert (helper.stream, norm.stream) == (8, 7)
    assert second.percent == pytest.approx(100 * 150 / 550)
    assert sum(node.percent for node in nodes) == pytest.approx(100)


def test_without_graphs_there_are_no_nodes(timeline_of):
    assert find_graph_nodes(timeline_of("healthy", steps=2)) == []


def test_nodes_can_be_queried(replays):
    result = query(replays, "select name, replays from graph_nodes where graph = 2")
    assert result.rows == [["norm", 1]]
    assert [row[2] for row in ask(replays, "graph-nodes").rows] == [
        "gemm",
        "gemm",
        "helper",
        "norm",
    ]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_question_has_an_answer_in_any_capture(question, timeline_of, loaded):
    for timeline in (timeline_of("healthy", steps=3), loaded(event("cpu_op", "aten::mm", 1, 2))):
        result = ask(timeline, question.name)
        assert result.columns
        assert not result.cut


def test_kernels_are_told_by_their_total_time(replays):
    result = ask(replays, "top-kernels")
    assert result.columns[:3] == ["name", "calls", "total_ms"]
    assert [row[:3] for row in result.rows][:2] == [["alone", 1, 0.5], ["gemm", 6, 0.48]]
    (use,) = summarise(replays).devices
    assert result.rows[0][-1] == pytest.approx(100 * 500_000 / use.working_ns)


def test_a_step_is_shown_part_by_part(loaded):
    timeline = loaded(
        *(
            each
            for number, begin in ((0, 0), (1, 100))
            for each in (
                event("user_annotation", f"ProfilerStep#{number}", begin, 100),
                event("user_annotation", "enumerate(DataLoader)#_Loader.__next__", begin, 10),
                event("cpu_op", "aten::mm", begin + 10, 20),
                event("cuda_runtime", "cudaLaunchKernel", begin + 12, 8,
                      correlation=2 * number + 1),
                kernel("gemm", begin + 30, 30, 2 * number + 1),
                kernel("beside it", begin + 40, 10, 0, stream=8),
                event("cpu_op", "aten::item", begin + 40, 45),
                event("cuda_runtime", "cudaMemcpyAsync", begin + 42, 3, correlation=2 * number + 2),
                event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", begin + 60, 10, 7, device=0,
                      stream=7, bytes=4, correlation=2 * number + 2),
                event("cuda_runtime", "cudaStreamSynchronize", begin + 45, 30),
            )
        )
    )  # fmt: skip
    result = ask(timeline, "step")
    assert result.columns == ["side", "part", "times", "each_us", "ms_a_step"]
    assert result.rows == [
        [
            "host",
            "starting kernels and copies, and Python",
            2.0,  # no call of these steps launched the third
            pytest.approx(30.0),
            pytest.approx(0.06),
        ],
        ["host", "enumerate(DataLoader)#_Loader.__next__", 1.0, 10.0, 0.01],
        ["host", "all but waits", None, None, pytest.approx(0.07)],
        ["host", "waiting for the device", 1.0, 30.0, 0.03],
        ["device", "computing", 2.0, 20.0, 0.04],
        ["device", "copying", 1.0, 10.0, 0.01],
        ["device", "all but idle time", None, None, pytest.approx(0.04)],
        ["device", "idle", 1.5, pytest.approx(40.0), 0.06],
    ]
    (use,) = summarise(timeline).devices
    parts = {row[1]: row[-1] for row in result.rows}
    a_step = use.working_ns / 2 / 1e6
    assert parts["all but idle time"] + parts["idle"] == pytest.approx(a_step)
    whole, wait = answers(timeline, "waits")
    assert (wait["line"], wait["operator"], wait["calls_a_step"]) == (None, "aten::item", 1.0)
    assert (whole["line"], whole["ms_a_step"]) == (ALL, 0.03)
    assert whole["waiting_percent"] == wait["waiting_percent"]
    after_ns = sum(part.idle_ns for part in use.gap_causes if part.cause == "synchronisation")
    assert whole["idle_after_ms"] == wait["idle_after_ms"] == pytest.approx(after_ns / 2 / 1e6)


def two_steps(parts):
    """Two marked steps of 100 µs; `parts` of when one begins and its number are its events."""
    return [
        each
        for number, begin in enumerate((0, 100))
        for each in (
            event("user_annotation", f"ProfilerStep#{number}", begin, 100),
            *parts(begin, number),
        )
    ]


def on_line(number, begin, length):
    """A line of the program that runs so long."""
    name = f"train.py({number}): step"
    return event("python_function", name, begin, length, tid="lines of 1")


def test_a_step_is_shown_line_by_line_without_waits_and_idle_time(loaded):
    """Two steps of 100 µs: line 9 launches for 30, line 10 waits for 40 of 50, and nothing is
    recorded of a kernel on another stream and of the last 10 µs.
    """
    rows = two_steps(
        lambda begin, number: [
            event("user_annotation", "enumerate(DataLoader)#_Loader.__next__", begin, 10),
            on_line(9, begin + 10, 30),
            event("cuda_runtime", "cudaLaunchKernel", begin + 12, 8, correlation=number + 1),
            kernel("gemm", begin + 30, 30, number + 1),
            kernel("beside it", begin + 70, 10, 0, stream=8),
            on_line(10, begin + 40, 50),
            event("cpu_op", "aten::item", begin + 42, 45),
            event("cuda_runtime", "cudaStreamSynchronize", begin + 45, 40),
        ]
    )
    timeline = loaded(*rows)
    parts = {row["part"]: row for row in answers(timeline, "budget")}
    assert [*parts] == [
        "train.py(10): step",
        "train.py(9): step",
        "enumerate(DataLoader)#_Loader.__next__",
        OTHERS,
        "sum",
        "idle",
        "a step now",
    ]
    assert {part: row["host_ms"] for part, row in parts.items()} == pytest.approx(
        dict(zip(parts, (0.01, 0.03, 0.01, 0.01, 0.06, None, 0.1), strict=True))
    )
    assert [row["waiting_ms"] for row in parts.values()] == [
        *(pytest.approx(0.04), None, None, None),
        *(pytest.approx(0.04), None, None),
    ]
    assert {part: row["device_ms"] for part, row in parts.items()} == {
        "train.py(9): step": pytest.approx(0.03),
        "train.py(10): step": None,
        "enumerate(DataLoader)#_Loader.__next__": None,
        OTHERS: pytest.approx(0.01),
        "sum": pytest.approx(0.04),
        "idle": pytest.approx(0.06),
        "a step now": pytest.approx(0.1),
    }
    assert [row["launches"] for row in parts.values()] == [None, 1, None, None, 1, None, None]
    whole = {row["part"]: row["ms_a_step"] for row in answers(timeline, "step")}
    assert parts["sum"]["host_ms"] == pytest.approx(whole["all but waits"])
    assert parts["sum"]["device_ms"] == pytest.approx(whole["all but idle time"])
    assert parts["sum"]["waiting_ms"] == pytest.approx(whole["waiting for the device"])
    assert parts["idle"]["device_ms"] == pytest.approx(whole["idle"])
    assert parts["sum"]["waiting_ms"] == answers(timeline, "waits")[0]["ms_a_step"]
    waiting, launching, loading, *others = (row["saves_percent"] for row in parts.values())
    assert loading == pytest.approx(10)
    assert 50 > waiting > launching > loading
    assert others == [None] * 4, "sums are no lines"


def test_a_budget_begins_with_what_saves_most(loaded):
    """Also where that takes less time than another line, which waits; sums stay at the end."""
    rows = two_steps(
        lambda begin, number: [
            event("user_annotation", "a price of the step (modelled)", begin, 10),
            on_line(9, begin + 10, 40),
            event("cuda_runtime", "cudaLaunchKernel", begin + 12, 30, correlation=number + 1),
            kernel("gemm", begin + 45, 44, number + 1),
            on_line(10, begin + 50, 50),
            event("cuda_runtime", "cudaStreamSynchronize", begin + 51, 40),
        ]
    )
    answer = answers(loaded(*rows), "budget")
    saved = [row["saves_percent"] for row in answer]
    assert [row["part"] for row in answer] == [
        "train.py(9): step",
        "train.py(10): step",
        "a price of the step (modelled)",
        "sum",
        "idle",
        "a step now",
    ]
    assert saved[0] > saved[1] > 0
    assert saved[2:] == [None] * 4
    first, second = (row["host_ms"] + (row["waiting_ms"] or 0) for row in answer[:2])
    assert first < second


def test_a_budget_s_host_times_name_their_allocations(loaded):
    """Two steps of 100 µs; in each, 50 µs of line 10 are the driver's, of line 9 once 4."""
    rows = two_steps(
        lambda begin, number: [
            on_line(9, begin, 30),
            event("cuda_runtime", "cudaLaunchKernel", begin + 12, 8, correlation=number + 1),
            kernel("gemm", begin + 30, 40, number + 1),
            on_line(10, begin + 30, 60),
            event("cuda_runtime", "cudaMalloc", begin + 40, 50),
        ]
    )
    timeline = loaded(*rows, event("cuda_runtime", "cudaMalloc", 22, 4))
    parts = {row["part"]: row for row in answers(timeline, "budget")}
    assert parts["train.py(10): step"]["host_ms"] == pytest.approx(0.06)
    times = time_of_allocations(timeline)
    assert times == {
        "train.py(10): step": pytest.approx(0.05),
        "train.py(9): step": pytest.approx(0.002),
    }
    assert describe_allocations(times).endswith("`cudaMalloc` takes 0.05 ms of train.py(10).")
    assert describe_allocations({}) == ""


def test_a_step_adds_up_where_the_device_is_behind_and_its_streams_overlap(loaded):
    """Two steps of 100 µs without waits. Line 9 launches work for 100 and 120 µs, which begins when
    the host is done with a step; that of line 10 runs at once with it.
    """
    rows = []
    for number, begin in ((0, 0), (1, 100)):
        rows += [
            event("user_annotation", f"ProfilerStep#{number}", begin, 100),
            event("python_function", "train.py(10): step", begin, 60, tid="lines of 1"),
            event("cuda_runtime", "cudaLaunchKernel", begin + 5, 8, correlation=2 * number + 1),
            event("python_function", "train.py(9): step", begin + 60, 40, tid="lines of 1"),
            event("cuda_runtime", "cudaLaunchKernel", begin + 70, 8, correlation=2 * number + 2),
            kernel("add", begin + 110, 60, 2 * number + 1, stream=8),
            kernel("gemm", begin + 100, 100 + 20 * number, 2 * number + 2),
        ]
    timeline = loaded(*rows)
    parts = {row["part"]: row for row in answers(timeline, "budget")}
    device = {part: row["device_ms"] for part, row in parts.items() if row["device_ms"]}
    assert device == {
        "train.py(9): step": pytest.approx(0.11),
        "train.py(10): step": pytest.approx(0.06),
        "at once on several streams": pytest.approx(-0.06),
        "sum": pytest.approx(0.11),
        "idle": pytest.approx(0.05),
        "a step now": pytest.approx(0.16),
    }
    assert next(iter(parts)) == "train.py(9): step", "the device is the slower side"
    assert parts["sum"]["host_ms"] == pytest.approx(0.1)
    assert parts["after the last step on the host"]["waiting_ms"] == pytest.approx(0.06)
    assert parts["a step now"]["host_ms"] == pytest.approx(0.16)
    of_step = {row["part"]: row["ms_a_step"] for row in answers(timeline, "step")}
    assert of_step["after the last step on the host"] == pytest.approx(0.06)


def test_without_an_accelerator_a_step_has_no_side_of_a_device(loaded):
    rows = []
    for number, begin in ((0, 0), (1, 100)):
        rows += [
            event("user_annotation", f"ProfilerStep#{number}", begin, 100),
            event("python_function", "train.py(9): step", begin, 80, tid="lines of 1"),
            event("cpu_op", "aten::mm", begin + 10, 60),
        ]
    timeline = loaded(*rows)
    assert {row["part"]: row["host_ms"] for row in answers(timeline, "budget")} == {
        "train.py(9): step": pytest.approx(0.08),
        OTHERS: pytest.approx(0.02),
        "sum": pytest.approx(0.1),
        "a step now": pytest.approx(0.1),
    }
    assert {row["device_ms"] for row in answers(timeline, "budget")} == {None}
    assert [row["part"] for row in answers(timeline, "step")] == [
        "operators and Python",
        "all but waits",
    ]


def test_without_lines_a_step_is_not_shown_line_by_line(loaded):
    timeline = loaded(event("user_annotation", "ProfilerStep#1", 0, 100), kernel("gemm", 5, 9, 1))
    assert answers(timeline, "budget") == []


def test_a_token_is_told_by_host_and_device(loaded):
    timeline = loaded(
        event("user_annotation", "token 1", 0, 1000),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
        kernel("gemm", 100, 40, 1),
        event("cuda_runtime", "cudaStreamSynchronize", 200, 300, correlation=2),
        event("user_annotation", "prompt", 2000, 50),
    )
    (row,) = ask(timeline, "tokens").rows
    assert row == [0, "token 1", 1.0, 0.04, 1, 0.3]


def test_a_range_of_an_idle_time_says_whose_thread_it_is(loaded):
    timeline = loaded(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker"}},
        kernel("gemm", 0, 10, 1),
        event("user_annotation", "data", 20, 50),
        event("user_annotation", "batch", 10, 80, 2),
        event("user_annotation", "both", 10, 5),
        event("user_annotation", "both", 10, 5, 2),
        kernel("gemm", 100, 10, 2),
    )
    answered = {row[0]: row for row in ask(timeline, "idle-in-ranges").rows}
    rows = {name: row[1] for name, row in answered.items()}
    assert rows == {"all idle time": None, "data": "main", "batch": "worker", "both": "2 threads"}
    assert answered["all idle time"][3] == pytest.approx(0.09)
    assert answered["both"][3] == pytest.approx(0.005), "what both do at once counts once"


def percent(timeline, question: str, name: str = "") -> float:
    """The percentages that a ready question gives for the rows whose name contains `name`."""
    answer = ask(timeline, question)
    column = {"lines": "host_percent", "waits": "waiting_percent"}.get(question, "percent")
    at = answer.columns.index(column)
    return sum(row[at] for row in answer.rows if name in str(row[0])) / 100


@pytest.mark.parametrize(
    ("capture", "figure", "read"),
    [
        ("input", "idle_input_share", lambda t: percent(t, "idle-in-ranges", "data")),
        ("sync", "host_wait_share", lambda t: percent(t, "waits", ALL)),
        (
            "communication",
            "exposed_communication_share",
            lambda t: percent(t, "communication", ALL),
        ),
    ],
)
def test_a_learner_reads_the_tools_own_figure_off_the_tables(capture, figure, read):
    """As the labs' questions define them: a question's evidence is no secret of the tool."""
    timeline = load(CAPTURES / f"synthetic-{capture}.json.gz")
    wanted = figures_of(summarise(timeline))[figure]
    assert wanted > 0.1
    assert read(timeline) == pytest.approx(wanted, rel=0.02)


def test_what_a_neighbour_on_the_device_costs_is_read_off_the_tables():
    timeline = load(ROOT / "datasets" / "cases" / "river-levels" / "trace.json.gz")
    wanted = figures_of(summarise(timeline))["interrupted_share"]
    assert wanted > 0.3
    rows = ask(timeline, "interruptions").rows
    whole = percent(timeline, "interruptions", "all of these")
    assert rows[0][0] == "all of these"
    assert whole == pytest.approx(wanted, rel=0.02)
    assert percent(timeline, "interruptions") == pytest.approx(2 * whole)
    nothing = load(CAPTURES / "synthetic-healthy.json.gz")
    assert ask(nothing, "interruptions").rows == []


@pytest.fixture
def two_sizes(loaded):
    """Ten long messages, half hidden behind a kernel, and a short one that overlaps the last."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [event("user_annotation", "ProfilerStep#1", 0, 10_000)]
    for number in range(10):
        at = 100 + 900 * number
        sizes = {"In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "Float"}
        long, short = kernel(nccl, at, 400, 3 * number), kernel(nccl, at + 380, 60, 3 * number + 1)
        long["args"] |= {"Collective name": "allreduce"} | sizes
        short["args"] |= {"Collective name": "allreduce", **sizes, "In msg nelems": 1}
        short["args"]["Out msg nelems"] = 1
        events += [long, short | {"tid": 8}, kernel("gemm", at, 200, 3 * number + 2, stream=9)]
        for call in range(3):
            events.append(
                event("cuda_runtime", "cudaLaunchKernel", at - 50 + call, 1,
                      correlation=3 * number + call)
            )  # fmt: skip
    return loaded(*events)


def test_each_size_of_message_has_its_own_exposed_time(two_sizes):
    """Together they are all of it, however they overlap, so that what is inside a block of a report
    never exceeds it.
    """
    analysis = analyse(two_sizes)
    rows = {row.bytes: row for row in analysis.summary.collectives}
    assert {size: row.exposed_ns for size, row in rows.items()} == {4 << 20: 2_000_000, 4: 400_000}
    (use,) = analysis.summary.devices
    assert use.exposed_communication_ns == 2_400_000
    figures = figures_of(analysis.summary)
    assert figures["largest_message_share"] == pytest.approx(0.2)
    whole, large, small = ask(two_sizes, "communication").rows
    assert (whole[0], whole[1], whole[2]) == (ALL, None, 20)
    assert whole[-1] == pytest.approx(large[-1] + small[-1]) == pytest.approx(24)
    assert (large[1], small[1]) == (4 << 20, 4)
    assert large[-1] / 100 == pytest.approx(0.2)
    within = figures_within(
        two_sizes, analysis.times, analysis.summary.syncs, Window(300_000, 540_000)
    )
    assert within["largest_message_share"] == pytest.approx(200 / 240)
    assert within["exposed_communication_share"] == pytest.approx(1.0)


def test_the_longest_line_is_told_from_the_others(loaded):
    """And where no lines were recorded, the thread with most work in operators."""
    step = event("user_annotation", "ProfilerStep#1", 0, 1000)
    operators = [event("cpu_op", "aten::mm", 0, 300), event("cpu_op", "aten::mul", 300, 600, tid=2)]
    launch = event("cuda_runtime", "cudaLaunchKernel", 5, 5, correlation=1)
    lines = [
        event("python_function", "train.py(7): train", 0, 200, tid="lines of 1"),
        event("python_function", "train.py(8): train", 200, 300, tid="lines of 1"),
        event("python_function", "train.py(7): train", 500, 200, tid="lines of 1"),
    ]
    shared = [step, *operators, launch, kernel("gemm", 20, 40, 1)]
    for timeline, share, stretch in (
        (loaded(*shared, *lines), 0.4, Window(500_000, 600_000)),
        (loaded(*shared), 0.6, Window(300_000, 400_000)),
    ):
        analysis = analyse(timeline)
        assert figures_of(analysis.summary)["longest_line_share"] == pytest.approx(share)
        within, elsewhere = (
            figures_within(timeline, analysis.times, analysis.summary.syncs, part)
            for part in (stretch, Window(200_000, 300_000))
        )
        assert within["longest_line_share"] == pytest.approx(1.0)
        assert elsewhere["longest_line_share"] == 0
    assert percent(loaded(*shared, *lines), "lines", "(7)") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("category", "question", "kind"),
    [
        ("python_function", "lines", "Python"),
        ("cpu_op", "top-operators", "operator"),
        ("user_annotation", "ranges", "range"),
    ],
)
def test_what_calls_itself_counts_once_as_in_a_stretch(loaded, category, question, kind):
    """Of a name, 500 µs with 300 and 100 of its own inside, 200 on another thread, and 1 later."""
    name = "walk.py(3): walk"
    timeline = loaded(
        event(category, name, 0, 500),
        event(category, name, 100, 300),
        event(category, name, 200, 100),
        event(category, name, 150, 200, tid=2),
        event(category, name, 900, 1),
    )
    answer = ask(timeline, question)
    row = dict(zip(answer.columns, answer.rows[0], strict=True))
    assert row.get("total_ms", row.get("host_ms")) == pytest.approx(0.701)
    selection = select(timeline, analyse(timeline).times, Window(0, 901_000))
    rows = [each for use in selection.threads for each in use.names]
    assert {each.kind for each in rows} == {kind}
    assert sum(each.time_ns for each in rows) == 701_000
    assert sum(each.rows for each in rows) == row.get("calls", row.get("times")) == 5
    if question == "lines":
        assert (row["shortest_ms"], row["longest_ms"]) == (0.001, 0.5)


def test_what_a_stretch_cuts_says_when_it_really_began_and_ended(loaded):
    timeline = loaded(event("user_annotation", "data", 0, 100))
    selection = select(timeline, analyse(timeline).times, Window(40_000, 60_000))
    (row,) = [each for use in selection.threads for each in use.names]
    assert (row.time_ns, row.start_ns, row.end_ns) == (20_000, 0, 100_000)


def answers(timeline, question):
    """Return the rows of an answer as dictionaries."""
    answer = ask(timeline, question)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_a_line_of_several_processes_is_a_sum_over_so_many(loaded):
    """Two workers are on a line for 800 µs each of a step of 1,000, and the main process for 500 on
    one of its own: no percentage is above 100.
    """
    rows = [
        event("user_annotation", "ProfilerStep#1", 0, 1000),
        event("cuda_runtime", "cudaLaunchKernel", 5, 5, correlation=1),
        kernel("gemm", 20, 980, 1),
        event("python_function", "train.py(7): train", 0, 500, tid="lines of 1"),
    ]
    for worker in range(2):
        tid = f"worker {worker}"
        name = {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "ts": 0}
        rows += [
            {**name, "args": {"name": f"DataLoader worker {worker}"}},
            event("python_function", "data.py(3): decode", 100, 400, tid=tid),
            event("python_function", "data.py(3): decode", 500, 400, tid=tid),
        ]
    decode, train = answers(loaded(*rows), "lines")
    assert (decode["name"], decode["times"], decode["processes"]) == ("data.py(3): decode", 4, 2)
    assert (decode["host_ms"], decode["host_percent"]) == (1.6, pytest.approx(80))
    assert (train["processes"], train["host_percent"]) == (1, pytest.approx(50))


def test_a_line_and_a_function_that_begins_there_are_two_rows(loaded):
    """A function of one line, 500 µs each time, is recorded as itself and by its line."""
    name = "net.py(7): forward"
    rows = [
        event("python_function", name, at, 500, tid=tid)
        for at in (0, 600)
        for tid in (1, "lines of 1")
    ]
    counted = {
        (row["kind"], row["times"], row["host_ms"]) for row in answers(loaded(*rows), "lines")
    }
    assert counted == {("function", 2, 1.0), ("line", 2, 1.0)}


def test_a_line_has_the_lines_that_it_calls_once(loaded):
    """Line 9 calls the forward, and line 10 the backward, in which a checkpoint runs that again;
    the recorded lines follow one another, and the forward has a line that calls nothing.
    """
    rows = [
        event("python_function", "train.py(8): step", 0, 1000),
        event("python_function", "/home/me/net.py(3): forward", 100, 200),
        event("python_function", "/home/me/net.py(3): forward", 500, 300),
    ]
    for name, start, end in (
        ("train.py(9): step", 0, 100),
        ("net.py(4): forward", 100, 250),
        ("net.py(5): forward", 250, 300),
        ("train.py(9): step", 300, 400),
        ("train.py(10): step", 400, 500),
        ("net.py(4): forward", 500, 800),
        ("train.py(10): step", 800, 1000),
    ):
        rows.append(event("python_function", name, start, end - start, tid="lines of 1"))
    lines = {row["name"]: row for row in answers(loaded(*rows), "lines") if row["kind"] == "line"}
    assert {name: (row["times"], row["host_ms"]) for name, row in lines.items()} == {
        "train.py(9): step": (1, 0.4),
        "train.py(10): step": (1, 0.6),
        "net.py(4): forward": (2, 0.45),
        "net.py(5): forward": (1, 0.05),
    }


def test_a_line_counts_within_the_steps_that_its_share_is_of(loaded):
    """Six calls of 100 µs, of which the first is before the five steps, and the last half behind
    them, in a function that is open all along.
    """
    rows = [event("user_annotation", f"ProfilerStep#{n}", 100 * n, 100) for n in range(1, 6)]
    rows += [event("cpu_op", "aten::mm", 100 * n + 5, 20) for n in range(7)]
    rows += [event("python_function", "train.py(3): step", 100 * n, 95) for n in range(5)]
    rows += [event("python_function", "train.py(3): step", 550, 95)]
    rows += [event("python_function", "train.py(1): main", 0, 700)]
    timeline = loaded(*rows)
    counted = {
        row["name"]: (row["times"], row["host_ms"], row["host_percent"])
        for row in answers(timeline, "lines")
    }
    assert counted == {
        "train.py(1): main": (1, pytest.approx(0.5), pytest.approx(100)),
        "train.py(3): step": (5, pytest.approx(0.43), pytest.approx(86)),
    }
    listed = {row.line: (row.calls, row.host_ns) for row in summarise(timeline).lines}
    assert listed == {"train.py: main": (1, 70_000), "train.py(3): step": (5, 430_000)}


def test_an_answer_says_when_it_has_more_rows(loaded):
    kernels = [kernel(f"k{number}", 10 * number, 5, number) for number in range(21)]
    assert not ask(loaded(*kernels[:20]), "top-kernels").cut
    answer = ask(loaded(*kernels), "top-kernels")
    assert (len(answer.rows), answer.cut) == (20, True)


def test_a_line_is_split_by_the_operators_that_it_calls(loaded):
    """Line 7 calls two blocks in turn, of which one is a convolution inside another operator."""
    rows = [event("python_function", "net.py(7): forward", 0, 900, tid="lines of 1")]
    for at in (0, 400):
        rows += [
            event("cpu_op", "aten::conv2d", at + 10, 300),
            event("cpu_op", "aten::convolution", at + 20, 200),
            event("cpu_op", "aten::layer_norm", at + 320, 50 + at // 10),
        ]
    rows += [
        event("python_function", "net.py(9): forward", 900, 600, tid="lines of 1"),
        event("cpu_op", "aten::mm", 905, 400),
    ]
    operators = answers(loaded(*rows), "line-operators")
    columns = ("line", "name", "calls", "total_ms", "shortest_us", "longest_us")
    assert [tuple(row[name] for name in columns) for row in operators] == [
        ("net.py(7): forward", "aten::conv2d", 2, 0.6, 300, 300),
        ("net.py(7): forward", "aten::layer_norm", 2, 0.14, 50, 90),
        ("net.py(9): forward", "aten::mm", 1, 0.4, 400, 400),
    ]


def test_a_backward_is_called_where_it_begins_whatever_runs_again_inside(loaded):
    """A node of 900 µs runs line 7 of the forward again for most of that."""
    rows = [
        event("python_function", "train.py(9): step", 0, 100, tid="lines of 1"),
        event("python_function", "net.py(7): forward", 100, 700, tid="lines of 1"),
        event("python_function", "train.py(9): step", 800, 200, tid="lines of 1"),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 50, 900),
        event("cpu_op", "aten::mm", 110, 600),
    ]
    (operator,) = answers(loaded(*rows), "line-operators")
    assert (operator["line"], operator["total_ms"]) == ("train.py(9): step", 0.9)


@pytest.fixture
def two_waiting_lines(loaded):
    """Return a function that loads a step in which line 7 waits four times, for short kernels, and
    line 9 once for as long as three of these; with the lines that ran, or without.
    """
    events = [event("user_annotation", "ProfilerStep#1", 0, 1000)]
    for number, (at, length) in enumerate([*((20 * i, 10) for i in range(4)), (500, 30)]):
        operator = "aten::item" if length == 10 else "aten::nonzero"
        events += [
            event("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number),
            kernel("norm", at + 8, length, number),
            event("cpu_op", operator, at + 6, length + 4),
            event("cuda_runtime", "cudaStreamSynchronize", at + 8, length, correlation=10 + number),
        ]
    lines = [
        event("python_function", "train.py(7): train", 0, 80, tid="lines of 1"),
        event("python_function", "train.py(8): train", 80, 420, tid="lines of 1"),
        event("python_function", "train.py(9): train", 500, 40, tid="lines of 1"),
    ]
    return lambda *, with_lines: loaded(*events, *(lines if with_lines else []))


@pytest.mark.parametrize(("with_lines", "share"), [(True, 0.08), (False, 0.074)])
def test_a_stretch_shows_the_waits_of_one_cause_alone(two_waiting_lines, with_lines, share):
    """Neither another line that waits, nor the device's idle time after a wait, is on that line;
    work between its waits is.
    """
    timeline = two_waiting_lines(with_lines=with_lines)
    _, summary, times = analyse(timeline)
    assert figures_of(summary)["waiting_line_share"] == pytest.approx(share)

    def within(start_us: int, end_us: int) -> float:
        stretch = Window(1000 * start_us, 1000 * end_us)
        return figures_within(timeline, times, summary.syncs, stretch)["waiting_line_share"]

    assert within(10, 70) == pytest.approx(1.0)
    assert within(100, 400) == 0
    assert within(500, 540) == 0


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def works_after_its_step(loaded):
    """A step, and work after it. The program's last wait begins a rounded nanosecond before its
    last step ends.
    """
    return loaded(
        event("user_annotation", "ProfilerStep#1", 0, 1000),
        event("cpu_op", "aten::mm", 5, 20),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
        kernel(NCCL, 100, 400, 1),
        event("cuda_runtime", "cudaStreamSynchronize", 600, 300, correlation=2),
        event("cuda_runtime", "cudaDeviceSynchronize", 999.999, 800, correlation=3),
        event("cpu_op", "aten::mm", 1005, 20),
        event("cuda_runtime", "cudaLaunchKernel", 1010, 5, correlation=4),
        kernel(NCCL, 1100, 600, 4),
        event("cuda_runtime", "cudaLaunchKernel", 1016, 5, correlation=5),
        kernel("gemm", 1700, 50, 5),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1750, 20, 7, device=0, stream=7,
              bytes=4),
    )  # fmt: skip


def test_what_lies_beyond_the_steps_counts_in_no_share(works_after_its_step):
    timeline = works_after_its_step
    figures = figures_of(summarise(timeline))
    assert figures["host_wait_share"] == pytest.approx(0.3)
    assert percent(timeline, "waits", ALL) == pytest.approx(0.3)
    assert figures["exposed_communication_share"] == pytest.approx(0.4)
    assert percent(timeline, "communication", ALL) == pytest.approx(0.4)


def test_questions_page_and_comparison_count_the_same_work(works_after_its_step):
    """The work within the steps, with one denominator: the recording that shares are of."""
    timeline = works_after_its_step
    assert ask(timeline, "top-kernels").rows == [[NCCL, 1, 0.4, 400, 400, pytest.approx(40)]]
    assert ask(timeline, "top-operators").rows == [["aten::mm", 1, 0.02, 20]]
    assert ask(timeline, "launch-delays").rows == ask(timeline, "copies").rows == []
    calls = [row[:3] for row in ask(timeline, "top-calls").rows]
    assert calls == [["cudaStreamSynchronize", 1, 0.3], ["cudaLaunchKernel", 1, 0.005]]
    _, summary, times = analyse(timeline)
    assert ">40.0%<" in kernels_table(summary)
    series = find_step_figures(timeline, times).series
    assert series["kernel", NCCL].tolist() == [400_000]
    assert series["operator", "aten::mm"].tolist() == [400_000]  # on the device
    assert {name for group, name in series if group == "sync"} == {"cudaStreamSynchronize"}


def test_the_time_of_one_rank_times_the_ranks_is_the_time_of_all(loaded):
    """Also where ranks begin at other moments, so that all together take longer than any."""
    ranks = []
    for late in (0, 300):
        steps = [event("user_annotation", f"ProfilerStep#{n}", late + 500 * n, 500) for n in (0, 1)]
        launch = event("cuda_runtime", "cudaLaunchKernel", late + 10, 5, correlation=1)
        ranks.append(loaded(*steps, launch, kernel("gemm", late + 20, 900, 1)))
    summary = summarise(merge_ranks(ranks))
    assert sum(use.wall_ns for use in summary.devices) == 2_000_000
    line = describe_capture(summary)
    assert line.startswith("1.00 ms: 2 steps of 500 µs on average")
    assert line.endswith("; 1.30 ms from the first rank's start to the last one's end")


@pytest.mark.parametrize(
    ("took_us", "spread"),
    [
        (
            [224, 179, 179, 179, 179, 179, 134],
            "179 µs on average (steps differ by ± 0% without the first and last)",
        ),
        (
            [372, 216, 216, 216, 213],
            "247 µs on average (216 µs ± 0% without the first and last)",
        ),
        (
            [100, 300, 100, 300, 100, 300, 100],
            "(220 µs ± 44.5% without the first and last)",
        ),
        ([100, 100, 300, 300], "(steps differ by ± 50%)"),
    ],
)
def test_what_the_edges_of_a_capture_cut_is_no_part_of_the_spread(loaded, took_us, spread):
    rows, begin = [], 0
    for number, took in enumerate(took_us):
        rows += [
            event("user_annotation", f"ProfilerStep#{number}", begin, took),
            event("cuda_runtime", "cudaLaunchKernel", begin + 10, 5, correlation=number + 1),
            kernel("gemm", begin + 20, 50, number + 1),
        ]
        begin += took
    assert spread in describe_capture(summarise(loaded(*rows)))


def test_an_unknown_question_lists_all():
    with pytest.raises(UsageError, match="no question 'why'") as refusal:
        ask(None, "why")
    assert all(question.name in refusal.value.remedy for question in QUESTIONS)


def test_the_documentation_lists_the_questions_and_the_tables():
    text = DOCS.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \| ", text.split("### Ready questions")[1], re.MULTILINE)
    assert listed == [question.name for question in QUESTIONS]
    assert "| `graph_nodes` |" in text


# start-up


def test_the_call_that_made_the_context_is_named(loaded):
    timeline = loaded(
        event("cuda_runtime", "cudaFree", 100, 981_000, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 981_200, 10, correlation=2),
        kernel("gemm", 981_300, 50, 2),
    )
    startup = find_startup(timeline)
    assert (startup.call, startup.call_ns, startup.ns) == ("cudaFree", 981_000_000, 981_200_000)
    assert "981 ms of them in one cudaFree call" in describe_startup(startup)


@pytest.mark.parametrize(
    ("step", "is_first"), [("ProfilerStep#0", True), ("ProfilerStep#5", False), ("step 1", True)]
)
def test_a_recording_that_began_after_earlier_steps_has_no_start_up(loaded, step, is_first):
    """A profiler's schedule skips steps, and the first call of the runtime with them."""
    timeline = loaded(
        event("user_annotation", step, 0, 50_000),
        event("cuda_runtime", "cudaMemcpyAsync", 100, 40_000, correlation=1),
        kernel("copy", 36_000, 4_000, 1),
    )
    assert (find_startup(timeline) is not None) is is_first
    # The call that the first work came from counts until that began.
    (row,) = ask(timeline, "start-up").rows
    assert row[1:] == ["cudaMemcpyAsync", 1, 35.9]


@pytest.mark.parametrize("length", [100, 20_000])
def test_a_short_start_or_one_of_many_calls_is_not_told(loaded, length):
    timeline = loaded(
        event("cpu_op", "aten::mm", 0, 100_000 if length > 100 else 200),
        event("cuda_runtime", "cudaLaunchKernel", 10, length, correlation=1),
        kernel("gemm", 100_000 if length > 100 else 200, 50, 1),
    )
    assert find_startup(timeline) is None
    assert describe_startup(None) == ""


@pytest.mark.parametrize("step", ["ProfilerStep#{}", "train_step {}", "Iteration:{}"])
def test_steps_are_one_row_of_the_ranges(loaded, step):
    """`layer1` and `layer2` are no steps, and stay apart."""
    timeline = loaded(
        *(event("user_annotation", step.format(n), 100 * n, 10 * n) for n in range(8, 12)),
        event("user_annotation", "layer1", 2000, 3),
        event("user_annotation", "layer2", 2100, 4),
    )
    rows = {row[0]: row[1:] for row in ask(timeline, "ranges").rows}
    assert set(rows) == {step.format("N"), "layer1", "layer2"}
    assert rows[step.format("N")] == pytest.approx([4, 0.38, 0.095, 0.08, 0.11])
    assert all(STEP_NAME.match(step.format(n)) for n in range(8, 12))
