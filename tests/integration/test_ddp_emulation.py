"""Real processes with the real reducer on the emulated fabric, over a model small enough to train
in a second.

Most scripts run one after the other in one worker, as a check's runs do: what a hostile one leaves
behind would spoil those after it.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.course.proving import check
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.data_parallel import session
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    CostTable,
    ModuleCost,
    SmallModel,
    StandIn,
    load_costs,
    load_fabric,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.moments import Moments
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Violation
from bottleneck_lab.measure.kinds.data_parallel.judging import same_training
from bottleneck_lab.measure.kinds.data_parallel.protocol import EventKind
from bottleneck_lab.measure.kinds.data_parallel.session import Secret, crew
from bottleneck_lab.measure.kinds.data_parallel.sweep import sweep
from bottleneck_lab.measure.kinds.data_parallel.trace import write_traces
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.sandbox import visible
from bottleneck_lab.measure.sandbox.bubblewrap import lets_ranks_part
from bottleneck_lab.measure.sandbox.cgroup import Cgroup
from bottleneck_lab.measure.sandbox.janitor import Janitor

from ..exploits.hostile import WORKSPACES, find
from ..modules import load_file
from ..processes import started_since

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
VARIANTS = ROOT / "tests" / "variants" / "ddp-scaling"
MUTANTS = ROOT / "tests" / "mutants" / "ddp-scaling"
RECIPE = """
import torch
from torch import nn
from torch.nn.functional import relu


class Small(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(8 * width, 64)
        self.c3 = nn.Conv2d(2 * width, 8 * width, 3, 2)
        self.c2 = nn.Conv2d(width, 2 * width, 3, 2)
        self.norm = nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm.weight)  # as is: c1 had no gradients
        self.c1 = nn.Conv2d(3, width, 3, 2)

    def forward(self, images):
        return self.head(relu(self.c3(relu(self.c2(self.norm(self.c1(images)))))).mean(dim=(2, 3)))


def make_model():
    torch.manual_seed(0)
    return Small(64)


def make_small_model():
    torch.manual_seed(0)
    return Small(4)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
"""


def sizes(width: int) -> dict[str, int]:
    """Return the elements of each module of the model."""
    return {
        "head": 8 * width * 64 + 64,
        "c3": 2 * width * 8 * width * 9 + 8 * width,
        "c2": width * 2 * width * 9 + 2 * width,
        "norm": 2 * width,
        "c1": 3 * width * 9 + width,
    }


IMAGES = StandIn(samples=4, shape=(3, 32, 32))
COSTS = CostTable(
    gpu="test, modelled",
    source="made up",
    optimizer_us=50.0,
    micro_batches=2,
    samples=100,
    classes=64,
    stand_in=IMAGES,
    called="images",
    modules=[ModuleCost(name, elements, 10.0, 20.0) for name, elements in sizes(64).items()],
    small=SmallModel(sizes(4), smallest=4, stand_in=IMAGES),
)
SECRET = Secret(3, 11)


SHIPPED = ROOT / "labs" / "ddp-scaling" / "train.py"
SOLUTION = ROOT / "solutions" / "ddp-scaling" / "train.py"
MOST_RUNS = 100
LARGE = 1 << 16
"""Elements: gradients, not a loss or a flag."""
TORCH_BYTES = 100 << 20
"""A process that has imported torch is larger, and Python alone is not."""


def code(script: Path, folder: Path) -> Path:
    """A folder with a script and the small model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "train.py").write_text(script.read_text())
    return folder


def emulated(script: Path, tmp_path: Path, world: int = 2):
    """A script's run in a worker of its own."""
    with Janitor() as janitor:
        folder, scratch = code(script, tmp_path / "code"), tmp_path / "scratch"
        with crew(folder, "train.py", COSTS, [world], scratch, janitor) as ranks:
            return ranks.run(SECRET)


