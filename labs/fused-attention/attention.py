"""Compile the attention kernel beside this file and hand it NumPy arrays. Run alone, it checks and
times the kernel against PyTorch.

`attention.cpp` is the kernel for `cpu`, `attention.cu` for `cuda`, where `attention_triton.py` may
take its place. Each exports one function that fills `out` for contiguous `q`, `k`, `v` of
heads x seq x dim (`heads` counts batch x heads). Only these three files are yours to edit. A check
also looks at what the kernel calls, and at whether it writes only its answer.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CPU_SOURCE = HERE / "attention.cpp"
CUDA_SOURCE = HERE / "attention.cu"
CPU_COMPILER = ["g++", "-O3", "-march=native", "-fopenmp", "-std=c++17", "-Wall", "-fPIC"]
CPU_LINKER = ["g++", "-fopenmp", "-shared"]
CUDA_COMPILER = ["-O3", "-std=c++17", "-lineinfo", "-Xcompiler", "-fPIC"]


class CompilerError(RuntimeError):
    """The kernel does not compile. The message is the compiler's."""

    reason = "does not compile"


# ---- Compiling ----


def compiled(source: Path, compiler: list[str], linker: list[str]) -> Path:
    """Return the kernel as a shared library, compiled once per source, command and machine.

    Raises CompilerError with what the compiler wrote.
    """
    key = [source.read_text("utf-8"), platform.machine(), cpu_flags(), *compiler, *linker]
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:24]
    default_cache = Path(tempfile.gettempdir()) / f"attention-{os.getuid()}"
    cache = Path(os.environ.get("LAB_CACHE") or default_cache)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = cache / f"attention-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            kernel, fresh = Path(scratch) / "kernel.o", Path(scratch) / library.name
            compile_object(source, compiler, kernel)
            run([*linker, kernel, "-o", fresh], source)
            fresh.replace(library)  # Renamed when whole: nobody loads half a library.
    return library


def compile_object(source: Path, compiler: list[str], target: Path) -> None:
    """Compile `source` to the object file `target`."""
    run([*compiler, "-c", source.name, "-o", target], source)


def run(command: list, source: Path) -> None:
    """Run a compiler or linker beside `source`. Raises CompilerError if it fails."""
    try:
        done = subprocess.run(
            command, cwd=source.parent, capture_output=True, text=True, timeout=300, check=False
        )
    except FileNotFoundError:
        raise CompilerError(
            f"{command[0]} is not installed here: `lab doctor` says how to get it."
        ) from None
    if done.returncode:
        raise CompilerError(f"{source.name} does not compile:\n{done.stderr[-3000:]}")


def cpu_flags() -> str:
    """Return the CPU's instruction sets, on which -march=native depends; "" if none are listed."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def find_nvcc() -> str:
    """Return the CUDA compiler: on PATH, in a toolkit, or from the extra `bottleneck-lab[nvcc]`."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    candidates = [
        shutil.which("nvcc"),
        os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc",
        *sorted(packages.glob("cu[0-9]*/bin/nvcc"), reverse=True),
    ]
    return next((str(path) for path in candidates if path and Path(path).is_file()), "nvcc")


# ---- Calling: on the CPU ----


def prepare(device: str) -> None:
    """Compile the CPU's kernel. A check lets this process start no other one afterwards."""
    if device == "cpu":
        compiled(CPU_SOURCE, CPU_COMPILER, CPU_LINKER)


def load(device: str):
    """Return the attention function of this device: compiled, loaded and ready."""
    return load_cuda() if device == "cuda" else load_cpu()


def load_cpu():
    forward = ctypes.CDLL(str(compiled(CPU_SOURCE, CPU_COMPILER, CPU_LINKER))).attention_forward
    forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 5
    forward.restype = None

    def attention(q, k, v, causal, threads=1):
        """softmax(q kᵀ / sqrt(dim)) v on float32 arrays of batch x heads x seq x dim."""
        q, k, v = (np.ascontiguousarray(array, dtype=np.float32) for array in (q, k, v))
        batch, heads, seq, dim = q.shape  # dim: 64 or 128
        out = new_output(q.size)
        addresses = [array.ctypes.data for array in (q, k, v, out)]
        with span("attention_forward"):
            forward(*addresses, batch * heads, seq, dim, int(causal), int(threads))
        return out.reshape(q.shape)

    return attention


def new_output(size: int) -> np.ndarray:
    """Return room for an answer. NaN everywhere: what the kernel leaves out shows."""
    return np.full(size, np.nan, dtype=np.float32)


def span(name: str):
    """Show what runs inside as an operator in a torch.profiler capture.

    The profiler does not see native code by itself.
    """
    torch = sys.modules.get("torch")
    return torch._C._profiler._RecordFunctionFast(name) if torch else contextlib.nullcontext()


# ---- Calling: on a GPU ----


