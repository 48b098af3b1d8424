"""`make gpu` with a runner that runs nothing: what it plans, remembers, records and refuses."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck_lab.capture.devices import gpus
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict

from ...modules import load_file

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def gpu():
    before = list(sys.path)
    yield load_file(ROOT / "scripts" / "gpu.py", "gpu_script")
    sys.path[:] = before
    del sys.modules["gpu_script"]


@pytest.fixture
def tree(tmp_path, gpu, monkeypatch):
    """A checkout that may be written to, on a machine that claims a GPU."""
    monkeypatch.setattr("bottleneck_lab.capture.devices.gpus", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(gpu, "installed_tools", lambda: ["torch"])
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    (tmp_path / "docs" / "measured" / "README.md").write_text(
        (ROOT / "docs" / "measured" / "README.md").read_text()
    )
    return tmp_path


def said(step):
    return json.dumps({"problems": [], "outcome": "PASS", "step": step})


def test_without_a_gpu_nothing_is_run_and_nothing_changes(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bottleneck_lab.capture.devices.gpus", list)
    assert gpu.main([], runner=lambda *_: pytest.fail("ran"), root=tmp_path) == 4
    assert list(tmp_path.iterdir()) == []
    assert "no CUDA device" in capsys.readouterr().err


FOLDERS = (
    "import only_here; from bottleneck_lab.measure.sandbox import visible;"
    " print(*visible.python_folders(), sep='\\n')"
)


@pytest.mark.skipif(
    bool(gpus()) or shutil.which("make") is None, reason="needs make, and no GPU that it would use"
)
def test_isolated_workers_see_what_pythonpath_names(tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "only_here.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "wheels")}
    chosen = [f"PYTHON={sys.executable}", f"GPU_VENV={tmp_path / 'venv'}", "MAKE=false"]
    made = subprocess.run(
        ["make", *chosen, "gpu"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no CUDA device" in made.stderr, (
        "the branch that installs nothing, which comes as far as this without a GPU"
    )
    isolated = [
        tmp_path / "venv" / "bin" / "python",
        "-I",
        "-c",
        FOLDERS,
    ]
    seen = subprocess.run(isolated, capture_output=True, text=True, check=True).stdout.splitlines()
    assert str(tmp_path / "wheels") in seen, (
        "the sandbox shows it, though it is called nothing like site-packages"
    )
    assert str(ROOT) not in seen, "the solutions are in it"


def test_every_starter_solution_and_variant_is_planned(gpu):
    steps = gpu.plan.plan_steps(gpu.plan.gpu_labs(), ["torch", "ncu"], gpu_count=8)
    assert {
        "data",
        "tests",
        "exploits",
        "grade:idle-gpu:starter",
        "grade:idle-gpu:solution",
    } <= set(steps)
    variants = [
        path.name
        for path in (ROOT / "tests/variants/idle-gpu").iterdir()
        if path.is_dir() and path.name[0] not in "._"
    ]
    assert {f"grade:idle-gpu:variant {name}" for name in variants} <= set(steps)
    assert "capture:idle-gpu:solution:ncu" in steps


def test_where_recording_is_the_exercise_nothing_is_recorded_twice_or_not_at_all(gpu):
    steps = gpu.plan.plan_steps(gpu.plan.gpu_labs(), ["torch", "memory"], gpu_count=8)
    found = [step for step in steps if step.startswith("capture:resnet-top-ops")]
    assert found == [
        "capture:resnet-top-ops:solution:torch",
        "capture:resnet-top-ops:starter:memory",
    ]


def test_a_server_is_recorded_with_the_tools_that_record_it_under_load(gpu):
    steps = gpu.plan.plan_steps(
        gpu.plan.gpu_labs(), ["torch", "nsys", "ncu", "sanitizer", "memory"], gpu_count=8
    )
    found = [step for step in steps if step.startswith("capture:past-the-plateau:starter")]
    assert found == [
        "capture:past-the-plateau:starter:torch",
        "capture:past-the-plateau:starter:nsys",
    ]


def test_what_the_machine_cannot_do_is_not_tried_and_the_rest_can_be_well(
    gpu, tree, monkeypatch, capsys
):
    monkeypatch.setattr(gpu.plan, "installed", lambda _distribution: False)
    monkeypatch.setattr(gpu.plan, "has_triton", lambda: False)
    assert gpu.main([], runner=lambda *_: gpu.Ran(0, said("")), root=tree) == gpu.OK
    record = json.loads((tree / "docs/measured/h200.json").read_text())
    assert record["cannot"]["grade:ddp-scaling:solution"] == "needs 2 GPUs"
    assert record["cannot"]["grade:idle-gpu:variant dali"] == "needs nvidia-dali-cuda130"
    on_triton = record["cannot"]["grade:past-the-plateau:variant triton_dali"]
    assert on_triton == "needs a Triton Inference Server (lab data tritonserver)"
    assert not record["cannot"].keys() & record["steps"].keys()
    assert record["left"] == []
    readme = (tree / "docs/measured/README.md").read_text()
    assert "`ddp-scaling` on `cuda`: starter, solution, variants" in readme
    assert "`idle-gpu` on `cuda`: variants (dali)" in readme
    assert gpu.main(["--list"], root=tree) == gpu.OK
    listed = capsys.readouterr().out
    assert "    -    40 s  grade:ddp-scaling:solution needs 2 GPUs\n" in listed
    assert " done     0 s  grade:idle-gpu:solution\n" in listed, (
        "as long as the record says it took"
    )


def test_a_run_that_was_cut_short_goes_on_where_it_stopped(gpu, tree, monkeypatch):
    monkeypatch.setattr(gpu.plan, "installed", lambda _: True)  # CI has no DALI
    ran, now, chosen = [], [0.0], ["--only", "grade:idle-gpu"]

    def runner(command, limit_s):
        ran.append(command[command.index("--do") + 1] if "--do" in command else command[-1])
        now[0] += 40
        return gpu.Ran(None, "not done") if now[0] == 80 else gpu.Ran(0, f"progress\n{said('x')}")

    steps = [
        step
        for step in gpu.plan.plan_steps(gpu.plan.gpu_labs(), [], 1)
        if step.startswith("grade:idle-gpu")
    ]
    state = gpu.State(tree / "build" / "gpu" / "h200")
    assert gpu.work(steps, state, runner, budget_s=100, clock=lambda: now[0]) == steps[1:]
    assert gpu.main([*chosen, "--budget-s", "0"], runner=runner, root=tree) == gpu.LEFT
    assert gpu.main(chosen, runner=runner, root=tree) == gpu.OK
    assert ran == [
        steps[0],
        steps[1],
        "data",
        *steps[1:],
    ], "a step that the budget cut is run again; the data are this machine's"
    record = json.loads((tree / "docs/measured/h200.json").read_text())
    assert record["steps"][steps[0]]["outcome"] == "PASS"
    assert "tests" in record["left"]
    readme = (tree / "docs/measured/README.md").read_text()
    assert "`idle-gpu` on" not in readme
    assert "`resnet-latency` on `cuda`: starter, solution, variants" in readme


def test_a_step_that_had_all_of_the_budget_is_too_long_and_does_not_keep_the_others_waiting(
    gpu, tmp_path
):
    now, state = [0.0], gpu.State(tmp_path)

    def runner(command, limit_s):
        now[0] += limit_s if command[-1] == "data" else 1
        return gpu.Ran(None, "not done") if command[-1] == "data" else gpu.Ran(0, said(""))

    assert gpu.work(["data", "benchmark"], state, runner, budget_s=100, clock=lambda: now[0]) == [
        "benchmark"
    ]
    assert "out of time" in state.done["data"]["problems"][0]
    state.done["tests"] = {"problems": ["slow"]}
    assert gpu.work(["tests", "benchmark"], state, runner, budget_s=2, clock=lambda: now[0]) == [
        "tests"
    ]


def test_only_the_steps_that_are_asked_for_are_done_afresh(gpu, tree):
    ran = []

    def runner(command, limit_s):
        ran.append(command[-1])
        return gpu.Ran(0, said(""))

    assert gpu.main([], runner=runner, root=tree) == gpu.OK
    before, ran[:] = json.loads((tree / "docs/measured/h200.json").read_text())["steps"], []
    assert gpu.main(["--only", "tests", "--fresh"], runner=runner, root=tree) == gpu.OK
    assert ran == ["data", "tests/gpu"]
    assert (
        json.loads((tree / "docs/measured/h200.json").read_text())["steps"].keys() == before.keys()
    )


STEP = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
stubborn = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " print('up', flush=True); time.sleep(600)"
)
orphan = subprocess.Popen(
    [sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE
)
orphan.stdout.readline()
try:
    print(orphan.pid, flush=True)
    time.sleep(float(sys.argv[1]))
finally:
    pathlib.Path(sys.argv[2]).touch()
"""
HARNESS = """
import importlib.util, subprocess, sys
spec = importlib.util.spec_from_file_location("gpu_script", sys.argv[1])
gpu = sys.modules["gpu_script"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu)
runner = sys.modules["scripts.gpu_run.runner"]
runner.ORPHANS_S = 0.1
step = [sys.executable, "-c", sys.argv[2]]
bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(gpu.run([*step, "0", "/dev/null"], 60).output.strip())
bystanders = runner.children()
stays = subprocess.Popen([*step, "600", sys.argv[3]], stdout=subprocess.PIPE, text=True)
print(stays.stdout.readline().strip())
runner.end(stays, bystanders)
alive = bystander.poll() is None
bystander.kill()
sys.exit(not alive)
"""


