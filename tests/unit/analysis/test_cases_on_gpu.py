"""Programs of the case library, recorded by a real profiler: here on the CPU."""

import json

import pytest

PROGRAM = """
import torch
from torch.profiler import profile, schedule


def load():
    return torch.ones(4)


def main():
    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for step in range(1_000_000):
            load().sum()
            load().sum()
            prof.step()
"""


@pytest.fixture(scope="module")
def on_gpu(torch):
    """The recorder, which imports PyTorch."""
    from scripts.cases import on_gpu

    return on_gpu


@pytest.fixture
def spec(on_gpu):
    return on_gpu.CaseSpec("", 1, "", "", "host-bound", host={"load": 20_000.0})


def test_a_program_ends_when_its_steps_are_recorded_and_its_cause_costs_what_it_says(
    on_gpu, spec, tmp_path
):
    top = on_gpu.Switch("twice", "", edits=[("load().sum()\n            load()", "load()")])
    costs = on_gpu.measure(PROGRAM, spec, top, tmp_path / "trace.json")
    names = [
        row["name"] for row in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert costs["as_it_is"] >= 3 * 2 * 20
    assert costs["without"] >= 3 * 20
    assert costs["gain"] == pytest.approx(costs["as_it_is"] / costs["without"], abs=1e-3)


def test_a_case_without_a_cause_is_recorded_once(on_gpu, spec, tmp_path):
    costs = on_gpu.measure(PROGRAM, spec, None, tmp_path / "trace.json")
    assert costs.keys() == {"as_it_is"}


@pytest.mark.parametrize(("machine", "runs"), [({}, True), ({"ranks": 2}, False)])
def test_what_only_the_modelled_machine_has_is_not_tried(on_gpu, machine, runs):
    spec = on_gpu.CaseSpec("", 1, "", "", "host-bound", machine=machine)
    assert (on_gpu.why_not(spec) == "") is runs