def open_descriptors() -> int:
    """How many there are: their numbers are used again."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="module")
def earlier():
    """Children of this process that no test here started."""
    return psutil.Process().children()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, earlier):
    """Runs a script on two ranks, each time in the same worker; none of its processes is left
    afterwards.
    """
    home, descriptors = tmp_path_factory.mktemp("two-ranks"), open_descriptors()
    folder, worlds = code(SHIPPED, home / "code"), [2] * MOST_RUNS
    with (
        Janitor() as janitor,
        crew(folder, "train.py", COSTS, worlds, home / "scratch", janitor) as ranks,
    ):

        def run(script: Path, secret: Secret = SECRET, *progress: Callable[[float], None]):
            code(script, home / "scratch" / "code")
            return ranks.run(secret, *progress)

        yield run
    assert not started_since(earlier)
    assert open_descriptors() <= descriptors


@pytest.fixture(scope="module")
def reference(two_ranks):
    return two_ranks(SHIPPED)


@pytest.fixture(scope="module")
def solution(two_ranks):
    return two_ranks(SOLUTION)


def assert_equal(run, other):
    """To the last bit: when everything ran, and what came of it."""
    assert [clock.spans for clock in run.clocks] == [clock.spans for clock in other.clocks]
    assert all(
        np.array_equal(mine, right)
        for mine, right in zip(run.parameters, other.parameters, strict=True)
    )


def test_the_shipped_script_sends_everything_after_backward_in_one_piece(reference):
    last = reference.clocks[0].step - 1
    sent = [
        span
        for span in reference.clocks[0].spans
        if span.name == "all-reduce" and span.step == last
    ]
    assert [span.elements for span in sent if span.elements >= LARGE] == [COSTS.elements] * 2
    assert reference.overlap_share == 0
    assert reference.reduced_bytes == [2 * 4 * COSTS.elements] * 3


def test_the_solution_trains_the_same_and_hides_communication(reference, solution):
    assert same_training(solution, reference) is None
    assert solution.reduced_bytes == [4 * COSTS.elements] * 3
    assert solution.step_ms < reference.step_ms


def test_another_worker_gives_the_same_and_nothing_of_a_run_on_more_ranks_stays(
    reference, solution, tmp_path
):
    folder, descriptors = code(SHIPPED, tmp_path / "code"), open_descriptors()
    scratch, worlds = tmp_path / "scratch", [2, 3, 2]
    with (
        Janitor() as janitor,
        crew(folder, "train.py", COSTS, worlds, scratch, janitor) as ranks,
    ):
        again = ranks.run(SECRET)
        code(SOLUTION, scratch / "code")
        many, few = ranks.run(Secret(4, 5)), ranks.run(SECRET)
    assert again.step_ms == pytest.approx(
        reference.step_ms, rel=1e-12
    )  # sums of floats, in whatever order they came
    assert_equal(again, reference)
    assert (many.world, few.world) == (3, 2)
    # What holds up the host in the warm-up moves all later times, and so the last bit of a step's.
    assert few.step_ms == pytest.approx(solution.step_ms)
    assert all(
        np.array_equal(mine, right)
        for mine, right in zip(few.parameters, solution.parameters, strict=True)
    )
    assert open_descriptors() <= descriptors


def test_replaying_a_run_at_its_own_size_gives_its_own_time(solution):
    curve = sweep({2: solution}, [1, 2, 64, 4096])
    replayed = sweep({2: solution}, [2], algorithm="tree").points[0]
    assert replayed.step_ms == pytest.approx(solution.step_ms, rel=1e-3)
    assert [point.source for point in curve.points] == [
        "replayed",
        "reducer",
        "replayed",
        "replayed",
    ]
    assert curve.points[-1].efficiency < curve.points[1].efficiency <= 1
    assert any("not modelled" in line for line in curve.assumptions)


def test_traces_of_all_ranks_are_read_as_communication_left_exposed(reference, tmp_path):
    from bottleneck_lab.analysis.summary import summarise
    from bottleneck_lab.trace import load, merge_ranks

    files = write_traces(reference, tmp_path / "trace.json.gz")
    summary = summarise(merge_ranks([load(file) for file in files]))
    assert summary.emulated
    assert summary.ranks == [0, 1]
    assert summary.devices[0].communication_ns > 0
    assert summary.devices[0].exposed_communication_ns == pytest.approx(
        summary.devices[0].communication_ns, rel=1e-3
    )


def test_a_recording_of_hosts_that_run_ahead_holds_the_steps_that_a_check_times(
    two_ranks, solution, tmp_path
):
    from bottleneck_lab.analysis.summary import summarise
    from bottleneck_lab.trace import load, merge_ranks

    run = two_ranks(SOLUTION, Secret(4, 11, recorded=True))
    summary = summarise(
        merge_ranks([load(file) for file in write_traces(run, tmp_path / "t.json.gz")])
    )
    assert not summary.quality.missing
    assert sorted(step.rank for step in summary.steps) == [0, 0, 1, 1]
    assert summary.step_mean_ns / 1e6 == pytest.approx(solution.step_ms, rel=0.05)


def test_stalls_of_the_host_are_charged(tmp_path, two_ranks, solution):
    script = tmp_path / "stalls.py"
    text = SOLUTION.read_text()
    stall = (
        "            import time; time.sleep(0.02); loss.cpu(); print(loss.item())\n           "
        " running"
    )
    script.write_text(text.replace("            running", stall, 1))
    run = two_ranks(script)
    names = {span.name for span in run.clocks[0].spans if span.stream == "host"}
    assert {"wait for the device", "print", "host work"} <= names
    assert solution.step_ms < 40 < run.step_ms


STALLS = {
    "read a value": ("loss.item()", "wait for the device"),
    "print": ("print('loss')", "print"),
    "a Python loop": ("sum(i * i for i in range(2_000_000))", "host work"),
    "NumPy": ("[numpy.sort(numpy.sin(numpy.arange(1_000_000.0))) for _ in range(3)]", "host work"),
}


def test_each_kind_of_stall_shows_as_what_it_is(tmp_path, two_ranks):
    text = SOLUTION.read_text().replace("LOG_EVERY = 20", "LOG_EVERY = 1000")
    cases = "".join(
        f"            if (step, number) == ({step}, 1):\n                {code}\n"
        for step, (code, _) in enumerate(STALLS.values(), start=2)
    )
    script = tmp_path / "stalls.py"
    script.write_text(
        "import time\nimport numpy\n"
        + text.replace("            running +=", f"{cases}            running +=", 1)
    )
    run = two_ranks(script, Secret(3 + len(STALLS), 11))
    for clock in run.clocks:
        stalls = [
            {span.name for span in clock.spans if span.stream == "host" and span.step == step}
            for step in range(clock.step)
        ]
        assert stalls[2:-1] == [{name} for _, name in STALLS.values()]
        assert not stalls[-1]


IN_PARTS = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    model, parameters = ddp.module, list(ddp.parameters())
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            features = relu(model.c3(relu(model.c2(model.norm(model.c1(images))))))
            loss = cross_entropy(model.head(features.mean(dim=(2, 3))), labels)
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients):
                old = parameter.grad
                parameter.grad = gradient if old is None else old.add_(gradient)
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()
"""