def test_nothing_of_a_step_outlives_it_and_one_that_is_stopped_tidies_up(tmp_path):
    """What was there before it does."""
    tidied = tmp_path / "tidied"
    harness = [sys.executable, "-c", HARNESS, str(ROOT / "scripts" / "gpu.py"), STEP, str(tidied)]
    done = subprocess.run(harness, capture_output=True, text=True, check=True)
    orphans = [int(line) for line in done.stdout.split()]
    assert len(orphans) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in orphans)
    assert tidied.exists()


@pytest.mark.parametrize(
    ("status", "output", "words"),
    [
        (1, "Traceback: boom", "boom"),
        (None, "not done after 900 s", "out of time"),
        (0, '{"problems": ["too slow"]}', "too slow"),
    ],
)
def test_what_goes_wrong_is_recorded_and_the_next_step_runs_and_it_is_tried_again(
    gpu, tree, status, output, words
):
    arguments, ran = ["--only", "grade:idle-gpu", "--budget-s", "1e6"], []
    codes = iter([gpu.Ran(0, said("data")), gpu.Ran(status, output)])
    done = gpu.main(arguments, runner=lambda *_: next(codes, gpu.Ran(0, said(""))), root=tree)
    assert done == gpu.WRONG
    steps = json.loads((tree / "docs/measured/h200.json").read_text())["steps"]
    problems = [row["problems"] for row in steps.values() if row["problems"]]
    assert len(problems) == 1
    assert words in problems[0][0]
    assert len(steps) > 3
    assert (
        gpu.main(
            arguments, runner=lambda *call: ran.append(call) or gpu.Ran(0, said("")), root=tree
        )
        == gpu.OK
    )
    assert len(ran) == 2, "the data, and the step that went wrong"


