"""Whole checks on `cuda` without a GPU: the learner's work is NumPy's, the kernel beside it is only
compiled, compute-sanitizer is a stand-in.

These show the way from a finding in a kernel to the verdict; answers and time are the example
lab's.
"""

import shutil

import msgspec
import pytest

from bottleneck_lab.catalog import CriterionSpec, Lab
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure import machine
from bottleneck_lab.measure.kinds.speedup import refusals
from bottleneck_lab.measure.kinds.speedup.cuda import kernels
from bottleneck_lab.measure.kinds.speedup.cuda.compilers import compile_cubin
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.programs import find_program

pytestmark = pytest.mark.skipif(
    find_program("nvcc") is None or find_program("nvdisasm") is None,
    reason="needs nvcc and nvdisasm",
)

KERNEL = """
extern "C" __global__ void multiply(const uint4* in, float* out) {{
    const uint4 x = {load};
    float c[4] = {{}};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%4,%5}}, {{%0,%1,%2,%3}};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
    out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}}
"""
NARROW = (
    "{in[threadIdx.x].x, in[threadIdx.x + 40].y, in[threadIdx.x + 80].z, in[threadIdx.x + 120].w}"
)
BINDING = """
import pathlib, shutil
import numpy as np

def load(device):
    folder = pathlib.Path(".triton/cache/x")
    folder.mkdir(parents=True)
    shutil.copy("kernel.cubin", folder)
    return lambda trace, width: np.convolve(trace, np.full(width, 1 / width), "valid")
"""


@pytest.fixture
def gpu_lab(lab, tmp_path) -> Lab:
    """The example lab on `cuda`, with a kernel to be looked at and generous targets: nothing here
    is about speed.
    """
    path = tmp_path / "lab"
    shutil.copytree(lab.path, path)
    (path / "bare.py").write_text("")
    (path / "kernel.cubin").write_bytes(b"")
    with (path / "judge.py").open("a") as judge:
        judge.write("\n\ndef rivals(inputs):\n    return {'another way': list(inputs)}\n")
    device = lab.spec.devices["cpu"]
    criteria = [
        device.criteria[0],
        msgspec.structs.replace(device.criteria[1], target=0.01),
        CriterionSpec(
            "load-bytes", "mechanism", "loads of at least {target}", target=8, unit="bytes"
        ),
    ]
    settings = {
        **device.settings,
        "sanitize": "bare.py",
        "self_test_margin": 20,
        "second_level": msgspec.to_builtins(criteria[1]),
    }
    spec = msgspec.structs.replace(
        lab.spec,
        files=[*lab.spec.files, "bare.py", "kernel.cubin"],
        editable=[*lab.spec.editable, "kernel.cubin"],
        devices={"cuda": msgspec.structs.replace(device, criteria=criteria, settings=settings)},
    )
    return msgspec.structs.replace(lab, path=path, spec=spec)


@pytest.fixture
def verdict(gpu_lab, tmp_path, cubins, monkeypatch):
    def check(load: str, memcheck: str = "ERROR SUMMARY: 0 errors"):
        work = tmp_path / "work"
        work.mkdir()
        (work / "smooth.py").write_text(BINDING)
        (work / "kernel.cu").write_text(KERNEL.format(load=load))
        shutil.copy(compile_cubin(work / "kernel.cu", "80", cubins), work / "kernel.cubin")
        tool = tmp_path / "bin" / "compute-sanitizer"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\necho "========= {memcheck}"\n')
        tool.chmod(0o755)
        monkeypatch.setattr(kernels, "find_program", lambda _name: tool)
        # A CPU that runs other tests is slowed by those, the reference's calls more or less than
        # the learner's.
        monkeypatch.setattr(machine.LoadMeter, "cores", lambda _: 0.0)
        monkeypatch.setattr(refusals, "MAX_SLOWED", 99.0)
        monkeypatch.setattr(refusals, "SURELY_SLOWED", 99.0)
        return check_lab(gpu_lab, work, "cuda", data=tmp_path)

    return check


@pytest.mark.long
def test_a_kernel_in_order_passes_and_is_explained(verdict):
    result = verdict("in[threadIdx.x]")
    assert result.outcome is Outcome.PASS, result.summary
    mechanism = next(one for one in result.criteria if one.id == "load-bytes")
    assert (mechanism.holds, mechanism.value) == (True, 16)
    assert "compute-sanitizer (memcheck) found nothing." in result.notes
    assert "compute-sanitizer (racecheck) found nothing." in result.notes
    assert any(note.startswith("Machine code of multiply: ") for note in result.notes)
    second = [note for note in result.notes if note.startswith("Second level, not needed for a")]
    assert len(second) == 1, result
    assert result.measurement["second_level"]["id"] == "speedup"
    assert result.measurement["machine_code"][0]["tensor_core"]["HMMA"] > 0


@pytest.mark.long
def test_a_kernel_that_is_fast_enough_and_still_loads_piecemeal_keeps_the_mechanism(verdict):
    result = verdict(NARROW)
    assert (result.outcome, result.reason) == (
        Outcome.FAIL,
        "the mechanism is still there",
    ), result.summary
    assert "4 bytes" in result.summary


@pytest.mark.long
def test_a_stray_access_is_a_wrong_output_whatever_the_time(verdict):
    result = verdict(
        "in[threadIdx.x]",
        "Invalid __global__ read of size 16 bytes\n========= ERROR SUMMARY: 1 error",
    )
    assert (result.outcome, result.reason) == (Outcome.FAIL, "wrong output")
    assert "Invalid __global__ read" in result.summary
    assert all(one.value is None for one in result.criteria)