def test_a_script_that_calls_parts_of_the_model_pays_for_its_own_work_alone(tmp_path, two_ranks):
    script = tmp_path / "in_parts.py"
    script.write_text(IN_PARTS)
    spans = two_ranks(script).clocks[0].spans
    assert "wait for the device" not in {span.name for span in spans}


def test_small_operations_of_many_steps_are_not_reported(tmp_path):
    script, secret = tmp_path / "in_parts.py", Secret(3, 11)
    script.write_text(IN_PARTS)
    folder, scratch = code(script, tmp_path / "code"), tmp_path / "scratch"
    with (
        Janitor() as janitor,
        crew(folder, "train.py", COSTS, [2], scratch, janitor, many_steps=True) as ranks,
    ):
        run = ranks.run(secret)
    assert len(run.trained_with) == secret.steps
    assert not [event for event in run.events if event.kind is EventKind.DEVICE]


BROKEN_RULES = {
    "skip_sync": ("wrong output", "0% of the gradients"),
    "shrink_batch": ("wrong output", "on 1 of a micro-batch's 4 images"),
    "skip_micro_batches": ("wrong output", "ran forward 1 times"),
    "fewer_gradients": ("wrong output", "of the gradients had been reduced"),
    "first_micro_batch": ("wrong output", "0% of the gradients"),
    "out_of_order": ("wrong output", "reported backward through c1 where the graph has c3 next"),
    "powersgd": ("wrong output", "of the gradients had been reduced"),
    "local_sgd": ("wrong output", "0% of the gradients"),
    "forged_group": ("wrong output", "0% of the gradients"),
    "patched_clock": ("wrong output", "ran forward 0 times"),
    "early_sending": ("tampered", "'s backward had only computed"),
    "wrong_message": ("tampered", "not an event of the emulation"),
    "dead_rank": ("crashed", "Rank 2 ended"),
    "asks_and_leaves": ("crashed", "ended before its training was over"),
    "never_reads": ("timed out", "does not read the data it asked for"),
    "hung_rank": ("timed out", "Rank 1 did not reach"),
    "hoards_memory": ("crashed", "more than 2 GiB of memory"),
    "lost_collective": ("crashed", "is in"),
    "walks_frames": ("wrong output", "that `train` is given 0 times; each batch needs one call"),
    "hostile_pickle": ("tampered", "not an event of the emulation"),
    "padded_gradients": ("wrong output", "200% of the gradients had been reduced"),
    "own_optimizer": ("wrong output", "until `step` of the optimizer that `train` is given is"),
    "one_step_more": ("wrong output", "4 optimizer steps, more than there were batches"),
    "floods_events": ("tampered", "more than 100,000 events"),
    "gathered_gradients": ("wrong output", "0% of the gradients had been reduced"),
}