def build_cuda(major: int, minor: int) -> ctypes.CDLL:
    """Return the CUDA kernel for GPUs of this compute capability."""
    arch = f"{major}{minor}" + ("a" if major == 9 else "")  # 90a: Hopper's own instructions
    target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    nvcc = find_nvcc()
    compiler, linker = [nvcc, *CUDA_COMPILER, *target], [nvcc, "-shared", *target]
    library = ctypes.CDLL(str(compiled(CUDA_SOURCE, compiler, linker)))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    # q, k, v, out; heads, seq, dim, causal, bf16; the stream. Returns CUDA's status.
    library.attention_forward.argtypes = [pointer] * 4 + [number] * 5 + [pointer]
    library.attention_forward.restype = number
    return library


def launch_cuda(
    forward, q: int, k: int, v: int, out: int, shape: tuple, causal: int, bf16: int, stream: int
) -> None:
    """Queue the kernel on device addresses. Raises RuntimeError with CUDA's number if refused."""
    if status := forward(q, k, v, out, *shape, causal, bf16, stream):
        raise RuntimeError(f"the kernel could not be launched: CUDA error {status}")


def launch_triton(q, k, v, out, causal: int) -> None:
    """Queue the Triton kernel on tensors of heads x seq x dim."""
    import attention_triton

    attention_triton.forward(q, k, v, out, causal)


def load_cuda():
    import attention_triton
    import torch

    if attention_triton.ENABLED:
        launch = launch_triton
    else:
        forward = build_cuda(*torch.cuda.get_device_capability()).attention_forward

        def launch(q, k, v, out, causal):
            stream, bf16 = torch.cuda.current_stream().cuda_stream, int(q.dtype == torch.bfloat16)
            addresses = [tensor.data_ptr() for tensor in (q, k, v, out)]
            launch_cuda(forward, *addresses, tuple(q.shape), causal, bf16, stream)

    def on_gpu(array, dtype):
        if array.dtype == np.uint16:  # The bits of bfloat16, which NumPy does not know.
            return torch.from_numpy(array.view(np.int16)).cuda().view(dtype)
        return torch.from_numpy(array).cuda().to(dtype)

    def attention(q, k, v, causal, weights, bf16=0):
        """sum over i of weights[i] * attention(q rolled by i heads, k, v), for arrays of
        batch x heads x seq x dim: many launches for one transfer.

        Once each head's queries have met all keys, the queries move on by one position, so no
        launch repeats an earlier one.
        """
        dtype = torch.bfloat16 if bf16 else torch.float16
        q, k, v = (on_gpu(array, dtype).flatten(0, 1).contiguous() for array in (q, k, v))
        total = torch.zeros_like(q, dtype=torch.float32)
        out = torch.full_like(q, float("nan"))  # What is never written shows.
        for shift, weight in enumerate(np.asarray(weights).tolist()):
            if shift and shift % len(q) == 0:
                q = q.roll(1, 2)
            launch(q.roll(shift, 0), k, v, out, int(causal))
            total.add_(out, alpha=weight)
        return total.cpu().numpy()

    return attention


# ---- Run alone ----

SHAPES = {  # heads, sequence length, head dimension, causal
    "cpu": [(8, 200, 64, 0), (4, 509, 128, 1), (2, 900, 64, 0), (2, 900, 64, 1)],
    "cuda": [(64, 1023, 64, 1), (64, 2048, 128, 0), (32, 4096, 128, 1)],
}


def main() -> None:
    """Print how far the kernel is from PyTorch's answer, and both times, for a few shapes."""
    import reference

    device = os.environ.get("LAB_DEVICE", "cpu")
    ours, theirs = load(device), reference.load(device)
    generator = np.random.default_rng(0)
    once = [1] if device == "cpu" else [np.ones(1, np.float32)]  # one thread, or one launch
    calls = []
    for heads, seq, dim, causal in SHAPES[device]:
        shape = (1, heads, seq, dim)
        qkv = [generator.standard_normal(shape, dtype=np.float32) for _ in range(3)]
        calls.append([*qkv, causal])
    # Each kernel first runs once per shape: a profiler then finds them side by side.
    errors = [np.abs(ours(*call, *once) - theirs(*call, *once)).max() for call in calls]
    print("heads     seq  dim    mask     apart   ours ms   SDPA ms")
    for (heads, seq, dim, causal), call, error in zip(SHAPES[device], calls, errors):
        mask = "causal" if causal else "full"
        ours_ms, theirs_ms = (milliseconds(side, device, call) for side in (ours, theirs))
        print(f"{heads:5} {seq:7} {dim:4} {mask:>7} {error:9.1e} {ours_ms:9.2f} {theirs_ms:9.2f}")


def milliseconds(attention, device: str, call: list) -> float:
    """Return the median time of nine calls on one thread, or the time of one launch on a GPU.

    The latter is a tenth of what eleven launches take beyond one: both calls copy as much.
    """
    if device == "cpu":
        return sorted(timed(attention, *call, 1) for _ in range(9))[4]
    one, eleven = (timed(attention, *call, np.ones(count, np.float32)) for count in (1, 11))
    return (eleven - one) / 10


def timed(attention, *arguments) -> float:
    started = time.perf_counter()
    attention(*arguments)
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
