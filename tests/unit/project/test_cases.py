"""The library of cases agrees with its programs and declarations, and one recording comes out the
same again.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load
from bottleneck_lab.analysis.host.lines import lines_at
from bottleneck_lab.grading.cases import Case
from bottleneck_lab.grading.causes import CAUSES
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import take
from bottleneck_lab.workspace.cases import load_library

ROOT = Path(__file__).parents[3]
CASES = ROOT / "datasets" / "cases"
LIBRARY = {case.name: case for case in load_library().cases}
TELLING = ("slow", "bottleneck", "todo", "fixme", "inefficien", "wasteful", "unnecessar")


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name.startswith("scripts.cases")]:
        del sys.modules[name]


def test_the_manifest_lists_every_folder():
    assert set(LIBRARY) == {path.parent.name for path in CASES.glob("*/case.toml")}


@pytest.mark.parametrize("name", ["bird-choirs", "rail-cracks"])
def test_recorded_memory_says_which_block_is_freed(name: str):
    memory = load(CASES / name / "trace.json.gz").memory
    blocks = memory.address[memory.bytes > 0]
    assert len(blocks) > 100
    assert len(np.unique(blocks)) == len(blocks)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_a_case_agrees_with_its_program_and_declaration(name: str):
    from scripts.cases.__main__ import digests, problems
    from scripts.cases.record import PROGRAM, apply, lines_of, load_spec

    case, folder = LIBRARY[name], CASES / name
    spec, program = load_spec(folder), (folder / PROGRAM).read_text()
    assert case.sha256 == digests(folder), f"record it again: python -m scripts.cases {name}"
    assert problems(case) == []
    assert all(each.why for each in spec.decoy), "what it was, and why it brings nothing"
    assert (case.title, case.level, case.cause) == (spec.title, spec.level, spec.cause)
    for declared, listed in ((spec.switch, case.switches), (spec.decoy, case.decoys)):
        assert {each.name for each in declared} == {each.name for each in listed}
        for each in declared:
            compile(apply(program, each), PROGRAM, "exec")
            assert (each.why, lines_of(program, each)) == next(
                (other.why, other.lines) for other in listed if other.name == each.name
            )


@pytest.mark.parametrize("case", LIBRARY.values(), ids=sorted(LIBRARY))
def test_nothing_gives_a_case_away(case: Case):
    program = (CASES / case.name / "program.py").read_text()
    assert 40 <= program.count("\n") <= 150
    text = f"{program} {case.story} {case.title}".lower()
    assert not [word for word in (*TELLING, *CAUSES[:-1]) if word in text]


def _lines_of(code: types.CodeType) -> set[str]:
    """Return what a recording may call the lines of a program, those of its functions included."""
    own = {f"program.py({line}): {code.co_name}" for *_, line in code.co_lines() if line}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return own.union(*map(_lines_of, inner))


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_every_operator_of_a_case_has_one_line_and_it_is_the_programs(name: str):
    folder = CASES / name
    lines = _lines_of(compile((folder / "program.py").read_text(), "program.py", "exec"))
    for trace in LIBRARY[name].traces:
        timeline = load(folder / trace)
        around = {text for text in timeline.strings if text.startswith(("autograd", "Distributed"))}
        at = lines_at(timeline, timeline.operators)
        missing = {timeline.strings[timeline.operators.name[i]] for i in np.flatnonzero(at < 0)}
        assert missing <= around, "operators without a line"
        (track,) = (i for i, each in enumerate(timeline.threads) if each.tid.startswith(LINES_OF))
        rows = take(timeline.python, timeline.python.thread == track)
        assert {timeline.strings[i] for i in rows.name.tolist()} <= lines
        assert (rows.start[1:] >= rows.end[:-1] - 1).all(), "two lines at once"
        assert (rows.end - rows.start).sum() > 0.99 * (rows.end[-1] - rows.start[0])


def test_the_library_has_every_level_and_every_cause():
    assert len(LIBRARY) >= 30
    assert {case.level for case in LIBRARY.values()} == {1, 2, 3}
    assert {case.cause for case in LIBRARY.values()} == set(CAUSES)


def test_fused_attention_is_named_as_pytorch_chooses_it_for_a_type():
    efficient, flash = 0, 0
    for name, case in LIBRARY.items():
        for trace in case.traces:
            names = set(load(CASES / name / trace).strings)
            for operator, kernel in (("efficient", "fmha_cutlass"), ("flash", "flash_")):
                called = {each for each in names if f"_{operator}_attention" in each}
                ran = {each for each in names if f" {kernel}" in each or f"::{kernel}" in each}
                assert len(called) == len(ran), (name, called, ran)
                efficient += len(called) * (operator == "efficient")
                flash += len(called) * (operator == "flash")
    assert efficient
    assert flash


REQUESTS = """
import torch
from torch import nn
from torch.profiler import profile, schedule


