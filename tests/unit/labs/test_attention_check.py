"""What a check on `cuda` looks at besides answers and time, with no GPU: Triton sources,
compute-sanitizer's report, machine code.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.channel.session import CallSession
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.speedup import KIND
from bottleneck_lab.measure.kinds.speedup.cuda import kernels
from bottleneck_lab.measure.kinds.speedup.cuda.compilers import compile_cubin
from bottleneck_lab.measure.kinds.speedup.cuda.triton_rules import forbidden
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.programs import find_program
from bottleneck_lab.trace.sanitizer import count_problems, first_problem

from ...tools import NO_SANDBOX

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "labs" / "fused-attention"
SOLUTION = ROOT / "solutions" / "fused-attention"

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at void attention_kernel<__half, (int)64>(const char *, int)+0x7a0 in attention.cu:102
=========     by thread (31,0,0) in block (3,0,0)
=========     Address 0x7f5a4c000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f5a4c000200 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in bare.py:99 [0x1]
========= Invalid __global__ read of size 16 bytes
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at attention_kernel()+0x6a0 in attention.cu:80
=========     and Read access at attention_kernel()+0x9b0 in attention.cu:130 [2048 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.fixture
def context(tmp_path):
    with Janitor() as janitor:
        made = Context(
            find_lab("fused-attention"),
            "cuda",
            KIND.settings(find_lab("fused-attention"), "cuda"),
            tmp_path / "submission",
            LAB,
            tmp_path,
            janitor,
            lambda *_: None,
        )
        made.submission.mkdir()
        for name in made.lab.spec.files:
            shutil.copy(LAB / name, made.submission)
        yield made


# ---- compute-sanitizer ----


def test_a_sanitizers_report_is_read():
    assert (count_problems(MEMCHECK), count_problems(RACECHECK), count_problems(CLEAN)) == (2, 1, 0)
    assert count_problems("========= COMPUTE-SANITIZER\n") is None
    assert first_problem(MEMCHECK) == "Invalid __global__ read of size 16 bytes, attention.cu:102"
    assert first_problem(RACECHECK).startswith("Race reported between Write access")
    assert "attention.cu:80" in first_problem(RACECHECK)


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """A stand-in that prints a report for each check. It takes two seconds where the kernel has
    the word SLOW in it. Its status is 1 where that has WRONG in it, or with `broken` always.
    """

    def make(*, broken: bool = False, **reports: str) -> None:
        folder = tmp_path / "toolkit" / "bin"
        folder.mkdir(parents=True)
        for check, text in reports.items():
            (folder / check).write_text(text)
        tool = folder / "compute-sanitizer"
        tool.write_text(
            '#!/bin/sh\ntest -f "$6" || echo "no $6"\n'
            '! grep -q SLOW attention.cu || sleep 2\ncat "$(dirname "$0")/$2"\n'
            + ("exit 1\n" if broken else "! grep -q WRONG attention.cu\n")
        )
        tool.chmod(0o755)
        monkeypatch.setattr(kernels, "find_program", lambda _name: tool)

    return make


def sanitized(context):
    """The notes of a whole check."""
    runs = kernels.Sanitizer(context)
    runs.finish_ahead()
    return runs.refuse_stray_accesses()


@pytest.mark.parametrize(
    ("memcheck", "racecheck", "words"),
    [
        (MEMCHECK, CLEAN, "memcheck.*found 2 problems.*attention.cu:102"),
        (CLEAN, RACECHECK, "racecheck.*1 problem.*Race"),
    ],
)
def test_a_kernel_with_stray_accesses_or_races_is_refused(
    context, sanitizer, memcheck, racecheck, words
):
    sanitizer(memcheck=memcheck, racecheck=racecheck)
    with pytest.raises(LearnerFault, match=words) as caught:
        sanitized(context)
    assert caught.value.reason == "wrong output"


def test_what_the_sanitizer_found_or_could_not_tell_is_noted(context, sanitizer, monkeypatch):
    sanitizer(memcheck=CLEAN, racecheck=CLEAN)
    assert sanitized(context)[1] == "compute-sanitizer (racecheck) found nothing."
    monkeypatch.setattr(kernels, "find_program", lambda _name: None)
    assert "not checked: compute-sanitizer is not installed" in sanitized(context)[0]
    context.device = "cpu"
    assert sanitized(context) == []


@pytest.mark.parametrize(("ahead_s", "runs"), [(20.0, 1), (0.5, 2)], ids=["in time", "too slow"])
def test_a_kernel_is_sanitized_before_the_comparison_or_else_after_it(
    context, sanitizer, monkeypatch, ahead_s, runs
):
    sanitizer(memcheck=CLEAN, racecheck=CLEAN)
    monkeypatch.setattr(kernels, "AHEAD_S", ahead_s)
    context.workspace = context.submission
    kernel = context.workspace / "attention.cu"
    kernel.write_text(kernel.read_text() + "// SLOW\n")
    assert all("found nothing" in note for note in sanitized(context))
    # A folder for each: none sees what an earlier one has written.
    assert len(list(context.janitor.folder.glob("*check-*"))) == 2 * runs


def test_a_program_that_fails_under_it_proves_nothing_where_the_shipped_kernel_fails_too(
    context, sanitizer
):
    sanitizer(broken=True, memcheck="Error: no device\n", racecheck=CLEAN)
    unsure, silent = sanitized(context)
    assert "memcheck) could not finish" in unsure
    assert "no device" in unsure
    assert "racecheck) could not finish" in silent


@pytest.mark.parametrize("report", [CLEAN, "killed\n"], ids=["a clean report", "no report"])
def test_a_kernel_with_which_alone_it_fails_is_wrong(context, sanitizer, report):
    sanitizer(memcheck=report, racecheck=CLEAN)
    context.workspace = context.submission
    kernel = context.workspace / "attention.cu"
    kernel.write_text(kernel.read_text() + "// WRONG\n")
    with pytest.raises(LearnerFault, match="failed with this kernel") as caught:
        sanitized(context)
    assert caught.value.reason == "wrong output"


# ---- The bare launcher ----


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.syspath_prepend(str(LAB))
    for name in ("bare", "attention"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import bare

    yield bare
    for name in ("bare", "attention"):
        sys.modules.pop(name, None)


class HostDriver:
    """The CUDA driver's functions on the host's memory, with what is freed and what is left
    counted.
    """

    def __init__(self):
        self.held = {}

    def __getattr__(self, name):
        return lambda *_: 0

    def cuMemAlloc_v2(self, address, size):  # noqa: N802 - the driver's own name
        memory = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(memory)
        self.held[address._obj.value] = memory
        return 0

    def cuMemcpyHtoD_v2(self, to, source, size):  # noqa: N802 - the driver's name
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to, source, size):  # noqa: N802 - the driver's name
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemFree_v2(self, address):  # noqa: N802 - the driver's name
        return 0 if self.held.pop(address.value, None) else 1


def test_the_bare_launcher_tells_right_from_wrong_and_frees_what_it_took(bare):
    def right(q, k, v, out, heads, seq, dim, causal, bf16, stream):
        arrays = [
            np.ctypeslib.as_array((ctypes.c_uint16 * (heads * seq * dim)).from_address(x))
            for x in (q, k, v, out)
        ]
        x, y, z = (bare._values(array, bf16).reshape(heads, seq, dim) for array in arrays[:3])
        scores = np.where(
            np.tri(seq, dtype=bool) | (not causal), x @ y.swapaxes(1, 2) / np.sqrt(dim), -np.inf
        )
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        arrays[3][:] = bare._bits(
            (weights @ z / weights.sum(-1, keepdims=True)).astype(np.float32), bf16
        ).ravel()
        return 0

    library = HostDriver()
    assert bare.check(bare.with_driver(bare.Driver(library), right)) < bare.TOLERANCE
    assert not library.held
    assert bare.check(bare.with_driver(bare.Driver(library), lambda *_: 0)) == np.inf
    with pytest.raises(RuntimeError, match="CUDA error 9"):
        bare.check(bare.with_driver(bare.Driver(library), lambda *_: 9))


# ---- Triton sources ----


@pytest.mark.parametrize("folder", [LAB, SOLUTION], ids=["shipped", "solution"])
def test_a_source_that_only_launches_kernels_is_accepted(folder):
    assert forbidden((folder / "attention_triton.py").read_bytes(), "attention_triton.py") is None


FORWARD = "def forward(q, k, v, out, causal):\n    "


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import torch.nn.functional as F\n", "line 1: it imports torch.nn.functional"),
        (
            "from torch.nn.functional import scaled_dot_product_attention\n",
            "it imports from torch.nn.functional",
        ),
        ("from torch import matmul\n", "it imports matmul from torch"),
        ("import os\n", "it imports os"),
        (f"import torch\n{FORWARD}out.copy_(torch.softmax(q, -1))", "line 3"),
        (f"{FORWARD}s = q @ k", "multiplies with `@`"),
        (f"{FORWARD}getattr(q, 'matmul')(k)", "`getattr`"),
        (f"{FORWARD}q.__class__", "q.__class__"),
        (f"{FORWARD}__builtins__", "__builtins__"),
        (
            "import torch\nimport triton\ntriton = torch\n@triton.jit\ndef f(): torch.matmul",
            "it redefines",
        ),
        ("import torch as triton\n@triton.jit\ndef f(): pass", "it imports torch"),
        ("def triton(): pass", "it redefines"),
        ("match 1:\n    case int(real=x): pass", "`match`"),
        ("class A: pass", "`classdef`"),
        ("import triton\n@triton.jit\ndef f(x=open('a')): pass", "`open`"),
        ("import triton\n@triton.jit\ndef f() -> exec('1'): pass", "line 3: it uses `exec`"),
        (
            "import triton\n@triton.jit\n@(lambda f: f())\ndef f(): import os",
            "line 4: it imports os",
        ),
        ("import triton\ntriton.jit = lambda f: f", "line 2: it uses `triton.jit`"),
        ("try: pass\nexcept ValueError as triton: pass", "line 2: it redefines `triton`"),
        ("# coding: unicode_escape\n# \\u000aimport os", "line 3: it imports os"),
        ("x = " + "-" * 3000 + "1", "nested too deeply"),
        ("x = q" + ".shape" * 3000, "nested too deeply"),
    ],
)
def test_a_source_that_computes_by_itself_is_refused(source, words):
    problem = forbidden(source.encode(), "attention_triton.py")
    assert problem is not None
    assert words in problem
    assert problem.endswith("Write the kernel without libraries.")


def test_the_verdict_says_forbidden_call(context):
    kernels.refuse_forbidden(context)
    (context.submission / "attention_triton.py").write_text("import cupy\n")
    with pytest.raises(LearnerFault, match="line 1: it imports cupy") as caught:
        kernels.refuse_forbidden(context)
    assert caught.value.reason == "forbidden call"


INTERPRETED = """
import sys
import numpy as np, torch
sys.path[:0] = sys.argv[1:3]
import attention_triton, judge
cases = [
    ("normal", 65, 64, 1),
    ("normal", 130, 128, 0),
    ("hidden rows", 33, 64, 1),
    ("hidden keys", 64, 64, 0),
    ("huge negative", 17, 64, 1),
    ("far below zero", 17, 64, 0),
    ("hidden, then low", 131, 64, 1),
]
for kind, seq, dim, causal in cases:
    shape = judge.Shape(1, 2, seq, dim, bool(causal), 1, "fp16", 1)
    arrays = judge._extreme(np.random.default_rng(seq), kind, shape)
    q, k, v = (torch.from_numpy(array.reshape(2, seq, dim)).half() for array in arrays)
    out = torch.full_like(q, float("nan"))
    attention_triton.forward(q, k, v, out, causal)
    exact = judge.exact(*(x.double().numpy() for x in (q, k, v)), bool(causal))
    error = np.abs(out.numpy() - exact).max()
    assert error <= judge.ERROR_FLOOR["fp16"] * float(v.abs().max()), (kind, seq, error)