def hostile_or_wrong(name: str) -> Path:
    """The code of an exploit, which needs a sandbox, or of a mutant."""
    mutant = MUTANTS / f"{name}.py"
    return mutant if mutant.is_file() else find("ddp-scaling", name).code


def test_every_exploit_and_mutant_is_tried():
    judged_apart = {
        "second_voice",
        "garbage_payload",
        "slow_on_four",
        "told_afterwards",
        "padded_overlap",
        "not_a_number",
        *APART,
    }
    written = [*MUTANTS.glob("*.py"), *(WORKSPACES / "ddp-scaling").glob("*.py")]
    assert sorted(path.stem for path in written) == sorted({*BROKEN_RULES, *judged_apart})


@pytest.mark.parametrize("name", sorted(BROKEN_RULES.keys() - {"dead_rank", "hoards_memory"}))
def test_a_broken_rule_ends_the_run(name, two_ranks, monkeypatch):
    monkeypatch.setattr(session, "SILENCE_S", 6.0 if name in ("hung_rank", "never_reads") else 12.0)
    reason, words = BROKEN_RULES[name]
    with pytest.raises(Violation) as caught:
        two_ranks(hostile_or_wrong(name))
    assert caught.value.reason == reason
    assert words in caught.value.sentence


def test_a_second_voice_is_refused_whatever_the_rank_is_doing(two_ranks):
    """The rank computes, or waits in a collective, as the voice is first heard: the
    scheduler decides which.
    """
    with pytest.raises(
        Violation, match=r"with batches left|while it should have waited for the other ranks"
    ) as caught:
        two_ranks(hostile_or_wrong("second_voice"))
    assert caught.value.reason in find("ddp-scaling", "second_voice").expect.reasons


def test_a_rank_that_is_killed_ends_the_run_and_leaves_nothing(tmp_path):
    before, descriptors = psutil.Process().children(), open_descriptors()
    reason, words = BROKEN_RULES["dead_rank"]
    with pytest.raises(Violation) as caught:
        emulated(hostile_or_wrong("dead_rank"), tmp_path, world=4)
    assert caught.value.reason == reason
    assert words in caught.value.sentence
    assert not started_since(before)
    assert open_descriptors() <= descriptors


def test_ranks_that_exceed_a_limit_without_a_control_group_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(Cgroup, "create", lambda *_: None)
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, memory_bytes=2 << 30))
    reason, words = BROKEN_RULES["hoards_memory"]
    with pytest.raises(Violation, match=words) as caught:
        emulated(hostile_or_wrong("hoards_memory"), tmp_path)
    assert caught.value.reason == reason


def test_ranks_that_come_to_no_end_for_want_of_a_core_are_the_machine_s_fault(
    two_ranks, monkeypatch
):
    monkeypatch.setattr(session, "SILENCE_S", 3.0)
    monkeypatch.setattr(session.Starvation, "happened", lambda _self: True)
    with pytest.raises(MachineError, match="Other programs kept most cores busy"):
        two_ranks(hostile_or_wrong("hung_rank"))


def test_hostile_scripts_have_spoilt_nothing(two_ranks, solution):
    again = two_ranks(SOLUTION)
    assert_equal(again, solution)


def test_a_rank_that_raises_is_quoted(tmp_path, two_ranks):
    script = tmp_path / "raises.py"
    script.write_text("def wrap(model):\n    raise RuntimeError('no such layer')\n")
    with pytest.raises(Violation, match="no such layer") as caught:
        two_ranks(script)
    assert caught.value.reason == "crashed"


@pytest.fixture
def below_tmp(monkeypatch):
    """A folder below /tmp that Python imports from, as those of a checkout there are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        folders = [*visible.python_folders(), folder]
        monkeypatch.setattr(visible, "python_folders", lambda: folders)
        yield Path(folder)


LATE = """
        if step == 0:
            import pathlib, sys
            sys.path.append({folder!r})
            import imported_late
            try:
                pathlib.Path({folder!r}, "written").touch()
            except OSError:
                continue
            raise RuntimeError("a rank could write into a folder that others read")