def main():
    # the limit
    model = torch.compile(nn.Linear(16, 16).to("cuda"), dynamic=False)
    with profile(schedule=schedule(active=12)) as prof:
        for rows in range(1, 13):
            model(torch.ones(rows, 16, device="cuda"))
            prof.step()
"""


@pytest.mark.parametrize(
    ("limit", "regions"), [("", 8), ("torch._dynamo.config.recompile_limit = 10", 10)]
)
def test_a_new_shape_is_compiled_until_the_limit_and_then_runs_as_written(limit, regions):
    from scripts.cases.record import CaseSpec, run

    program = REQUESTS.replace("# the limit", limit)
    (machine,) = run(program, CaseSpec("", 1, "", "", "healthy"))
    names = [row["name"] for row in machine.rows]
    named = [name for name in names if name.startswith("Torch-Compiled Region")]
    assert named == [f"Torch-Compiled Region: 0/{number}" for number in range(regions)]
    assert sum("compile_inner" in name for name in names) == regions
    assert names.count("aten::addmm") == 12


def test_a_recording_comes_out_the_same_again():
    from scripts.cases.__main__ import traces
    from scripts.cases.record import PROGRAM, load_spec, run

    folder = CASES / "roof-tiles"
    runs = run((folder / PROGRAM).read_text(), load_spec(folder))
    assert dict(traces(runs)) == {path.name: path.read_bytes() for path in folder.glob("*.json.gz")}


def test_no_two_batches_of_a_healthy_step_are_the_same():
    """Or half of its arithmetic would be needless."""
    program = (CASES / "polite-pretrainer" / "program.py").read_text()
    assert "model(tokens[" in program
    assert "model(more[" in program


def test_a_network_that_only_answers_has_no_kernel_of_training():
    names = set()
    for trace in LIBRARY["roof-tiles"].traces:
        names |= set(load(CASES / "roof-tiles" / trace).strings)
    assert any("batch_norm_transform_input" in name for name in names)
    assert not any("bn_fw_tr" in name for name in names)


def test_foreach_operators_take_the_kernels_that_they_took_on_an_a100(torch):
    from scripts.cases.multi_tensor import launches

    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        numels = [weight.numel() for weight in torchvision.models.resnet50().parameters()]
    assert [blocks for blocks, *_ in launches(numels, 1)] == [180, 320, 8]
    assert [blocks for blocks, *_ in launches(numels, 2)] == [71, 155, 282]
    assert [sum(elements for _, elements, _ in launches(numels, depth)) for depth in (1, 2, 3)] == [
        sum(numels)
    ] * 3


TRAINING = """
import torch
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index))


def main():
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(30)]).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Rows(), batch_size=4, num_workers=2)
    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for rows in loader:
            loss = model(rows.to("cuda")).sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
"""


def test_an_optimizer_launches_for_all_weights_at_once_and_workers_leave_lines_alone():
    from scripts.cases.record import CaseSpec, run

    (machine,) = run(TRAINING, CaseSpec("", 1, "", "", "healthy"))
    step = next(row for row in machine.rows if row["name"] == "Optimizer.step#AdamW.step")
    begin, end = step["ts"], step["ts"] + step["dur"]
    inside = [row for row in machine.rows if begin <= row["ts"] < end]
    operators = [row["name"] for row in inside if row["cat"] == "cpu_op"]
    # One for the weight decay, two moments, and what divides one by the other's root.
    assert operators == [
        f"aten::_foreach_{name}"
        for name in ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
    ]
    # 60 weights: one kernel of up to two lists of tensors, two of three lists.
    assert sum(row["name"] == "cudaLaunchKernel" for row in inside) == 6 + 2 * 2
    lines = [row for row in machine.rows if str(row["tid"]).startswith(LINES_OF)]
    loop = TRAINING[: TRAINING.index("for rows in loader")].count("\n") + 1
    for fetch in (row for row in machine.rows if row["name"].startswith("enumerate")):
        (line,) = (row["name"] for row in lines if 0 <= fetch["ts"] - row["ts"] < row["dur"])
        assert line == f"program.py({loop}): main"
    assert sum(row["dur"] for row in lines) == pytest.approx(machine.elapsed, rel=0.01)