def test_names_of_gpus_are_names_of_files(gpu):
    names = ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "../../etc"]
    assert [gpu.gpu_slug(name) for name in names] == ["h200", "a100-sxm4-80gb", "rtx-4090", "etc"]


def event(name, ts, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1.0, "args": args}


@pytest.mark.parametrize(
    ("what", "outcome", "right"),
    [("starter", "FAIL", True), ("starter", "PASS", False), ("solution", "PASS", True)],
)
def test_a_submission_is_graded_by_what_proves_labs(gpu, monkeypatch, what, outcome, right):
    verdict = Verdict(
        outcome=Outcome(outcome),
        reason="correct but slow" if outcome == "FAIL" else None,
        summary="As it came out.",
        lab="resnet-latency",
        lab_hash="",
        submission_hash="",
        device="cuda",
        criteria=[CriterionResult("right-answers", "correctness", True, "Right.")],
        environment={},
        isolation={},
        started_at="",
        duration_s=1.0,
        seconds={"imports": 0.6, "learner": 0.4},
    )
    monkeypatch.setattr("bottleneck_lab.course.proving.check", lambda *_: verdict)
    record = gpu.actions.grade("resnet-latency", what)
    assert (not record["problems"], record["outcome"]) == (right, outcome)
    assert record["phases_s"] == {"imports": 0.6, "learner": 0.4}
    json.dumps(record)


