"""The `training` kind: its figures and its comparison of two trainings."""

import gc
import math
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.training import check, child, figures
from bottleneck_lab.measure.kinds.training.host_work import HostWork
from bottleneck_lab.measure.kinds.training.judging import wrong_parameters, wrong_reports
from bottleneck_lab.measure.kinds.training.session import OwnFigures, Training
from bottleneck_lab.measure.virtual_gpu.books import Figures


def made_up(**changed: object) -> Figures:
    usual = {
        "total_us": 80.0,
        "step_us": [50.0, 10.0, *[2.0] * 38],
        "step_launches": [10] * 40,
        "waits": 10,
        "step_waits": [9] + [0] * 38 + [1],
        "setup_waits": 9,
        "report_waits": [9, 9, 9, 9],
        "returned_bytes": 0,
        "lives": [],
        "flops": 2.0,
        "useful_flops": 1.0,
        "step_flops": [step / 40 for step in range(40)],
        "report_flops": [0.25, 0.5, 0.75, 1.0],
        "peak_bytes": 3 << 20,
        "reserved_bytes": 4 << 20,
        "step_bytes": [1 << 20] * 40,
        "steps": 40,
    }
    return Figures(**(usual | changed))


def test_the_first_steps_do_not_count_as_time() -> None:
    assert figures.step_time_us(made_up()) == 2.0


@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({}, 1),
        ({"report_waits": [9, 13, 13, 13], "waits": 13}, 4),
        ({"report_waits": [14] * 4, "waits": 14, "step_waits": [9, 0, 5] + [0] * 37}, 5),
        ({"waits": 12}, 3),
        ({"setup_waits": 5, "step_waits": [5, 0, 4] + [0] * 37, "waits": 9}, 4),
        (
            {
                "setup_waits": 30,
                "report_waits": [31, 32, 33, 34],
                "waits": 34,
                "step_waits": [0] * 39 + [34],
            },
            1,
        ),
    ],
    ids=[
        "none",
        "the second",
        "the first",
        "after the last",
        "the third step",
        "all taken at once",
    ],
)
def test_waits_are_of_the_worst_interval_between_two_reports(changed: dict, waits: int) -> None:
    assert figures.waits_per_interval(made_up(**changed)) == waits


def test_arithmetic_before_the_warm_up_is_over_is_not_timed() -> None:
    assert figures.timed_flops(made_up()) == pytest.approx(38 / 40)
    assert figures.timed_flops(made_up(step_flops=[1.0] * 40)) == 0


def test_a_report_may_come_an_interval_late_and_no_later() -> None:
    shipped = made_up()
    for right in ([0.25, 0.5, 0.75, 1.0], [0.5, 0.75, 1.0, 1.0], [0.51, 0.75, 1.0, 1.0]):
        assert figures.late_report(made_up(report_flops=right), shipped, 10) is None
    one_step_more = made_up(report_flops=[0.25, 0.775, 1.0, 1.0])
    assert figures.late_report(one_step_more, shipped, 10) == (20, pytest.approx(31))


@pytest.mark.parametrize(("after_20", "late"), [(0.53, None), (0.56, (10, pytest.approx(22.4)))])
def test_a_report_in_time_by_the_script_s_own_steps_may_be_of_uneven_ones(after_20, late) -> None:
    """Without padding, twenty steps of forty may have 53% of the arithmetic; more would be of other
    work.
    """
    steps = [after_20 * step / 20 for step in range(20)]
    steps += [after_20 + (1 - after_20) * step / 20 for step in range(20)]
    yours = made_up(step_flops=steps, report_flops=[after_20, 0.75, 1.0, 1.0])
    assert figures.late_report(yours, made_up(), 10) == late
    begun = made_up(step_flops=steps, report_flops=[after_20 + 0.001, 0.75, 1.0, 1.0])
    assert figures.late_report(begun, made_up(), 10), "step 21 has begun"