"""


def skip_where_ranks_share() -> None:
    """Skips a test of what single ranks are kept from, where no rank can be."""
    if not lets_ranks_part():
        pytest.skip("no namespaces for single ranks on this machine")


def test_ranks_import_late_from_below_tmp_and_cannot_write_there(below_tmp, tmp_path):
    skip_where_ranks_share()
    (below_tmp / "imported_late.py").touch()
    script = tmp_path / "late.py"
    end_of_step = "            log(step, running, ddp.module)\n"
    script.write_text(
        SOLUTION.read_text().replace(end_of_step, end_of_step + LATE.format(folder=str(below_tmp)))
    )
    assert emulated(script, tmp_path).clocks[0].step == SECRET.steps


def test_what_only_waits_for_a_rank_holds_no_copy_of_the_worker(two_ranks, earlier):
    """Its pages, though shared, would have to be counted each time that the ranks' memory is."""
    skip_where_ranks_share()
    large = set()

    def look(share_done: float) -> None:
        if (
            share_done > 0
        ):  # until each rank has ended a step, some are forked and not yet another program
            large.update(
                process.pid
                for process in started_since(earlier)
                if resident_bytes(process) > TORCH_BYTES
            )

    two_ranks(SOLUTION, SECRET, look)
    assert len(large) == 3, "the worker and two ranks"


def resident_bytes(process: psutil.Process) -> int:
    """0 where it has ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


@pytest.mark.parametrize("name", ["scaled_fp16", "sums"])
def test_gradients_at_any_scale_are_right(name, reference, two_ranks):
    assert same_training(two_ranks(VARIANTS / name / "train.py"), reference) is None


@pytest.mark.parametrize("name", ["any_order", "one_backward"])
def test_micro_batches_may_go_backward_in_any_order(name, reference, two_ranks):
    assert same_training(two_ranks(VARIANTS / name / "train.py"), reference) is None


def test_micro_batches_are_told_apart_in_any_layout_and_precision(reference, two_ranks, tmp_path):
    script = tmp_path / "train.py"
    rounded = "ddp(images.bfloat16().float().contiguous(memory_format=torch.channels_last))"
    script.write_text(
        (VARIANTS / "any_order" / "train.py").read_text().replace("ddp(images)", rounded)
    )
    assert same_training(two_ranks(script), reference) is None


def test_micro_batches_are_told_apart_where_only_the_models_parts_are_called(
    reference, two_ranks, tmp_path
):
    script = tmp_path / "train.py"
    text = SOLUTION.read_text().replace(
        "ddp(images)", "(ddp(images) if number > 1 else parts(ddp.module, images))"
    )
    body = (
        "model.head(relu(model.c3(relu(model.c2(model.norm(model.c1(images)))))).mean(dim=(2, 3)))"
    )
    script.write_text(
        text.replace(
            "def train(",
            "def parts(model, images):\n    from torch.nn.functional import relu\n\n    return"
            f" {body}\n\n\ndef train(",
        )
    )
    assert same_training(two_ranks(script), reference) is None


def test_only_what_waits_for_a_collective_runs_after_it(two_ranks, tmp_path):
    script = tmp_path / "train.py"
    beside = [
        "counts = torch.ones(1 << 18, dtype=torch.int32)",
        "work = dist.all_reduce(counts, async_op=True)",
        "counts + 1",
    ]
    after = ["work.wait()", "counts + 2"]
    lines = "".join(f"        {line}\n" for line in (*beside, *after))
    script.write_text(
        SHIPPED.read_text().replace("        optimizer.step()", f"{lines}        optimizer.step()")
    )
    for clock in two_ranks(script).clocks:
        first = [span for span in clock.spans if span.step == 0]
        (at,) = (index for index, span in enumerate(first) if span.elements == 1 << 18)
        early, late = [span for span in first[at + 1 :] if span.name == "small operation"][:2]
        assert early.start_us < first[at].end_us <= late.start_us


def test_the_reducer_s_collectives_are_waited_for_at_the_end_of_backward(two_ranks, tmp_path):
    script = tmp_path / "train.py"
    norm = "sum(one.grad.square().sum() for one in ddp.parameters())"
    script.write_text(
        SOLUTION.read_text().replace(
            "        optimizer.step()", f"        {norm}\n        optimizer.step()"
        )
    )
    for clock in two_ranks(script).clocks:
        last = [span for span in clock.spans if span.step == 2]
        backward_ends = max(span.end_us for span in last if span.name.startswith("backward "))
        sent_by = max(span.end_us for span in last if span.gradients)
        assert sent_by > backward_ends
        afterwards = [
            span.start_us
            for span in last
            if span.name == "small operation" and span.start_us >= backward_ends
        ]
        assert afterwards
        assert min(afterwards) >= sent_by


def test_what_a_script_computes_beside_the_model_hides_no_communication(two_ranks, tmp_path):
    plain, busy = tmp_path / "plain.py", tmp_path / "busy.py"
    loop = """
    parameters = list(ddp.module.parameters())
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp.module(images), labels) / len(micro_batches)).backward()
        flat = torch.cat([one.grad.flatten() for one in parameters]) / dist.get_world_size()
        work = dist.all_reduce(flat, async_op=True)
        torch.ones(ELEMENTS)
        work.wait()
        for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters])):
            parameter.grad.copy_(part.view_as(parameter))
        optimizer.step()
