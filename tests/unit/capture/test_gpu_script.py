"""`make gpu` with a runner that runs nothing: what it plans, remembers, records and refuses."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def gpu():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "scripts" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_script"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    del sys.modules["gpu_script"]


@pytest.fixture
def tree(tmp_path, gpu, monkeypatch):
    """A checkout that may be written to, on a machine that claims a GPU."""
    monkeypatch.setattr("bottleneck_lab.capture.doctor.gpus", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(gpu, "installed_tools", lambda: ["torch"])
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    (tmp_path / "docs" / "measured" / "README.md").write_text((ROOT / "docs" / "measured" / "README.md").read_text())
    return tmp_path


def said(step):
    return json.dumps({"problems": [], "outcome": "PASS", "step": step})


def test_without_a_gpu_nothing_is_run_and_nothing_changes(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bottleneck_lab.capture.doctor.gpus", list)
    assert gpu.main([], runner=lambda *_: pytest.fail("ran"), root=tmp_path) == 4
    assert list(tmp_path.iterdir()) == []
    assert "no CUDA device" in capsys.readouterr().err


def test_every_starter_solution_and_variant_is_planned(gpu):
    steps = gpu.plan(gpu.gpu_labs(), ["torch", "ncu"])
    assert {"data", "tests", "grade:dataloader:starter", "grade:dataloader:solution"} <= set(steps)
    variants = [
        path.name
        for path in (ROOT / "tests/variants/dataloader").iterdir()
        if path.is_dir() and path.name[0] not in "._"
    ]
    assert {f"grade:dataloader:variant {name}" for name in variants} <= set(steps)
    assert "capture:dataloader:solution:ncu" in steps
    assert len(steps) == len(set(steps))


def test_a_run_that_was_cut_short_goes_on_where_it_stopped(gpu, tree):
    ran = []

    def runner(command, limit_s):
        ran.append(command)
        if len(ran) == 2:
            return gpu.Ran(None, "not done")
        return gpu.Ran(0, f"progress\n{said('x')}")

    assert gpu.main(["--only", "grade:dataloader", "--budget-s", "100"], runner=runner, root=tree) == gpu.LEFT
    assert gpu.main(["--only", "grade:dataloader", "--budget-s", "100"], runner=runner, root=tree) == gpu.OK
    steps = [command[command.index("--do") + 1] for command in ran]
    assert steps[1] == steps[2], "a step that the budget cut is run again"
    assert len(set(steps)) == len(steps) - 1
    record = json.loads((tree / "docs/measured/h200.json").read_text())
    assert record["steps"][steps[0]]["outcome"] == "PASS"
    assert "tests" in record["left"]
    readme = (tree / "docs/measured/README.md").read_text()
    assert "`dataloader` on" not in readme
    assert "`resnet-latency` on `cuda`: starter, solution, variants" in readme


@pytest.mark.parametrize(
    ("status", "output", "words"),
    [
        (1, "Traceback: boom", "boom"),
        (None, "not done after 900 s", "out of time"),
        (0, '{"problems": ["too slow"]}', "too slow"),
    ],
)
def test_what_goes_wrong_is_recorded_and_the_next_step_runs(gpu, tree, status, output, words):
    codes = iter([gpu.Ran(status, output)])
    done = gpu.main(
        ["--only", "grade:dataloader", "--budget-s", "1e6"],
        runner=lambda *_: next(codes, gpu.Ran(0, said(""))),
        root=tree,
    )
    assert done == gpu.WRONG
    steps = json.loads((tree / "docs/measured/h200.json").read_text())["steps"]
    problems = [row["problems"] for row in steps.values() if row["problems"]]
    assert len(problems) == 1
    assert words in problems[0][0]
    assert len(steps) > 3


def test_names_of_gpus_are_names_of_files(gpu):
    names = ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "../../etc"]
    assert [gpu.gpu_slug(name) for name in names] == ["h200", "a100-sxm4-80gb", "rtx-4090", "etc"]


def event(name, ts, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1.0, "args": args}


def test_a_cut_trace_keeps_the_device_work_of_its_steps_and_no_host_name(gpu):
    events = [{**event(f"ProfilerStep#{n}", 10.0 * n, "user_annotation"), "dur": 10.0} for n in range(5)]
    events += [
        event("launch", 28.0, "cuda_runtime", correlation=1),
        event("late kernel", 41.0, "kernel", correlation=1),
    ]
    events += [
        event("launch", 31.0, "cuda_runtime", correlation=2),
        event("other kernel", 33.0, "kernel", correlation=2),
    ]
    events.append({"ph": "M", "name": "process_name", "ts": 0, "args": {}})
    found = gpu.cut({"traceEvents": events, "host_name": "secret", "schemaVersion": 1}, steps=3)
    names = [row["name"] for row in found["traceEvents"]]
    assert names == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "launch", "late kernel", "process_name"]
    assert "secret" not in json.dumps(found)
    assert found["schemaVersion"] == 1


def test_ncu_s_table_loses_the_names_of_host_and_process(gpu):
    text = '==PROF== done\n"ID","Process ID","Process Name","Host Name","Kernel Name"\n"0","7","python","secret","gemm<a, b>"\n'
    found = gpu.without_names(text)
    assert found == '"ID","Process ID","Process Name","Host Name","Kernel Name"\n"0","7","","","gemm<a, b>"\n'


def test_captures_are_published_within_limits(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(gpu, "MAX_TOTAL_BYTES", 150)
    made = tmp_path / "made"
    made.mkdir()
    for name, size in (("a.json.gz", 90), ("b.csv", 50), ("c.json.gz", 60), ("d.csv", 101), ("e.sqlite", 1)):
        (made / name).write_bytes(b"x" * size)
    manifest = gpu.publish_captures(made, tmp_path / "out")
    assert [row["file"] for row in manifest["captures"]] == ["b.csv", "c.json.gz"]
    assert [row["file"] for row in manifest["left_out"]] == ["a.json.gz", "d.csv"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.csv", "c.json.gz", "manifest.json"]


def test_the_list_of_what_never_ran_agrees_with_the_records(gpu):
    readme = (ROOT / "docs/measured/README.md").read_text()
    listed = readme.split(gpu._BEGIN)[1].split(gpu._END)[0].strip().splitlines()
    records = gpu.read_records(ROOT / "docs/measured")
    assert listed == gpu.never_run(gpu.gpu_labs(), records), "run `python scripts/gpu.py --write-never-run`"
