"""Comparisons of two captures that nothing else is known of: another device, a busy machine,
reports of single kernels, and programs of which only functions were recorded.
"""

import json

import pytest

from bottleneck_lab import compare, load, observe
from bottleneck_lab.analysis.comparing.machine_speed import CallTimes, find_slower_machine
from bottleneck_lab.report.comparison_words import (
    TOP,
    describe_differences,
    describe_limits,
    describe_samples,
    label_change,
    shown_changes,
    title_group,
)
from bottleneck_lab.report.page.comparison import comparison_section
from bottleneck_lab.trace.names import LINES_OF


def row(category, name, start, dur, tid=1, **args):
    fields = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid}
    return {**fields, "ts": start, "dur": dur, "args": args}


@pytest.fixture
def loaded(tmp_path):
    def read(*rows):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"traceEvents": rows}))
        return observe(load(path))

    return read


def steps(count, work):
    """Return rows of steps of 1 ms, each with the rows of `work(start)`."""
    rows = []
    for number in range(count):
        start = 1000 * number
        rows += [row("user_annotation", f"ProfilerStep#{number}", start, 1000), *work(start)]
    return rows


def changes(comparison, group):
    return {each.what: each for each in comparison.changes if each.group == group}


def test_too_few_steps_are_told_with_how_many_are_needed(loaded):
    sides = [
        loaded(*steps(n, lambda at: [row("cpu_op", "aten::mm", at, 900)])) for n in (3, 2, 4, 4)
    ]
    few = compare(*sides[:2])
    assert few.needed[0] == 4
    expected = "An interval takes at least 4 steps of each version, or "
    (line,) = [each for each in describe_samples(few) if "interval takes" in each]
    assert line.startswith(expected)
    assert line.endswith(": there are 3 before and 2 after.")
    assert not compare(*sides[2:]).few


def test_functions_are_compared_where_no_lines_were_recorded(loaded):
    def step(us, address):
        def work(at):
            return [
                row("cpu_op", "aten::mm", at + 10, us - 20),
                row("python_function", "train.py(7): step", at, 950),
                row("python_function", "net.py(3): forward", at, us),
                row("python_function", f"<built-in method run at 0x{address}>", at, 5),
            ]

        return work

    before, after = loaded(*steps(8, step(800, "7f0"))), loaded(*steps(8, step(300, "7f8")))
    comparison = compare(before, after)
    functions = changes(comparison, "line")
    assert {name: (each.before, each.after) for name, each in functions.items()} == {
        "net.py: forward": (800_000, 300_000),
        "train.py: step": (150_000, 650_000),
    }
    assert title_group(comparison, "line") == "Your functions, by the host's time in them alone"
    other = [{**each, "name": each["name"].replace("net.py", "x.py").replace("train", "y")}
             for each in steps(8, step(300, "7f8"))]  # fmt: skip
    assert changes(compare(before, loaded(*other)), "line") == {}


def test_of_a_cpu_and_a_gpu_what_both_have_is_compared(loaded):
    def on_gpu(at):
        return [
            row("cpu_op", "aten::mm", at, 100, **{"External id": at + 1}),
            row("cuda_runtime", "cudaLaunchKernel", at + 10, 5, correlation=at + 1),
            row("kernel", "gemm", at + 20, 300, 7, device=0, stream=7, correlation=at + 1),
        ]

    cpu = loaded(*steps(8, lambda at: [row("cpu_op", "aten::mm", at, 900)]))
    gpu = loaded(*steps(8, on_gpu))
    comparison = compare(cpu, gpu)
    assert comparison.host_only
    assert {each.group for each in comparison.changes} == {"step", "operator"}
    operator = changes(comparison, "operator")["aten::mm"]
    assert (operator.before, operator.after) == (900_000, 100_000)
    assert title_group(comparison, "operator") == "Operators, by the host's time in them alone"
    text = " ".join(describe_differences(comparison))
    assert "Only one side has an accelerator" in text
    assert "the devices differ: CPU before" in text
    assert not comparison.findings_gone
    assert not comparison.findings_new
    assert not compare(gpu, gpu).host_only


def times(**typical_us):
    return {name: CallTimes(1e3 * us, 60, 6e4 * us) for name, us in typical_us.items()}


OPERATORS = dict.fromkeys("abcdefghij", 4.0)