"""
    begin = SHIPPED.read_text().split("    for step, micro_batches")[0]
    for script, elements in ((plain, 8), (busy, 25_000_000)):
        script.write_text(begin + loop.lstrip("\n").replace("ELEMENTS", str(elements)))
    run, without = two_ranks(busy), two_ranks(plain)
    assert run.exposed_ms < 0.5 * without.exposed_ms
    assert run.overlap_share == without.overlap_share == 0


def test_gradients_reduced_node_by_node_are_right(tmp_path):
    """On two nodes of four ranks, with all ranks of a node sending on or one for them."""
    scripts = [SOLUTION, *(VARIANTS / name / "train.py" for name in ("hierarchical", "leaders"))]
    folder, scratch = code(SOLUTION, tmp_path / "code"), tmp_path / "scratch"
    with (
        Janitor() as janitor,
        crew(folder, "train.py", COSTS, [8] * len(scripts), scratch, janitor) as ranks,
    ):
        runs = []
        for script in scripts:
            code(script, scratch / "code")
            runs.append(ranks.run(SECRET))
    first, *others = runs
    for run in others:
        assert same_training(run, first) is None
        assert run.step_ms < 1.5 * first.step_ms
        sent = [
            span
            for clock in run.clocks
            for span in clock.spans
            if span.step and span.elements > LARGE
        ]
        assert sent
        assert all(span.gradients for span in sent)


@pytest.mark.parametrize("name", ["hierarchical", "leaders"])
def test_a_node_that_is_the_whole_world_reduces_the_gradients_once(name, reference, two_ranks):
    """Its sums go through a group of one rank as well."""
    assert same_training(two_ranks(VARIANTS / name / "train.py"), reference) is None


APART = ("group_of_one", "half_of_the_ranks", "noise_of_the_same_size", "through_files")


@pytest.mark.parametrize("name", APART)
def test_gradients_that_do_not_meet_over_the_link_leave_ranks_apart(name, reference, two_ranks):
    if name == "through_files":
        skip_where_ranks_share()
    assert "different parameters from rank 0" in (
        same_training(two_ranks(hostile_or_wrong(name)), reference) or ""
    )


@pytest.mark.parametrize("name", ["sums-never-divided", "a-step-late", "micro-batches-added-up"])
def test_gradients_of_another_size_or_of_another_step_train_otherwise(
    name, reference, two_ranks, tmp_path
):
    lab = load_labs()["ddp-scaling"]
    write_mutant(lab, next(mutant for mutant in load_mutants(lab) if mutant.id == name), tmp_path)
    assert "of how far training moved them" in (
        same_training(two_ranks(tmp_path / "train.py"), reference) or ""
    )


NOT_MODELLED = {
    "all-to-all": "dist.all_to_all_single(torch.empty(8), torch.ones(8))",
    "scatter": "dist.scatter(one := torch.ones(2), [one] * 2 if dist.get_rank() == 0 else None)",
    "bitwise": "dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BXOR)",
    "element types": "dist.all_reduce(torch.ones(2, dtype=torch.int16))",
    "copy of the model": "dist.all_reduce(torch.ones(COUNT))",
}


@pytest.mark.parametrize("what", NOT_MODELLED)
def test_what_is_not_modelled_is_named_and_no_fault_of_the_script(what, tmp_path, two_ranks):
    script = tmp_path / "train.py"
    call = NOT_MODELLED[what].replace("COUNT", str(3 * COSTS.elements))
    script.write_text(
        SOLUTION.read_text().replace(
            "        optimizer.step()", f"        {call}\n        optimizer.step()"
        )
    )
    with pytest.raises(VerifierFault, match=f"does not model: .*{what}") as caught:
        two_ranks(script)
    assert "no fault of the script" in caught.value.remedy


COLLECTIVES = """
    world, rank = dist.get_world_size(), dist.get_rank()
    mine, every = torch.full((3,), rank + 1.0), torch.full((3,), 3.0)

    dist.all_reduce(total := mine.clone(), op=dist.ReduceOp.PRODUCT)
    assert total.tolist() == [2.0] * 3
    dist.all_reduce(mean := torch.tensor([rank + 2, -rank - 2]), op=dist.ReduceOp.AVG)
    assert mean.tolist() == [2, -2]
    dist.reduce(total := mine.clone(), 1)
    assert total.tolist() == (every if rank == 1 else mine).tolist()

    parts = torch.arange(6.0) * (rank + 1)
    dist.reduce_scatter_tensor(out := torch.empty(3), parts)
    assert out.tolist() == (3 * torch.arange(6.0)[3 * rank : 3 * rank + 3]).tolist()
    dist.reduce_scatter(out := torch.empty(3), list(parts.split(3)), op=dist.ReduceOp.AVG)
    assert out.tolist() == (1.5 * torch.arange(6.0)[3 * rank : 3 * rank + 3]).tolist()
    dist.all_gather_into_tensor(whole := torch.empty(6), mine)
    assert whole.tolist() == [1.0] * 3 + [2.0] * 3
    alone = [dist.new_group([one]) for one in range(world)][rank]
    dist.reduce_scatter_tensor(out := torch.empty(6), parts, group=alone)
    assert out.tolist() == parts.tolist()

    with torch.distributed.distributed_c10d._coalescing_manager():
        dist.reduce_scatter_tensor(one := torch.empty(3), parts)
        dist.reduce_scatter_tensor(two := torch.empty(1), parts[:2].clone())
    assert [*one, *two] == [*(3 * torch.arange(6.0)[3 * rank : 3 * rank + 3]), 3.0 * rank]
    with torch.distributed.distributed_c10d._coalescing_manager():
        dist.all_gather_into_tensor(one := torch.empty(6), mine)
        dist.all_gather_into_tensor(two := torch.empty(2), mine[:1].clone())
    assert [*one, *two] == [1.0] * 3 + [2.0] * 3 + [1.0, 2.0]

    late = mine.clone()
    work = dist.all_reduce(late, async_op=True)
    assert late.tolist() == mine.tolist()
    work.wait()
    assert late.tolist() == every.tolist()
    dist.broadcast(late := mine.clone(), 1, async_op=True)
    assert late.tolist() == mine.tolist()
    work = dist.broadcast(late, 1, async_op=True)
    torch.cuda.synchronize()
    assert late.tolist() == [2.0] * 3
    dist.barrier(async_op=True).wait()