print("all right")
"""


def test_the_triton_variant_is_the_solutions_kernel_switched_on():
    """So the solution's Triton kernel is measured too where there is a GPU."""
    variant = (
        ROOT / "tests" / "variants" / "fused-attention" / "triton" / "attention_triton.py"
    ).read_text()
    solution = (SOLUTION / "attention_triton.py").read_text()
    assert variant == solution.replace("ENABLED = False", "ENABLED = True") != solution


@pytest.mark.parametrize("folder", [LAB, SOLUTION], ids=["shipped", "solution"])
def test_the_triton_kernels_are_right_in_tritons_interpreter(folder, tmp_path):
    """NumPy in place of the GPU, a block at a time: indexing, masks and order. Its bfloat16
    products are of bit patterns, so float16 only.
    """
    pytest.importorskip("triton")
    (tmp_path / "run.py").write_text(INTERPRETED)
    command = [sys.executable, tmp_path / "run.py", folder, LAB]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "all right\n", done.stderr[-2000:]


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_on_a_cpu_the_libraries_are_not_even_there(context):
    """What a kernel calls is checked by name, and it runs where PyTorch is unavailable."""
    context.device, context.settings = "cpu", KIND.settings(context.lab, "cpu")
    (context.submission / "entry.py").write_text(
        "prepare = print\ndef load(device):\n    import numpy\n    import torch.nn\n"
    )
    limits = Limits(start_s=60, call_s=5)
    with pytest.raises(LearnerFault, match="No module named 'torch"):
        CallSession.start(context, "learner", context.submission, "entry.py", limits)
    (context.submission / "entry.py").write_text(
        "def load(device):\n    import torch\n    return lambda: int(torch.ones(1))\n"
    )
    with CallSession.start(
        context, "reference", context.submission, "entry.py", limits
    ) as reference:
        assert reference.call([])[1] == [1]