RECIPE = """
import torch
from torch.utils.data import DataLoader


class Data:
    def __init__(self, seed):
        self.samples = list(range(12))

    def batches(self, pin_memory=False):
        return DataLoader(self.samples, batch_size=1)
"""
CYCLES = """
import recipe
import torch


class Linked:
    alive = 0

    def __init__(self):
        self.itself = self
        Linked.alive += 1

    def __del__(self):
        Linked.alive -= 1


def train(device, data, log):
    kept = []
    for step, _ in enumerate(data.batches(), 1):
        kept += [[] for _ in range(3000)]  # enough for Python to collect, if it did on its own
        Linked()
        if step % 6 == 0:
            log(step, alive=Linked.alive)
    return torch.nn.Linear(1, 1)
"""


def test_garbage_stays_until_a_report_and_through_no_warm_up_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text(CYCLES)
    for name in ("recipe", "train"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is taken out afterwards
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(gc, "freeze", lambda: None)
    program = child.Program(tmp_path / "train.py", "cpu", None)
    linked = sys.modules["train"].Linked
    by_step: list[int] = []
    reports, _ = program.train(1, on_step=lambda: by_step.append(linked.alive))
    assert by_step == [0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert [numbers["alive"] for _, numbers in reports] == [4, 6], (
        "a report's own numbers are older"
    )
    assert gc.isenabled()


def test_memory_that_comes_and_goes_does_not_grow() -> None:
    saw = [(1 + step % 5) << 20 for step in range(60)]
    once = [1 << 20 if step < 25 else 3 << 20 for step in range(60)]
    late = [3 << 20 if step in (20, 21, 40, 55) else 1 << 20 for step in range(60)]
    assert all(figures.growth_kib_per_step(levels, 10) == 0 for levels in (saw, once, late))


def test_one_kept_number_a_step_is_growth_whatever_is_dropped() -> None:
    levels = [(1 << 20) + 512 * step + (step < 30) * 50_000 for step in range(60)]
    assert figures.growth_kib_per_step(levels, 10) == 0.5
    assert math.isnan(figures.growth_kib_per_step(levels[:3], 10))


def test_a_tensor_kept_for_two_intervals_counts_from_the_second_interval_on() -> None:
    def kept(*lives: tuple[int, int, int]) -> int:
        named = [(*life, "train.py(7): train", "float32[]") for life in lives]
        return figures.kept_tensors(made_up(steps=60, lives=named), 10).total()

    assert kept((1, 60, 99), (12, 25, 7), (45, 60, 1)) == 0, "as parameters, within, and too young"
    assert kept((13, 60, 8)) == 0, "a buffer that is made once"
    assert kept((13, 60, 8), (22, 60, 2), (24, 44, 1), (35, 60, 3)) == 3


def test_what_is_kept_is_named_by_line_source_and_shape(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import torch\nkept = [torch.ones(4)]\n")
    (tmp_path / "recipe.py").write_text("x = torch.ones(4)\n")
    spec = SimpleNamespace(files=["train.py", "recipe.py"], entry="train.py")
    files = SimpleNamespace(spec=spec)
    settings = SimpleNamespace(interval=10)
    context = SimpleNamespace(submission=tmp_path, lab=files, settings=settings)

    def words(line: str, form: str = "float32[64, 128]", count: int = 20) -> str:
        return check.describe_kept(context, Counter({(line, form): count}))

    assert words("train.py(2): train") == (
        "20 tensors of 10 steps are kept; of each step: 2 float32[64, 128] made at train.py:2"
        " (`kept = [torch.ones(4)]`)."
    )
    deep = "recipe.py(1): make < train.py(2): train < train.py(1): main"
    assert words(deep).endswith(
        " made at train.py:2 (`kept = [torch.ones(4)]`), called at train.py:1 (`import torch`)."
    )
    assert words("recipe.py(1): make").endswith(" made at recipe.py:1 (`x = torch.ones(4)`).")
    both = Counter({(f"recipe.py({n}): make < train.py(2): train", "int64[]"): 10 for n in (1, 2)})
    assert check.describe_kept(context, both).count("made at train.py:2") == 1
    for forged in ("", "train.py(99): train", "../secret(1): x", "recipe.py(1)\n: x"):
        assert words(forged).endswith("made on no line of yours.")
    assert "\x1b" not in words("train.py(2): train", "float32[\x1b[2J" + 9000 * "1")
    assert len(words("train.py(2): train", "float32[\x1b[2J" + 9000 * "1")) < 250
    many = Counter({("train.py(1): train", f"float32[{size}]"): 10 for size in range(8)})
    assert check.describe_kept(context, many).endswith("; 3 more.")
    assert check.describe_kept(context, Counter()) == ""


REPORTS = [(10, {"loss": 0.5}), (20, {"loss": 0.25})]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (REPORTS[:1], "due after steps 10, 20"),
        ([REPORTS[0], (20, {"loss": 0.251})], "says loss 0.251; the shipped script's is 0.25"),
        ([REPORTS[0], (20, {})], "it should have loss"),
        ([REPORTS[0], (20, {"loss": float("nan")})], "loss nan"),
    ],
)
def test_wrong_reports_are_named(wrong: list, says: str) -> None:
    assert says in (wrong_reports(wrong, REPORTS, 1e-3) or "")


@pytest.mark.parametrize("value", [1, 1.5, np.float32(1.5), np.array([1.5]), torch.tensor(1.5)])
def test_a_report_takes_any_number_of_the_host(value: object) -> None:
    assert child._number("loss", value) in {1.0, 1.5}


@pytest.mark.parametrize("value", [np.ones(3), "x", None, torch.ones((), device="meta")])
def test_what_a_report_cannot_take_is_named(value: object) -> None:
    with pytest.raises(child.WrongReport, match="loss is a "):
        child._number("loss", value)


def test_a_report_of_a_training_that_diverged_is_a_wrong_one() -> None:
    with pytest.raises(child.WrongReport, match="loss is nan: the training has diverged"):
        child._number("loss", float("nan"))


def test_a_script_s_own_loader_has_the_steps_that_the_recipe_s_would_have() -> None:
    own, other = DataLoader(range(6), 2), DataLoader(range(4), 4)
    noted: list[object] = []

    def note(samples: int, **_: bool) -> None:
        noted.append(samples)

    with child._marked_steps(3, lambda: noted.append("pass"), note, 2):
        assert len(own) == 3
        next(iter(own))
        assert len([*own]) == 2, "as many as a capture takes"
        assert len([*other]) == 1
    assert noted == ["pass", 2, "pass", 2, 2]
    assert len([*own]) == 3


def test_batches_that_were_gathered_first_are_stepped_through_in_a_short_capture_too() -> None:
    noted: list[object] = []

    def note(samples: int, **_: bool) -> None:
        noted.append(samples)

    with child._marked_steps(3, lambda: noted.append("pass"), note, 2):
        gathered = [*DataLoader(range(6), 2)]
        assert len([*DataLoader(gathered, batch_size=None)]) == 2
    assert noted == ["pass", 2, 2, "pass", 1, 1], "what was gathered is ready"


@pytest.mark.parametrize(
    ("options", "loads"),
    [
        ({"batch_size": 4}, [(4, False), (2, False)]),
        ({"batch_sampler": [[0, 1], [2, 3]]}, [(2, False), (2, False)]),
        ({"batch_size": None, "sampler": [[0, 1, 2, 3], [4, 5]]}, [(4, True), (2, True)]),
        ({"batch_size": 4, "num_workers": 1}, [(0, False), (0, False)]),
        ({"batch_size": None}, [(1, True)] * 6),
        ({"batch_size": None, "shuffle": True}, [(1, True)] * 6),
    ],
    ids=["sample by sample", "a sampler of batches", "at once", "by a worker", "ready", "shuffled"],
)
def test_a_step_begins_with_what_loading_its_batch_takes(options: dict, loads: list) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6), torch.zeros(6, 2)), **options)
    noted: list[tuple[int, bool]] = []

    def note(samples: int, *, at_once: bool) -> None:
        noted.append((samples, at_once))

    with child._marked_steps(len(loads), lambda: None, note, None):
        assert len([*loader]) == len(loads)
    assert noted == loads