"""


def test_collectives_do_what_torch_s_do(two_ranks, tmp_path):
    script = tmp_path / "train.py"
    head = "def train(ddp, optimizer, batches):\n"
    script.write_text(
        "import warnings\nwarnings.simplefilter('ignore', FutureWarning)\n"
        + SOLUTION.read_text().replace(head, head + COLLECTIVES)
    )
    names = {span.name for span in two_ranks(script).clocks[0].spans}
    assert {"all-reduce", "reduce", "reduce-scatter", "all-gather", "broadcast"} <= names


@pytest.mark.parametrize("name", ["sharded", "node_shards", "one_message"])
def test_gradients_that_are_scattered_and_parameters_that_are_gathered_are_right(
    name, reference, two_ranks, tmp_path
):
    script = tmp_path / "train.py"
    # The small model has other parts.
    parts = "[model.head, model.stage4, model.stage3, model.stage2, model.stage1, model.stem]"
    text = (VARIANTS / name / "train.py").read_text()
    text = text.replace(parts, "[model.head, model.c3, model.c2, model.norm, model.c1]")
    script.write_text(text.replace("model.stem", "model.c1"))
    assert same_training(two_ranks(script), reference) is None


RARE = {
    "one rank, one parameter": (
        "if step == 49 and dist.get_rank() == 1: ddp.module.norm.bias.grad.mul_(0.5)",
        "began step 51 with different parameters",
    ),
    "all ranks alike, one layer": (
        "if step == 44: ddp.module.c1.weight.grad.zero_()",
        "Step 45 on 2 ranks changed the parameters of c1",
    ),
}


@pytest.mark.slow
def test_one_wrong_step_in_fifty_is_seen(tmp_path):
    """The first run of a check trains a small model for many steps, and every rank's parameters are
    compared in each.
    The step that is named is the first that differs: all before it are right. The reference trains
    on all micro-batches of a step at once, as a single rank.
    """
    import torch

    many = Secret(51, 3)

    def run(script: Path, folder: Path, *, as_one: int = 0):
        with (
            Janitor() as janitor,
            crew(
                code(script, folder / "code"),
                "train.py",
                COSTS,
                [2],
                folder / "scratch",
                janitor,
                many_steps=True,
                as_one=as_one,
            ) as ranks,
        ):
            assert torch.get_num_threads() == 1  # more would only wait beside the ranks
            return ranks.run(many)

    threads = torch.get_num_threads()
    reference = run(SHIPPED, tmp_path / "reference", as_one=1)
    assert (len(reference.clocks), torch.get_num_threads()) == (1, threads)
    assert same_training(run(SOLUTION, tmp_path / "right"), reference) is None
    for name, (fault, words) in RARE.items():
        script = tmp_path / f"{name}.py"
        script.write_text(
            SOLUTION.read_text().replace(
                "        optimizer.step()", f"        {fault}\n        optimizer.step()"
            )
        )
        try:
            problem = same_training(run(script, tmp_path / name), reference)
        except Violation as violation:
            problem = violation.sentence
        assert words in (problem or ""), name


def test_one_rank_with_the_samples_of_all_trains_what_they_train(reference, tmp_path):
    """Down to the gradients, each scaled by the secret factor of its micro-batch."""
    scratch = tmp_path / "scratch"
    with (
        Janitor() as janitor,
        crew(
            code(SHIPPED, tmp_path / "code"), "train.py", COSTS, [2], scratch, janitor, as_one=1
        ) as alone,
    ):
        as_one = alone.run(SECRET)
    assert (len(as_one.clocks), as_one.world) == (1, 2)
    assert same_training(reference, as_one) is None
    assert reference.difference(as_one) < 0.002


@pytest.mark.slow
def test_the_table_says_how_fast_the_lab_s_own_script_is():
    lab = load_labs()["ddp-scaling"]
    figures = check(lab, lab.path, "virtual").measurement
    for size in ("few", "many"):
        kept = load_costs(lab.path).shipped_samples_per_s[figures[size]]
        assert figures[f"{size}_samples_per_s"] == pytest.approx(kept)


def test_ranks_that_keep_their_own_gradients_end_apart(reference, two_ranks):
    run = two_ranks(hostile_or_wrong("garbage_payload"))
    assert "different parameters from rank 0" in (same_training(run, reference) or "")


def test_a_backward_that_is_told_afterwards_ends_with_other_parameters(reference, two_ranks):
    run = two_ranks(hostile_or_wrong("told_afterwards"))
    assert run.step_ms < reference.step_ms
    assert "of how far training moved them" in (same_training(run, reference) or "")


def test_what_is_sent_beside_the_update_s_gradients_hides_nothing(tmp_path, two_ranks):
    padded = hostile_or_wrong("padded_overlap")
    plain = tmp_path / "plain.py"
    plain.write_text(padded.read_text().replace("loss.register_hook(hook)", "pass"))
    run, without = two_ranks(padded), two_ranks(plain)
    assert run.communication_ms > 1.5 * without.communication_ms
    assert run.exposed_ms == pytest.approx(without.exposed_ms)
    assert run.overlap_share == pytest.approx(without.overlap_share)


def test_parameters_that_are_no_numbers_are_not_the_reference_s(reference, solution, two_ranks):
    run = two_ranks(hostile_or_wrong("not_a_number"))
    assert "not finite" in (same_training(run, reference) or "")
    nothing = [[Moments(np.nan, np.nan, np.nan)]] * len(solution.gradients)
    assert "is not the gradient" in (
        same_training(replace(solution, gradients=nothing), reference) or ""
    )


def test_parameters_that_only_look_trained_are_told_by_what_was_reduced(reference, solution):
    forged = [
        [one._replace(squares=0.5 * one.squares) for one in step] for step in solution.gradients
    ]
    assert "is not the gradient" in (
        same_training(replace(solution, gradients=forged), reference) or ""
    )
    moved = [parameters + np.float32(0.01) for parameters in solution.parameters]
    assert "of how far training moved them" in (
        same_training(replace(solution, parameters=moved), reference) or ""
    )


def test_the_lab_s_cost_table_is_that_of_its_model():
    from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import load_costs

    recipe = load_file(ROOT / "labs" / "ddp-scaling" / "recipe.py", "ddp_recipe")
    costs = load_costs(ROOT / "labs" / "ddp-scaling")
    owners = {
        name: sum(parameter.numel() for parameter in module.parameters(recurse=False))
        for name, module in recipe.make_model().named_modules()
    }
    assert {cost.name: cost.elements for cost in costs.modules} == {
        name: size for name, size in owners.items() if size
    }
    assert (costs.micro_batches, costs.samples) == (recipe.MICRO_BATCHES, recipe.IMAGES)
    assert costs.elements * 4 == pytest.approx(27.67e6, rel=1e-3)
    assert load_fabric().nodes(8) == 2
