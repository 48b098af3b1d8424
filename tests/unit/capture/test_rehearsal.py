"""The device that is not there: what stands for torch.cuda, and `make gpu` on it from start to end.
No figure of it means anything, and none is kept.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.capture.devices import choose_device, gpus
from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.measure import verifier

from ...modules import load_file
from ...pretend import on_device, pretend_gpu

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.long

SMOOTH = """
import torch


def load(device):
    stream = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def smooth(trace, width):
        begin.record()
        with torch.cuda.stream(stream):
            values = torch.from_numpy(trace).pin_memory().to(device, non_blocking=True)
            means = WAY
        end.record()
        torch.cuda.synchronize()
        assert begin.elapsed_time(end) > 0
        return means.cpu().numpy()

    return smooth
"""
SLOW = "torch.cat([windows.mean(-1) for windows in values.unfold(0, width, 1).split(2000)])"
FAST = "values.unfold(0, width, 1).mean(-1)"


@pytest.fixture
def pretend():
    with pretend_gpu.installed():
        yield


@pytest.fixture
def lab(tmp_path, monkeypatch, pretend):
    """The example lab on `cuda`, on a machine that rehearses."""
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(ROOT / "docs" / "example"))
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # a capture runs in no worker: threads that wait for a busy core would take most of it
    load_labs.cache_clear()
    found = find_lab("running-mean")
    path, solution = tmp_path / "lab", tmp_path / "solution"
    shutil.copytree(found.path, path)
    shutil.copytree(found.solution, solution)
    (path / "smooth.py").write_text(SMOOTH.replace("WAY", SLOW))
    (solution / "smooth.py").write_text(SMOOTH.replace("WAY", FAST))
    spec = msgspec.structs.replace(found.spec, devices={"cuda": found.spec.devices["cpu"]})
    yield msgspec.structs.replace(found, path=path, solution=solution, spec=spec)
    load_labs.cache_clear()


def check(lab, folder, tmp_path):
    return verifier.check_lab(lab, folder, "cuda", data=tmp_path)


def test_a_rehearsal_is_no_verdict_and_has_no_figure(lab, tmp_path):
    assert (gpus(), choose_device(lab, None)) == ([pretend_gpu.NAME] * 2, "cuda")
    verdict = check(lab, lab.solution, tmp_path)
    assert (verdict.outcome, verdict.summary) == ("INCONCLUSIVE", pretend_gpu.REHEARSED)
    assert verdict.environment["gpu"] == pretend_gpu.NAME
    assert [result.holds for result in verdict.criteria] == [None] * len(verdict.criteria)
    assert not any(result.value or result.low or result.high for result in verdict.criteria)
    assert not verdict.measurement
    assert not verdict.notes
    assert not verdict.prediction


def test_afterwards_everything_is_as_it_was_in_a_process_that_had_imported_nothing():
    leave = (
        "from tests.pretend import pretend_gpu\n"
        "with pretend_gpu.installed(): pass\n"
        "from pretend_gpu.replacements import PACKAGE\n"
        "import sys\n"
        "left = [(module, name) for module in PACKAGE for name, value in vars(sys.modules[module])"
        ".items() if getattr(value, '__module__', '') == 'pretend_gpu.replacements']\n"
        "assert not left, left\n"
        "from bottleneck_lab.grading import attest, verdict\n"
        "from bottleneck_lab.measure.kinds.http_server import check\n"
        "assert (check.TRIES, attest.SCHEMA, verdict.SCHEMA) == (3, 1, 1)\n"
    )
    subprocess.run([sys.executable, "-c", leave], cwd=ROOT, check=True)


def test_what_is_wrong_whatever_the_times_are_is_told(lab, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "smooth.py").write_text("import torch\nload = torch.cuda.no_such_thing\n")
    verdict = check(lab, wrong, tmp_path)
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.summary.startswith(f"{pretend_gpu.REHEARSED} It ended early: ")
    assert "no_such_thing" in verdict.summary


@pytest.mark.slow  # tests/integration/test_rehearsal.py goes through labs of each kind in every run
def test_make_gpu_runs_from_start_to_end_and_records_nothing(lab, tmp_path, monkeypatch, capsys):
    gpu, root, docs = (
        load_file(ROOT / "scripts" / "gpu.py", "gpu_script"),
        tmp_path / "root",
        Path("docs/measured/README.md"),
    )
    (root / docs).parent.mkdir(parents=True)
    shutil.copy(ROOT / docs, root / docs)
    monkeypatch.setattr(gpu.plan, "gpu_labs", lambda: [lab])
    monkeypatch.setattr(gpu, "installed_tools", lambda: ["torch"])

    def here(command, _limit_s):
        if "--do" not in command:
            return gpu.Ran(0, "{}")
        step, into = (command[command.index(option) + 1] for option in ("--do", "--into"))
        return gpu.Ran(0, json.dumps(gpu.actions.do_step(step, Path(into))))

    assert gpu.main([], runner=here, root=root) == gpu.OK, capsys.readouterr().out
    steps = json.loads((root / "build" / "gpu" / "rehearsal-no-gpu" / "state.json").read_text())
    submissions = ("starter", "solution")
    kinds = {
        *(f"grade:{lab.slug}:{what}" for what in submissions),
        *(f"capture:{lab.slug}:{what}:torch" for what in submissions),
    }
    assert kinds | {"data"} == set(steps)
    assert all(
        steps[step]["outcome"] == "INCONCLUSIVE" for step in kinds if step.startswith("grade:")
    )
    assert "nothing is recorded" in capsys.readouterr().out
    assert [path.name for path in (root / "docs" / "measured").iterdir()] == ["README.md"]
    assert (root / docs).read_text() == (ROOT / docs).read_text()
    assert not (root / "datasets").exists()


def test_what_needs_the_real_thing_is_not_tried(pretend):
    gpu = load_file(ROOT / "scripts" / "gpu.py", "gpu_script")
    labs = gpu.plan.gpu_labs()
    plan = gpu.plan.plan_steps(labs, ["torch", "ncu", "memory"], gpu_count=2)
    left = {step: why for step, why in plan.items() if why}
    assert {f"grade:{lab.slug}:starter" for lab in labs} <= set(plan) - set(left)
    assert {
        f"capture:{lab.slug}:{what}:torch"
        for lab in labs
        for what in gpu.plan.captured(lab, "torch")
    } <= set(plan) - set(left)
    assert not any(
        step.startswith(("capture:timing-pitfalls:", "capture:perf-gate:")) for step in plan
    )
    assert {"tests", "exploits", "benchmark"} <= set(left)
    assert left["grade:resnet-latency:variant compiled"] == "needs a GPU to compile for"
    assert (
        left["grade:fused-attention:variant triton"] == "needs a GPU to launch Triton's kernels on"
    )
    assert {step.split(":")[1] for step in left if step.endswith(":ncu")} == {
        "ddp-scaling",
        "fused-attention",
    }
    memory = [
        f"capture:{lab.slug}:{what}:memory"
        for lab in labs
        for what in gpu.plan.captured(lab, "memory")
    ]
    assert len(memory) > 10
    assert set(memory) <= set(left)
    assert not [
        step
        for step in plan
        if step.startswith("capture:inference-server") and not step.endswith(":torch")
    ]


@pytest.fixture
def torch(monkeypatch):
    """This process's torch with the device in it, until the test ends."""
    with on_device(monkeypatch) as torch:
        yield torch