def test_a_submission_is_captured_where_a_learner_would_have_it(gpu, monkeypatch, tmp_path):
    def profile_workload(workload, tool, out):
        assert (workload.lab.slug, workload.device, tool) == ("resnet-latency", "cuda", "torch")
        assert "CUDAGraph" in (workload.folder / "predict.py").read_text()
        trace = out / "trace.json.gz"
        trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))
        return trace

    monkeypatch.setattr("bottleneck_lab.capture.tools.profile_workload", profile_workload)
    monkeypatch.setattr("bottleneck_lab.workspace.dataset.data_folder", lambda _: None)
    monkeypatch.setattr("bottleneck_lab.load", lambda _: None)
    kept = gpu.actions.capture("resnet-latency", "solution", "torch", tmp_path / "kept")
    assert kept["file"] == "resnet-latency-solution-torch.json.gz"


def test_the_plan_says_when_each_step_would_be_done_and_what_fits_the_budget(gpu, tmp_path):
    state = gpu.State(tmp_path)
    state.add("tests", {"problems": []})
    record = {
        "date": "2026-11-26",
        "steps": {
            "grade:roofline:starter": {"problems": [], "seconds": 50.0},
            "benchmark": {"problems": ["boom"], "seconds": 1.0},
        },
    }
    older = {"date": "2026-01-01", "steps": {"grade:roofline:starter": {"problems": []}}}
    steps = {
        "grade:roofline:starter": "",
        "capture:x:starter:nsys": "no nsys",
        "benchmark": "",
        "tests": "",
    }
    assert gpu.forecast.describe_plan(steps, state, [older, record], 60.0).splitlines() == [
        " 0:50    50 s  grade:roofline:starter",
        "    -    15 s  capture:x:starter:nsys no nsys",
        " 1:50    60 s  benchmark",
        " done    60 s  tests",
        "Still to do: 2, about 2 minutes. Of these, the first 1 fit the budget of 1 minutes.",
    ]


def test_programs_of_the_case_library_are_planned_where_one_gpu_shows_their_cause(gpu):
    steps = gpu.plan.plan_steps(gpu.plan.gpu_labs(), [], gpu_count=1)
    assert steps["case:bird-calls"] == ""
    assert steps["case:wind-farms"] == "needs what only the modelled machine has"


def test_a_recorded_case_stands_beside_what_was_modelled(gpu, tmp_path, monkeypatch):
    def measure(_program, _spec, top, trace):
        assert top.name == "checkpoints"
        trace.write_text('{"traceEvents": []}')
        return {"as_it_is": 12.0, "without": 10.0, "gain": 1.2}

    monkeypatch.setattr("scripts.cases.on_gpu.measure", measure)
    monkeypatch.setattr("bottleneck_lab.load", lambda _: None)
    row = gpu.actions.do_step("case:bird-calls", tmp_path / "kept")
    assert row["file"] == "case-bird-calls.json.gz"
    assert row["measured"]["gain"] == 1.2
    assert row["modelled"]["gain"] > 1.15


