"""What holds a native kernel: it calls no library, and writes its answer and nothing else."""

from __future__ import annotations

import mmap
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab.measure.sandbox import native_code

from ...modules import load_file

LAB = Path(__file__).resolve().parents[3] / "labs" / "fused-attention"
HEAD = """extern "C" void attention_forward(
    const float* q, const float*, const float*, float* out, int heads, int seq, int dim, int, int
) {
    const long size = (long)heads * seq * dim;
    for (long i = 0; i < size; ++i) out[i] = 0;
    %s
}"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the kernels")


@pytest.fixture
def attention(tmp_path, monkeypatch):
    """The lab's entry file as a worker loads it, on a kernel given as its source."""
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    shutil.copy(LAB / "attention.py", tmp_path)

    def load(source: str):
        (tmp_path / "attention.cpp").write_text(source)
        module = load_file(tmp_path / "attention.py", "attention")
        native_code.guard(module)
        module.prepare("cpu")
        return module.load("cpu")

    yield load
    sys.modules.pop("attention", None)


def test_a_right_kernel_is_left_alone(attention):
    q = np.ones((1, 2, 5, 64), np.float32)
    assert np.array_equal(attention(HEAD % "")(q, q, q, 0), np.zeros_like(q))


@pytest.mark.parametrize(
    ("declaration", "call"),
    [
        ("void* dlopen(const char*, int)", 'dlopen("x", 1)'),
        ("int cblas_sgemm()", "cblas_sgemm()"),
        ("int system(const char*)", 'system("x")'),
    ],
)
def test_a_kernel_that_calls_a_library_is_not_even_loaded(attention, declaration, call):
    source = f'extern "C" {declaration};\n' + HEAD % f"if (size < 0) {call};"
    name = call.partition("(")[0]
    with pytest.raises(RuntimeError, match=f"calls {name}: write the kernel without") as caught:
        attention(source)
    assert caught.value.reason == "forbidden call"


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("size", "the one 1 past the end"),
        ("size + 3", "the one 4 past the end"),
        ("-1", "the one 1 before the start"),
    ],
)
def test_a_write_beside_the_answer_is_seen(attention, index, where):
    q = np.zeros((1, 1, 3, 64), np.float32)
    with pytest.raises(RuntimeError, match=where) as caught:
        attention(HEAD % f"out[{index}] = 1;")(q, q, q, 0)
    assert caught.value.reason == "wrong output"


def test_a_kernel_that_writes_to_shared_inputs_is_ended(attention, tmp_path):
    attention(HEAD % "((float*)q)[5000] *= 1.0f + 1e-7f;")
    script = """if True:
        import mmap, sys
        import numpy as np
        import attention
        from bottleneck_lab.measure.sandbox import native_code
        memory = mmap.mmap(-1, 1 << 16) if sys.argv[1] == "shared" else None
        q = np.ndarray((1, 2, 100, 64), np.float32, buffer=memory)
        native_code.guard(attention)
        attention.load("cpu")(q, q, q, 0)"""
    status = {
        memory: subprocess.run(
            [sys.executable, "-c", script, memory], cwd=tmp_path, check=False
        ).returncode
        for memory in ("shared", "own")
    }
    assert status == {"shared": -signal.SIGSEGV, "own": 0}


def test_only_whole_pages_of_shared_memory_become_read_only():
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    array = np.ndarray(2 * mmap.PAGESIZE, np.uint8, buffer=memory, offset=8)
    native_code.make_read_only(array)
    # The first page and the last begin before the array or end behind it.
    memory[0] = memory[2 * mmap.PAGESIZE + 1] = 1
    assert array[2 * mmap.PAGESIZE - 7] == 1


def test_pytorch_may_allocate_for_a_triton_kernel_and_compute_nothing(torch):
    q = torch.ones(1, 4, 8)
    allocate = native_code.without_operators(lambda: torch.empty_like(torch.empty(2, 2)))
    assert allocate().shape == (2, 2)
    for call in (lambda: q + q, lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)):
        with pytest.raises(native_code.ForbiddenCallError, match="without libraries"):
            native_code.without_operators(call)()


def test_the_launches_of_the_lab_are_guarded(attention):
    attention(HEAD % "")
    module = sys.modules["attention"]
    assert module.launch_triton.__qualname__.startswith("without_operators")
    assert isinstance(module.new_output.__self__, native_code.GuardedOutputs)