def test_the_parts_of_a_batch_that_is_ready_are_no_samples() -> None:
    """Packed sequences of 1,150 tokens were charged as so many samples, and `[None]` as one."""
    noted: list[int] = []
    packed = [(torch.zeros(1150), torch.zeros(32)) for _ in range(2)]
    with child._marked_steps(2, lambda: None, lambda samples, **_: noted.append(samples), None):
        assert len([*DataLoader(packed, batch_size=None)]) == 2
    assert noted == [1, 1]


def test_the_small_size_is_the_same_script_with_another_recipe(tmp_path, monkeypatch) -> None:
    """Loaded once more, so that a name that the script has imported is of the same size."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "recipe", raising=False)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    monkeypatch.setenv("LAB_SIZE", "")
    (tmp_path / "recipe.py").write_text(
        "import os\nWIDTH = 8 if os.environ['LAB_SIZE'] == 'small' else 64\n"
    )
    (tmp_path / "train.py").write_text("from recipe import WIDTH\n")
    program = child.Program(tmp_path / "train.py", "cpu", None)
    for one, width in ((program, 64), (program.smaller, 8)):
        assert {one._script.WIDTH, one._recipe.WIDTH} == {width}
    assert program.smaller is program.smaller
    gc.unfreeze()


def test_rounding_is_no_difference() -> None:
    assert wrong_reports([(10, {"loss": 0.50001}), (20, {"loss": 0.25})], REPORTS, 1e-3) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "it should have w"),
        ({"w": np.ones(3)}, "has the shape (3,)"),
        ({"w": np.array([1.0, 1.1])}, "differs from the shipped script's"),
        ({"w": np.array([1.0, np.nan])}, "differs from the shipped script's"),
    ],
)
def test_wrong_parameters_are_named(wrong: dict, says: str) -> None:
    assert says in (wrong_parameters(wrong, {"w": np.ones(2)}, 1e-3) or "")


def test_the_same_parameters_are_right() -> None:
    assert wrong_parameters({"w": np.array([1.0, 1.0001])}, {"w": np.ones(2)}, 1e-3) is None


def test_the_start_of_a_loader_is_not_timed_up_to_what_the_reference_needs(monkeypatch) -> None:
    def train(start_s: float, _seed: int) -> Training:
        return Training([], {}, None, 1.0, OwnFigures(start_s=start_s))

    monkeypatch.setattr(check, "train_on_device", train)
    context = SimpleNamespace(rng=random.Random(1))
    rounds = check.Rounds(context, reference=0.05, learner=5.0, start_s=0.1)
    rounds.play()
    assert rounds.times == {"reference": [pytest.approx(0.95)], "learner": [pytest.approx(0.9)]}


def test_workspaces_of_libraries_are_not_what_a_program_allocates() -> None:
    own = OwnFigures(waits=8, step_bytes=[2e6] * 40, peak_bytes=66.6 * (1 << 20))
    values = check._own_values(own, 10, workspace_bytes=64 * (1 << 20))
    assert values["peak-mib"] == pytest.approx(2.6)
    assert (values["growth-kib-per-step"], values["waits-per-interval"]) == (0, 2)
    assert math.isnan(check._own_values(OwnFigures(), 10, 0.0)["peak-mib"])


@pytest.mark.parametrize(
    ("waits", "note"),
    [
        (1.0, ""),
        (121.0, "121 waits are 12.1 a step"),
        (121.0, "In a step: 7 on train.py(24), 5.1 on train.py(30)."),
        (510.0, "In a step: 7 on train.py(24), 5.1 on train.py(30), 2 on train"),
        (510.0, "0.5 on train.py(7), 0.5 on train.py(8), 1 on 2 more lines."),
    ],
)
def test_too_many_waits_are_counted_as_in_a_comparison_and_named(waits: float, note: str) -> None:
    criteria = [CriterionSpec("waits-per-interval", "mechanism", "At most {target}", target=1)]
    lab = SimpleNamespace(
        spec=SimpleNamespace(devices={"virtual": SimpleNamespace(criteria=criteria)})
    )
    context = SimpleNamespace(lab=lab, device="virtual", settings=SimpleNamespace(interval=10))
    lines = {"train.py(30): train": 204, "train.py(24): train": 280}
    if waits > 121:
        lines |= {f"train.py({line}): train": 80 for line in (1, 2, 3)}
        lines |= {f"train.py({line}): read": 20 for line in (6, 7, 8, 9, 10)}
    yours = SimpleNamespace(line_waits=lines, steps=40)
    notes = check._explain_waits(context, {"waits-per-interval": waits}, yours)
    assert note in "".join(notes)
    assert bool(notes) == bool(note)
    of_gpu = "".join(check._explain_waits(context, {"waits-per-interval": waits}))
    assert ("`lab report --ask waits`" in of_gpu) == bool(note), "nothing is known of its lines"


@pytest.mark.parametrize(
    ("peak", "growth", "levels", "parts"),
    [
        (3.0, 0.0, [1.0] * 40, []),
        (43.5, 732.0, [1.0 * step for step in range(40)], ["the lines that hold memory"]),
        (
            *(7.7, 0.0, [1.0 * (step % 8) for step in range(40)]),
            ["the lines that hold memory", "falls by up to 7 MiB: much"],
        ),
    ],
)
def test_memory_beyond_its_limits_is_explained(
    peak: float, growth: float, levels: list[float], parts: list[str]
) -> None:
    criteria = [
        CriterionSpec(id_, "mechanism", "At most {target}", target=target)
        for id_, target in (("peak-mib", 4.0), ("growth-kib-per-step", 0.25))
    ]
    lab = SimpleNamespace(
        spec=SimpleNamespace(devices={"virtual": SimpleNamespace(criteria=criteria)})
    )
    context = SimpleNamespace(lab=lab, device="virtual", settings=SimpleNamespace(interval=10))
    values = {"peak-mib": peak, "growth-kib-per-step": growth}
    notes = check._explain_memory(context, values, [level * figures.MIB for level in levels])
    assert len(notes) == len(parts)
    assert all(part in note for part, note in zip(parts, notes, strict=True))


def counted(device: str, model: torch.nn.Module, *shape: int) -> HostWork:
    """Count the work of a step of SGD on a device; `meta` has shapes alone, and is not the host."""
    with HostWork() as work:
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        output = model(torch.ones(*shape).to(device))
        (output[0] if isinstance(output, tuple) else output).square().mean().backward()
        optimizer.step()
    return work


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: torch.nn.Linear(64, 64), (128, 64)), (lambda: torch.nn.RNN(64, 64), (10, 32, 64))],
    ids=["layer", "recurrent"],
)
def test_work_counts_by_its_shapes_and_as_the_hosts_where_it_is_done_there(make, shape) -> None:
    host, device = counted("cpu", make(), *shape), counted("meta", make(), *shape)
    assert host.host_flops == host.flops == device.flops > 0
    assert host.host_nbytes == host.nbytes > 0
    assert device.host_flops == 0
    sent = math.prod(shape) * 4
    assert device.host_nbytes == sent, "only the input was made there; sending it is no work"
    assert sent < 0.1 * device.nbytes


def test_elementwise_work_counts_by_its_bytes_and_whole_numbers_do_not() -> None:
    with HostWork() as work:
        torch.ones(1000).mul_(2).add_(1)
        torch.arange(1000).mul_(2)
    assert (work.host_flops, work.host_nbytes) == (0, 4000 * 5)


def test_sparse_gradients_of_right_work_can_be_counted() -> None:
    with HostWork() as work:
        torch.nn.Embedding(50, 8, sparse=True)(torch.arange(9)).sum().backward()
    assert work.host_nbytes > 0


def test_compiled_code_is_counted_as_what_it_was_compiled_from() -> None:
    def compiler(_graph: object, _inputs: object) -> object:
        raise AssertionError("nothing is compiled while work is counted")

    product = torch.compile(torch.matmul, backend=compiler)
    with child._counted_work() as figures:
        product(torch.ones(8, 8), torch.ones(8, 8))
    assert figures["host_work"][0] == 2 * 8**3


@pytest.mark.parametrize("host_work", [(11.0, 0.0), (0.0, 2.2), (math.nan, math.nan)])
def test_work_on_the_host_of_a_real_gpu_is_refused(host_work) -> None:
    check.refuse_work_on_the_host((10.0, 2.0), (100.0, 20.0), most=0.1)
    with pytest.raises(LearnerFault, match=r"The host did .*wanted at most 10%"):
        check.refuse_work_on_the_host(host_work, (100.0, 20.0), most=0.1)