def test_where_no_record_says_how_long_a_check_takes_the_plan_has_what_was_calculated(gpu):
    assert gpu.forecast.expected_s("grade:past-the-plateau:solution", []) == 60
    assert gpu.forecast.expected_s("grade:past-the-plateau:variant threads", []) == 40
    on_one_gpu = {lab.slug for lab in gpu.plan.gpu_labs()} - {"ddp-scaling"}
    assert gpu.forecast.CHECKS_S.keys() == on_one_gpu


def test_steps_come_in_the_order_of_their_worth(gpu):
    steps = [*gpu.plan.plan_steps(gpu.plan.gpu_labs(), ["torch", "ncu"], 1)]
    assert steps[0] == "data"
    assert steps[1].endswith(":solution")
    assert steps[-1] == "exploits"
    first = {
        form: next(n for n, step in enumerate(steps) if form in step)
        for form in (":starter", ":torch", "variant", ":ncu")
    }
    assert sorted(first, key=first.get) == [":starter", ":torch", "variant", ":ncu"]


def test_a_cut_trace_keeps_the_device_work_of_its_steps_and_no_host_name(gpu):
    events = [
        {**event(f"ProfilerStep#{n}", 10.0 * n, "user_annotation"), "dur": 10.0} for n in range(5)
    ]
    events += [
        event("launch", 28.0, "cuda_runtime", correlation=1),
        event("late kernel", 41.0, "kernel", correlation=1),
    ]
    events += [
        event("launch", 31.0, "cuda_runtime", correlation=2),
        event("other kernel", 33.0, "kernel", correlation=2),
    ]
    events += [
        {**event(f"ProfilerStep#{n}", 10.0 * n + 1, "gpu_user_annotation"), "dur": 9.0}
        for n in range(5)
    ]
    events.append({"ph": "M", "name": "process_name", "ts": 0, "args": {}})
    found = gpu.captures.cut(
        {"traceEvents": events, "host_name": "secret", "schemaVersion": 1}, steps=3
    )
    names = [row["name"] for row in found["traceEvents"]]
    assert names == [
        "ProfilerStep#0",
        "ProfilerStep#1",
        "ProfilerStep#2",
        "launch",
        "late kernel",
        "process_name",
    ]
    assert "secret" not in json.dumps(found)
    assert found["schemaVersion"] == 1


def test_a_cut_trace_keeps_the_rows_of_a_device_that_nothing_on_the_host_launched(gpu):
    events = [
        {**event(f"ProfilerStep#{n}", 10.0 * n, "user_annotation"), "dur": 10.0} for n in range(5)
    ]
    events += [
        event("step of the fed device", 12.0, "kernel", correlation=7),
        event("one without a number", 22.0, "gpu_memcpy"),
        event("after the kept steps", 42.0, "kernel", correlation=8),
    ]
    kept = gpu.captures.cut({"traceEvents": events}, steps=3)["traceEvents"]
    assert [row["name"] for row in kept if not row["name"].startswith("ProfilerStep")] == [
        "step of the fed device",
        "one without a number",
    ]


