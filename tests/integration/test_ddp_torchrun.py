"""The path for real GPUs, on the CPU with gloo: that it works, not how fast. And the shipped script
alone, as a learner starts it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck_lab.catalog import Lab, LabSpec
from bottleneck_lab.declared import read_toml
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.data_parallel.check_gpu import differs, measure_on_gpus
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, ModuleCost, StandIn
from bottleneck_lab.measure.kinds.data_parallel.session_gpu import launch
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.settings import Settings

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
LAB = ROOT / "labs" / "ddp-scaling"
RECIPE = """
import torch


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 64))


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
COSTS = CostTable(
    "test",
    "made up",
    1.0,
    2,
    8,
    64,
    StandIn(8, (3, 8, 8)),
    [ModuleCost("1", 3 * 8 * 8 * 64 + 64, 1.0, 2.0)],
    shape=(3, 8, 8),
)


@pytest.fixture
def context(tmp_path):
    import msgspec

    lab = Lab(
        "ddp-scaling",
        "advanced",
        LAB,
        ROOT / "solutions" / "ddp-scaling",
        msgspec.convert(read_toml(LAB / "lab.toml"), LabSpec),
    )
    with Janitor() as janitor:
        yield Context(
            lab,
            "cuda",
            Settings(),
            tmp_path,
            tmp_path,
            tmp_path,
            janitor,
            lambda _doing, _share: None,
        )


def launched(context, script: Path, name: str, world: int = 2):
    folder = context.janitor.folder / f"code-{name}"
    folder.mkdir()
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "train.py").write_text(script.read_text())
    scratch = context.janitor.folder / name
    return launch(
        context, folder, COSTS, world, 5, warmup=2, steps=4, scratch=scratch, backend="gloo"
    )


def test_solution_and_starter_train_the_same_under_torchrun(context):
    shipped = launched(context, LAB / "train.py", "shipped")
    fixed = launched(context, ROOT / "solutions" / "ddp-scaling" / "train.py", "fixed")
    assert fixed.step_s > 0
    assert fixed.ranks_agree
    assert differs(fixed, shipped) is None


@pytest.mark.slow
def test_skipped_synchronisation_is_told_under_torchrun(context):
    run = launched(context, ROOT / "tests" / "mutants" / "ddp-scaling" / "skip_sync.py", "skip")
    assert differs(run, run) == "The 2 ranks end with different parameters."


def test_a_job_that_fails_is_the_script_s_fault(context):
    broken = context.janitor.folder / "broken.py"
    broken.write_text("def wrap(model):\n    raise RuntimeError('no such layer')\n")
    with pytest.raises(LearnerFault, match="RuntimeError: no such layer") as caught:
        launched(context, broken, "broken", world=1)
    assert caught.value.reason == "crashed"


LIARS = {
    "speaks before it has trained": (
        "tampered",
        """
import gc, socket
for thing in gc.get_objects():
    if isinstance(thing, socket.socket) and thing.family == socket.AF_UNIX:
        thing.sendall(bytes(32))
""",
    ),
    "leaves a link": (
        "wrong output",
        """
import json, os, sys
if os.environ["RANK"] == "0":
    os.symlink("elsewhere", json.loads(sys.argv[1])["moved"])
""",
    ),
}


@pytest.mark.parametrize(
    "lie", ["speaks before it has trained", pytest.param("leaves a link", marks=pytest.mark.slow)]
)
def test_a_job_that_speaks_for_its_training_is_found_out(context, lie):
    reason, code = LIARS[lie]
    script = context.janitor.folder / "liar.py"
    honest = (LAB / "train.py").read_text().partition('\nif __name__ == "__main__":')[0]
    lies = code.strip().replace("\n", "\n    ")
    script.write_text(
        f"{honest}\n_train = train\n\n\ndef train(ddp, optimizer, batches):\n    _train(ddp,"
        f" optimizer, batches)\n    {lies}\n"
    )
    with pytest.raises(LearnerFault) as caught:
        launched(context, script, "liar", world=1)
    assert caught.value.reason == reason


def test_what_is_timed_is_known_to_no_rank_before(torch):
    """The labels after the warm-up follow from what the verifier hands out, and the same for the
    same.
    """
    from bottleneck_lab.measure.kinds.data_parallel.child_gpu import batches
    from bottleneck_lab.measure.kinds.data_parallel.protocol import CudaJob

    shape = {"samples": 8, "shape": (3, 8, 8), "classes": 1000, "tokens": 0, "micro_batches": 1}
    job = CudaJob(2, "gloo", "", "", "", "", seed=7, warmup=2, steps=4, **shape)
    first, again, other = (
        [part[0] for part in batches(job, 0, torch.device("cpu"), lambda secret=secret: secret)]
        for secret in (1, 1, 2)
    )
    for step in range(4):
        assert torch.equal(first[step][1], again[step][1])
        assert torch.equal(first[step][1], other[step][1]) == (step < 2)
        assert torch.equal(first[step][0], other[step][0]) == (step < 2)


def test_too_few_gpus_are_the_machine_s_fault(context, monkeypatch):
    monkeypatch.setattr("bottleneck_lab.measure.kinds.data_parallel.check_gpu.gpu_count", lambda: 1)
    with pytest.raises(MachineError, match="at least two GPUs"):
        measure_on_gpus(context)


def test_the_shipped_script_runs_alone():
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=LAB,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": "/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "step 3: loss" in done.stdout
    assert "1 rank:" in done.stdout
