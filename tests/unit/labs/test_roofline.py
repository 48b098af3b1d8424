"""The lab `roofline` in this process: what its judge accepts and refuses, and what its yardstick
moves.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.course import proving
from bottleneck_lab.course.proving import key_problems
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.workspace.diagnosis_file import load_answers

ROOT = Path(__file__).parents[3]
LAB, SOLUTION = ROOT / "labs" / "roofline", ROOT / "solutions" / "roofline"
RIGHT = [
    LAB,
    SOLUTION,
    *(ROOT / "tests" / "variants" / "roofline" / name for name in ("fused", "lists", "optimizer")),
]
SETTINGS = {"parameters": [40_000, 50_000], "pushed": [3, 5], "rounds": 2}


def load_file(path: Path):
    spec = importlib.util.spec_from_file_location(f"roofline_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """A workspace, in which `step.py` finds `tick.py`."""
    monkeypatch.syspath_prepend(str(LAB))


@pytest.fixture(scope="module")
def judge():
    return load_file(LAB / "judge.py")


def answer(module, inputs):
    return [np.asarray(part) for part in module.load("cpu")(*inputs)]


def complaint(judge, module, inputs):
    return judge.judge("update", inputs, answer(module, inputs), [], SETTINGS)


@pytest.mark.parametrize("folder", RIGHT, ids=lambda folder: folder.parent.name + "/" + folder.name)
def test_right_updates_are_right_and_leave_their_inputs_alone(judge, folder):
    module, rng = load_file(folder / "step.py"), np.random.default_rng(1)
    calls = [
        judge.make_inputs(rng, "update", None, SETTINGS),
        *(call for _, call in judge.adversarial(rng, SETTINGS)),
    ]
    for inputs in calls:
        before = [np.array(part) for part in inputs[:5]]
        assert complaint(judge, module, inputs) is None
        assert all(np.array_equal(*pair) for pair in zip(before, inputs, strict=False))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda p, m, v, ema: (p, m, v), "shapes"),
        (lambda p, m, v, ema: (p, m, v, ema[:-1]), "shapes"),
        (lambda p, m, v, ema: (p.bfloat16().float(), m, v, ema), "`p` is off"),
        (lambda p, m, v, ema: (p, m, v.half().float(), ema), "`v` is off"),
        (lambda p, m, v, ema: (p, m, v, np.append(ema[:-1], ema[-1:] + 1e-4)), "`ema` is off"),
        (lambda p, m, v, ema: (p, m * np.nan, v, ema), "`m` is not finite"),
    ],
)
def test_wrong_answers_are_told_by_name(judge, spoil, said, torch):
    inputs = judge.make_inputs(np.random.default_rng(2), "update", None, SETTINGS)
    right = load_file(SOLUTION / "step.py").load("cpu")(*inputs)
    wrong = [np.asarray(part) for part in spoil(*(torch.as_tensor(part) for part in right))]
    assert said in judge.judge("update", inputs, wrong, [], SETTINGS)


def test_no_two_calls_share_a_number_in_the_same_place(judge):
    rng = np.random.default_rng(4)
    first, second = (judge.make_inputs(rng, "update", None, SETTINGS) for _ in range(2))
    for ours, theirs in zip(first[:5], second[:5], strict=True):
        least = min(ours.shape[-1], theirs.shape[-1])
        assert (ours[..., :least][:3] != theirs[..., :least][:3]).mean() > 0.99
    assert first[4].base is second[4].base  # drawn once


def test_untimed_calls_are_of_any_length_and_some_like_the_timed_ones(judge):
    rng = np.random.default_rng(4)
    settings = SETTINGS | {"parameters": [30_000, 40_000]}
    sizes = np.array(
        [len(judge.untimed_inputs(rng, "update", None, settings)[0]) for _ in range(200)]
    )
    assert 1_000 <= sizes.min() < 2_000
    assert sizes.max() < 40_000
    assert 5 <= (sizes >= 30_000).sum() < 50
    assert np.median(sizes) < 10_000


WRONG = [
    mutant for mutant in load_mutants(find_lab("roofline")) if mutant.criterion == "right-answers"
]


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.id)
def test_wrong_updates_are_told(judge, mutant, tmp_path, torch):
    write_mutant(find_lab("roofline"), mutant, tmp_path)
    module, complaints = load_file(tmp_path / "step.py"), []
    for _, inputs in judge.adversarial(np.random.default_rng(3), SETTINGS):
        answered = [
            np.asarray(torch.as_tensor(part).float()) for part in module.load("cpu")(*inputs)
        ]
        complaints.append(judge.judge("update", inputs, answered, [], SETTINGS) or "")
    assert any(complaints)


def test_the_yardstick_moves_nine_arrays_a_step(monkeypatch, torch):
    module = load_file(LAB / "ceilings.py")
    moved = []
    add = torch.Tensor.add_
    monkeypatch.setattr(
        torch.Tensor, "add_", lambda to, other: moved.append(3 * to.numel()) or add(to, other)
    )
    state, gradients = [np.ones(100, np.float32)] * 4, np.ones((3, 100), np.float32)
    module.load("cpu")(*state, gradients, np.ones(8), 1)
    assert sum(moved) == 8 * 100 * module.ARRAYS_MOVED


GB = 1e9
LINES = (20 * GB, 150 * GB, 100 * GB)  # memory, the fastest cache, arithmetic


@pytest.mark.parametrize(
    ("flop", "moved", "taken", "limit"),
    [
        (17 * GB, 0.05 * GB, 0.19, "compute-bound"),
        (17 * GB, 0.05 * GB, 1.0, "overhead-bound"),
        (0.13 * GB, 0.27 * GB, 0.02, "memory-bound"),
        (0.13 * GB, 0.27 * GB, 0.05, "overhead-bound"),  # a quarter of memory's line
        (0.05 * GB, 0.42 * GB, 0.003, "cache-bound"),
    ],
)
def test_a_limit_is_the_line_that_an_operator_is_close_to(flop, moved, taken, limit):
    assert load_file(LAB / "key.py").limit(flop, moved, taken, *LINES) == limit


def test_a_key_that_another_machine_measures_is_told_to_its_author(monkeypatch):
    answers = load_answers(SOLUTION)
    measured = {"mail": answers["mail"], "search": "memory-bound"}
    monkeypatch.setattr(proving, "measure_key", lambda *_: measured)
    (problem,) = key_problems(find_lab("roofline"), "cpu")
    assert problem == (
        "search: this machine measures 'memory-bound', and the solution says 'cache-bound'."
    )


@pytest.mark.slow
def test_the_key_is_what_this_machine_measures():
    assert key_problems(find_lab("roofline"), "cpu") == []


@pytest.mark.long
def test_no_call_is_timed_on_fresh_pages():
    """The shipped update makes temporaries of 32 MiB, and each would get new pages."""
    lines = """
        import resource, torch, step, tick

        def faults():
            arrays = [torch.rand(tick.PARAMETERS) for _ in range(4)]
            for call in range(4):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                step.apply_gradients(*arrays, arrays[:1], [1e-3], 1)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        print(faults(), tick.keep_pages() or faults())
    """
    run = [sys.executable, "-c", textwrap.dedent(lines)]
    printed = subprocess.run(run, cwd=LAB, capture_output=True, check=True, text=True).stdout
    fresh, kept = map(int, printed.split())
    # An array of that length has 8,192 pages, and an update writes nineteen.
    assert (kept < 20_000, fresh > 100_000) == (True, True)


def test_the_answers_are_what_the_shapes_say():
    module, answers = load_file(LAB / "tick.py"), load_answers(SOLUTION)
    n, (rows, columns) = module.FEATURES, module.TABLE
    assert answers["mail_intensity"] == pytest.approx(2 * n**3 / (12 * n**2), rel=0.01)
    assert answers["ads_intensity"] == pytest.approx(
        2 * rows * columns / (4 * (rows * columns + rows + columns)), rel=0.01
    )
    operations, arrays = counted_work(LAB / "step.py")
    assert answers["update_intensity"] == pytest.approx(operations / (4 * arrays), rel=0.01)
    assert answers["needed_intensity"] == pytest.approx(operations / (4 * 9), rel=0.01)


def counted_work(path: Path) -> tuple[int, int]:
    """Operations a parameter of a shipped step, and arrays read and written, as torch dispatches
    them.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    size, found = 10, []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if re.match(r"aten\.(add|sub|mul|div|pow|sqrt)\.", str(function)):
                found.append(
                    1 + sum(isinstance(arg, torch.Tensor) and arg.numel() == size for arg in args)
                )
            return out

    state, gradients = [torch.ones(size) for _ in range(4)], torch.ones(1, size)
    with Count():
        load_file(path).apply_gradients(*state, gradients, [1e-3], 1)
    return len(found), sum(found)