def test_of_a_capture_of_many_launches_fewer_steps_are_kept(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr("bottleneck_lab.load", lambda _: None)
    monkeypatch.setattr(gpu.captures, "MAX_FILE_BYTES", 1200)
    events = [
        {**event(f"ProfilerStep#{n}", 10.0 * n, "user_annotation"), "dur": 10.0} for n in range(5)
    ]
    events += [event(f"{n * 7919 % 1009:x}", 0.1 * n) for n in range(500)]
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    kept = gpu.captures.keep(trace, tmp_path / "kept")
    found = json.loads(gzip.decompress((tmp_path / kept["file"]).read_bytes()))["traceEvents"]
    assert kept["bytes"] <= 1200
    assert [row["name"] for row in found if row["cat"] == "user_annotation"] == ["ProfilerStep#0"]


def test_ncu_s_table_loses_the_names_of_host_and_process(gpu):
    text = (
        '==PROF== done\n"ID","Process ID","Process Name","Host Name","Kernel'
        ' Name"\n"0","7","python","secret","gemm<a, b>"\n'
    )
    found = gpu.captures.without_names(text)
    assert (
        found
        == '"ID","Process ID","Process Name","Host Name","Kernel Name"\n"0","7","","","gemm<a,'
        ' b>"\n'
    )


def test_a_report_that_names_the_host_in_many_tables_is_read_and_not_kept(
    gpu, tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr("bottleneck_lab.load", read.append)
    report, into = tmp_path / "report.sqlite", tmp_path / "into"
    report.write_bytes(b"12345")
    into.mkdir()
    assert gpu.captures.keep(report, into / "lab-starter-nsys") == {
        "file": "report.sqlite",
        "bytes": 5,
    }
    assert read == [report]
    assert list(into.iterdir()) == []


def test_captures_are_published_within_limits(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.captures, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(gpu.captures, "MAX_TOTAL_BYTES", 150)
    made = tmp_path / "made"
    made.mkdir()
    for name, size in (
        ("a.json.gz", 90),
        ("b.csv", 50),
        ("c.json.gz", 60),
        ("d.csv", 101),
        ("e.sqlite", 1),
    ):
        (made / name).write_bytes(b"x" * size)
    manifest = gpu.captures.publish_captures(made, tmp_path / "out")
    assert [row["file"] for row in manifest["captures"]] == ["b.csv", "c.json.gz"]
    assert [row["file"] for row in manifest["left_out"]] == ["a.json.gz", "d.csv"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "b.csv",
        "c.json.gz",
        "manifest.json",
    ]


def test_the_list_of_what_never_ran_agrees_with_the_records(gpu):
    readme = (ROOT / "docs/measured/README.md").read_text()
    listed = readme.split(gpu.records.BEGIN)[1].split(gpu.records.END)[0].strip().splitlines()
    records = gpu.records.read_records(ROOT / "docs/measured")
    assert listed == gpu.records.never_run(gpu.plan.gpu_labs(), records), (
        "run `python scripts/gpu.py --write-never-run`"
    )


def test_counters_that_the_driver_refuses_are_asked_for_once(gpu, tree, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "installed_tools", lambda: ["torch", "ncu"])
    ran = []

    def runner(command, _limit_s):
        ran.append(command[command.index("--do") + 1] if "--do" in command else command[-1])
        return (
            gpu.Ran(1, "ncu: ERR_NVGPUCTRPERM")
            if ran[-1].endswith(":ncu")
            else gpu.Ran(0, said(""))
        )

    assert gpu.main([], runner=runner, root=tree) == gpu.OK
    assert sum(step.endswith(":ncu") for step in ran) == 1
    record = json.loads((tree / "docs/measured/h200.json").read_text())
    refused = {step for step, why in record["cannot"].items() if "ERR_NVGPUCTRPERM" in why}
    assert refused == {
        step
        for step in gpu.plan.plan_steps(gpu.plan.gpu_labs(), ["ncu"], 2)
        if step.endswith(":ncu") and "ddp" not in step
    }
    assert not any(step.endswith(":ncu") for step in record["steps"])
    assert "captures with `--tool ncu` on a GPU" in (tree / "docs/measured/README.md").read_text()
    ran.clear()
    assert gpu.main([], runner=runner, root=tree) == gpu.OK
    assert sum(step.endswith(":ncu") for step in ran) == 1, "another time it may be allowed"