def test_a_device_may_be_named_with_its_number(torch):
    assert torch.ones(2, device=torch.device("cuda", 1)).tolist() == [1, 1]


def test_what_goes_to_the_device_is_a_copy_and_its_operators_run(torch):
    host = torch.arange(4.0)
    there = host.to("cuda")
    there += 1
    assert host.tolist() == [0, 1, 2, 3]
    assert (there + torch.ones(4, device="cuda")).cpu().tolist() == [2, 3, 4, 5]
    layer = torch.nn.Linear(4, 2).cuda()
    assert layer(there).shape == (2,)


def test_a_product_that_no_host_has_time_for_is_left_out(torch):
    large = torch.ones(1, device="cuda").expand(8192, 8192)
    assert (large @ large).abs().sum() == 0
    small = torch.ones(4, 4, device="cuda")
    assert (small @ small).tolist() == [[4.0] * 4] * 4


def test_a_profiler_records_the_host_alone(torch):
    from pretend_gpu.device import Profile

    activity = torch.profiler.ProfilerActivity
    assert Profile(activities=[activity.CPU, activity.CUDA]).activities == {activity.CPU}


def test_a_thread_has_the_device_as_well(tmp_path):
    """As that of a DataLoader which pins batches; in a process of its own, whose torch is changed
    for good.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, threading, torch\nfrom torch.utils.data import DataLoader\nimport"
        " helper\nbatches = list(DataLoader(torch.arange(4.0), 2, pin_memory=True,"
        " num_workers=1))\nwork = threading.Thread(target=lambda:"
        " print(batches[1].to('cuda').tolist(), sys.argv[1:]))\nwork.start(), work.join()\n"
    )
    (tmp_path / "helper.py").touch()
    command = [sys.executable, "-u", str(pretend_gpu.HERE / "run.py"), str(script), "--steps", "2"]
    environment = {**os.environ, pretend_gpu.VARIABLE: str(pretend_gpu.HERE)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "[2.0, 3.0] ['--steps', '2']\n", done.stderr


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("nsys", ["profile", "--trace=cuda,vulkan", "--output=x", "true"]),
        ("nsys", ["profile", "--capture-all=true", "--output=x", "true"]),
        ("ncu", ["--clock-control", "fast", "--export", "x", "true"]),
        ("compute-sanitizer", ["--tool", "memcheck", "--logfile", "x", "true"]),
    ],
)
def test_a_stand_in_refuses_what_its_tool_would(tool, words, tmp_path):
    from pretend_gpu.replacements import TOOLS

    done = subprocess.run(
        [TOOLS[tool], *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr
    assert not list(tmp_path.iterdir())


def test_a_recorded_graph_runs_again_on_what_its_input_holds_then(torch):
    source, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (source * 2).view(3, 1).sum(1) + 1
    source.copy_(torch.tensor([5.0, 6.0, 7.0]))
    assert result.tolist() == [3, 3, 3]
    graph.replay()
    assert result.tolist() == [11, 13, 15]


def test_the_queue_takes_its_time_and_who_waits_waits_for_it(torch):
    begin, end, x = (
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
        torch.ones(2, device="cuda"),
    )
    torch.cuda.synchronize()
    began = time.monotonic()
    begin.record()
    for _ in range(500):
        x = x + 1
    end.record()
    torch.cuda.synchronize()
    assert time.monotonic() - began >= 500 * 20e-6
    assert begin.elapsed_time(end) >= 10
    assert end.query()