def test_operators_that_are_all_slower_alike_are_the_machine_s_doing():
    quiet = times(**OPERATORS, large=3000.0)
    busy = times(**{name: 3.8 * us for name, us in OPERATORS.items()}, large=12_000.0)
    (difference,) = find_slower_machine(quiet, busy)
    assert (difference.kind, difference.slows) == ("load", "after")
    assert difference.sentence.startswith(
        "nearly all operators take about 3.8x as long after as before"
    )
    (back,) = find_slower_machine(busy, quiet)
    assert back.slows == "before"
    # Fewer threads, or another type, slow large operators alone.
    edited = times(**OPERATORS, large=12_000.0)
    assert find_slower_machine(quiet, edited) == []


def test_short_operators_that_were_interrupted_tell_a_busy_machine():
    quiet = times(**OPERATORS)
    busy = {name: each._replace(whole_ns=3 * each.whole_ns) for name, each in quiet.items()}
    (difference,) = find_slower_machine(quiet, busy)
    assert (difference.kind, difference.slows) == ("load", "after")
    assert (
        "1.0x their typical time before, all calls together, and 3.0x after" in difference.sentence
    )


def test_a_trace_that_is_slower_throughout_is_no_slower_program(loaded):
    def step(factor):
        def work(at):
            return [
                row("cpu_op", f"aten::op{n}", 4 * at + 40 * n * factor, 30 * factor)
                for n in range(20)
            ]

        return work

    def stretched(factor):
        rows = steps(12, step(factor))
        for each in rows:
            if each["cat"] == "user_annotation":
                each["ts"], each["dur"] = 4 * each["ts"], 1000 * factor
        return loaded(*rows)

    comparison = compare(stretched(1), stretched(3.8))
    assert comparison.outcome == "cannot tell"
    assert [each.kind for each in comparison.differences] == ["load"]
    assert "a trace does not tell how busy its machine was" in " ".join(
        describe_samples(comparison)
    )


def test_the_page_has_every_change_and_the_limit_is_stated(loaded):
    def step(us):
        def work(at):
            return [row("cpu_op", f"aten::op{n:02}", at + 50 * n, us) for n in range(18)]

        return work

    comparison = compare(loaded(*steps(12, step(40))), loaded(*steps(12, step(20))))
    assert len(shown_changes(comparison, "operator")) == TOP
    assert len(shown_changes(comparison, "operator", most=None)) == 18
    section = comparison_section(comparison)
    assert section
    assert all(f"aten::op{n:02}" in str(section) for n in range(18))
    limit = describe_limits(comparison, ["operator"])
    assert limit.startswith("Parts are listed from 0.5% of the step on, where they changed by more")
    assert "than 5%" in limit
    assert describe_limits(comparison, ["step"]) == ""


OWN, LIBRARY = "void attention<__half, {}>({} *, int)", "void pytorch_flash::fwd<64>(Params)"


def test_reports_of_ncu_are_compared_by_one_s_own_kernels(tmp_path):
    """The library's launches beside them are no part of the program; parameters change."""
    sides = []
    for name, type_, us in (("before", "int", 100), ("after", "char", 50)):
        rows = [(OWN.format(64, type_), us), (LIBRARY, 70), (OWN.format(128, type_), 4 * us)]
        head = '"ID","Process ID","Kernel Name","Device","CC","Grid Size","Block Size"'
        lines = [f'{head},"gpu__time_duration.sum"', '"","","","","","","","ns"']
        lines += [
            f'"{number}","1","{kernel}","0","9.0","(1, 1, 1)","(1, 1, 1)","{1000 * us_}"'
            for number, (kernel, us_) in enumerate(rows)
        ]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(lines))
        sides.append(observe(load(path)))
    comparison = compare(*sides)
    assert comparison.unit == "kernel"
    (whole,) = changes(comparison, "step").values()
    assert (whole.before, whole.after) == (500_000, 250_000)
    assert label_change(whole, {}, unit=comparison.unit) == "their sum"
    assert title_group(comparison, "step") == "All of your kernels"
    kernels = changes(comparison, "kernel")
    assert {each.was for each in kernels.values()} == {
        (OWN.format(64, "int"),), (OWN.format(128, "int"),)
    }  # fmt: skip
    assert comparison.library_ns == (70_000, 70_000)
    assert (
        "Kernels of libraries are left out: 70.0 µs before" in describe_differences(comparison)[0]
    )


def test_lines_of_a_track_are_still_lines(loaded):
    def work(at):
        return [
            row("cpu_op", "aten::mm", at, 900),
            row("python_function", "train.py(7): step", at, 950, tid=f"{LINES_OF}1"),
        ]

    side = loaded(*steps(4, work))
    assert compare(side, side).exact_lines