# ---- Machine code ----


@pytest.mark.skipif(
    find_program("nvcc") is None or find_program("nvdisasm") is None,
    reason="needs nvcc and nvdisasm",
)
def test_the_machine_code_of_what_was_run_is_part_of_the_verdict(context, cubins):
    place = context.submission / ".triton" / "cache" / "x"
    place.mkdir(parents=True)
    measured = {}
    for name, folder in {"shipped": LAB, "solution": SOLUTION}.items():
        shutil.copy(compile_cubin(folder / "attention.cu", "90a", cubins), place / "kernel.cubin")
        measured[name] = kernels.with_machine_code(context, Measured([], notes=["before"]))
    (shipped,), (solution,) = (measured[name].results for name in ("shipped", "solution"))
    assert (shipped.id, shipped.kind, shipped.holds, shipped.value) == (
        "load-bytes",
        "mechanism",
        False,
        4,
    )
    assert (solution.holds, solution.value, solution.samples) == (True, 16, 4)
    assert any(
        "The widest load from global memory is 4 bytes" in note
        for note in measured["shipped"].notes
    )
    told = next(
        note
        for note in measured["solution"].notes
        if note.startswith("Machine code of attention_kernel<")
    )
    assert "tensor-core instructions (HGMMA)" in told
    assert "registers per thread" in told
    assert measured["solution"].details["machine_code"][0]["arch"] == "90a"


def test_a_check_that_cannot_find_the_kernel_blames_itself(context):
    with pytest.raises(VerifierFault, match="No compiled kernel"):
        kernels.with_machine_code(context, Measured([]))
    context.device = "cpu"
    assert kernels.with_machine_code(context, Measured([])) == Measured([])
