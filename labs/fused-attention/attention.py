"""Compiles the attention kernel that lies beside this file and hands it NumPy arrays. Run alone, it
checks and times it against PyTorch.

`attention.cpp` is the kernel for `cpu`, `attention.cu` for `cuda`, where `attention_triton.py` may
take its place. Each exports one function that fills `out` for contiguous `q`, `k`, `v` of heads x
seq x dim (`heads` counts batch x heads). Only these three files are yours to edit.
"""

import contextlib
import ctypes
import hashlib
import mmap
import os
import platform
import re
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
CPU_COMPILER = ["g++", "-O3", "-march=native", "-fopenmp", "-std=c++17", "-Wall", "-fPIC"]
CPU_LINKER = ["g++", "-fopenmp", "-shared"]
CUDA_COMPILER = ["-O3", "-std=c++17", "-lineinfo", "-Xcompiler", "-fPIC"]
OWN_SYMBOLS = re.compile(
    r"GOMP_\w+|omp_\w+|pthread_\w+|mem(cpy|set|move|cmp)|[cm]alloc|realloc|free|aligned_alloc|posix_memalign|abort|_Z(nw|na|dl|da)\w+|"
    r"_ZNK?St\w+|_ZSt\w+|_ZT[VIS]\w+|__cxa_\w+|__gxx_personality_v0|_Unwind_\w+|__stack_chk_fail|__tls_get_addr|__dso_handle|__cpu_\w+|"
    r"_GLOBAL_OFFSET_TABLE_|__assert_fail|atexit|s?n?printf|fprintf|puts|stderr|(exp2?|expm1|log2?|log1p|pow|sqrt|tanh|fma|fmax|fmin|ldexp|l?l?rint|l?l?round|"
    r"floor|ceil|trunc|scalbl?n)[fl]?|(__)?cuda\w+|__fatbinwrap\w*"
)
POINTERS, NUMBERS = ctypes.c_void_p, ctypes.c_int
LIBC = ctypes.CDLL(None)
GUARD = 64  # floats before an answer and behind it that are nobody's to write


class CompilerError(RuntimeError):
    """The kernel does not compile: what the compiler said is all that there is to say."""

    reason = "does not compile"


class ForbiddenCallError(RuntimeError):
    """The kernel calls what it was to do itself."""

    reason = "forbidden call"


class StrayWriteError(RuntimeError):
    """The kernel wrote where its answer does not lie."""

    reason = "wrong output"


def compiled(source: Path, compiler: list[str], linker: list[str]) -> Path:
    """The kernel as a library. Made once for each source, command and machine; a compiler's
    complaint is raised as it stands.
    """
    parts = [
        source.read_text(encoding="utf-8"),
        platform.machine(),
        _cpu_flags(),
        *compiler,
        *linker,
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    folder = Path(
        os.environ.get("LAB_CACHE") or Path(tempfile.gettempdir()) / f"attention-{os.getuid()}"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / f"attention-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            kernel, fresh = Path(scratch) / "kernel.o", Path(scratch) / library.name
            _run([*compiler, "-c", source.name, "-o", kernel], source)
            _refuse_libraries(source, kernel)
            _run([*linker, kernel, "-o", fresh], source)
            fresh.replace(library)  # renamed when whole: another process never loads half a library
    return library


def _run(command: list, source: Path) -> None:
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


def _refuse_libraries(source: Path, kernel: Path) -> None:
    """The kernel is the exercise: what it calls must be the language's own, OpenMP's, or the CUDA
    runtime's.
    """
    names = subprocess.run(
        ["nm", "-u", kernel], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()[1::2]
    if foreign := sorted(name for name in names if not OWN_SYMBOLS.fullmatch(name)):
        raise ForbiddenCallError(
            f"{source.name} calls {', '.join(foreign[:5])}: write the kernel without libraries."
        )


def _nvcc() -> str:
    """The CUDA compiler: on PATH, in a toolkit, or the one that pip brought (`pip install
    "bottleneck-lab[nvcc]"`).
    """
    brought = sorted(
        Path(sysconfig.get_path("purelib"), "nvidia").glob("cu[0-9]*/bin/nvcc"), reverse=True
    )
    found = [
        shutil.which("nvcc"),
        os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc",
        *brought,
    ]
    return next((str(path) for path in found if path and Path(path).is_file()), "nvcc")


def _cpu_flags() -> str:
    """The CPU's instruction sets, which -march=native depends on; empty where Linux does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def prepare(device: str) -> None:
    """Compiles the CPU's kernel. In a check no process can be started after this: the kernel's own
    time is all that there is.
    """
    if device == "cpu":
        compiled(CPU_SOURCE, CPU_COMPILER, CPU_LINKER)


def load(device: str):
    """The attention function of this device: compiled, loaded and ready."""
    return _load_cuda() if device == "cuda" else _load_cpu()


def span(name: str):
    """What runs inside is an operator of that name in a torch.profiler capture: the profiler does
    not see native code by itself.
    """
    torch = sys.modules.get("torch")
    return torch._C._profiler._RecordFunctionFast(name) if torch else contextlib.nullcontext()


def _load_cpu():
    forward = ctypes.CDLL(str(compiled(CPU_SOURCE, CPU_COMPILER, CPU_LINKER))).attention_forward
    forward.argtypes, forward.restype = [POINTERS] * 4 + [NUMBERS] * 5, None

    def attention(q, k, v, causal, threads=1):
        """softmax(q kᵀ / sqrt(dim)) v on float32 arrays of batch x heads x seq x dim, dim 64 or
        128.
        """
        q, k, v = (np.ascontiguousarray(array, dtype=np.float32) for array in (q, k, v))
        batch, heads, seq, dim = q.shape
        for array in (q, k, v):
            make_read_only(array)
        out, room, guards = guarded(q.size)
        addresses = [array.ctypes.data for array in (q, k, v, out)]
        with span("attention_forward"):
            forward(*addresses, batch * heads, seq, dim, int(causal), int(threads))
        refuse_stray_writes(room, guards, q.shape)
        return out.reshape(q.shape)

    return attention


def make_read_only(array: np.ndarray) -> None:
    """Has a write to these inputs end the process, where they lie in memory that is shared with the
    check: whole pages, which nothing else here writes to.
    """
    if isinstance(array.base, mmap.mmap):
        first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if size > 0:
            LIBC.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.PROT_READ)


def guarded(size: int) -> tuple:
    """Room for an answer, not a number as yet, between two guards of random bits; the whole of it;
    and the guards as they have to stay.
    """
    # What the kernel leaves out is not a number.
    room = np.full(size + 2 * GUARD, np.nan, dtype=np.float32)
    guards = np.frombuffer(os.urandom(8 * GUARD), np.uint32).reshape(2, GUARD)
    room.view(np.uint32)[:GUARD], room.view(np.uint32)[-GUARD:] = guards
    return room[GUARD:-GUARD], room, guards


def refuse_stray_writes(room: np.ndarray, guards: np.ndarray, shape: tuple) -> None:
    """Raises StrayWriteError, with the place of the first stray float, where a guard has changed."""
    bits = room.view(np.uint32)
    before, behind = (
        np.flatnonzero(found != kept) for found, kept in zip((bits[:GUARD], bits[-GUARD:]), guards)
    )
    if len(before) or len(behind):
        stray = (
            f"{behind[0] + 1} past the end"
            if len(behind)
            else f"{GUARD - before[-1]} before the start"
        )
        raise StrayWriteError(
            f"The kernel wrote a float beside its answer of {' x '.join(map(str, shape))}: the one {stray}."
        )


def build_cuda(major: int, minor: int) -> ctypes.CDLL:
    """The CUDA kernel for GPUs of this compute capability."""
    arch = f"{major}{minor}" + ("a" if major == 9 else "")  # 90a: Hopper's own instructions
    target, nvcc = ["-gencode", f"arch=compute_{arch},code=sm_{arch}"], _nvcc()
    source = HERE / "attention.cu"
    library = ctypes.CDLL(
        str(compiled(source, [nvcc, *CUDA_COMPILER, *target], [nvcc, "-shared", *target]))
    )
    library.attention_forward.argtypes, library.attention_forward.restype = (
        [POINTERS] * 4 + [NUMBERS] * 5 + [POINTERS],
        NUMBERS,
    )
    return library


def launch_cuda(
    forward, q: int, k: int, v: int, out: int, shape: tuple, causal: int, bf16: int, stream: int
) -> None:
    """Queues the kernel on device addresses. Raises RuntimeError with CUDA's number for a launch
    that was refused.
    """
    if status := forward(q, k, v, out, *shape, causal, bf16, stream):
        raise RuntimeError(f"the kernel could not be launched: CUDA error {status}")


def no_operators():
    """A context in which PyTorch lets memory be allocated and nothing be computed: the kernel is
    the exercise.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoOperators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket._qualified_op_name not in (
                "aten::empty",
                "aten::empty_strided",
                "aten::empty_like",
            ):
                raise ForbiddenCallError(
                    f"attention_triton.py calls {func}: write the kernel without libraries."
                )
            return func(*args, **(kwargs or {}))

    return NoOperators()


def _load_cuda():
    import attention_triton
    import torch

    if attention_triton.ENABLED:
        guard = no_operators()

        def launch(q, k, v, out, causal):
            with guard:
                attention_triton.forward(q, k, v, out, causal)
    else:
        forward = build_cuda(*torch.cuda.get_device_capability()).attention_forward

        def launch(q, k, v, out, causal):
            stream, bf16 = torch.cuda.current_stream().cuda_stream, int(q.dtype == torch.bfloat16)
            launch_cuda(
                forward,
                *(x.data_ptr() for x in (q, k, v, out)),
                tuple(q.shape),
                causal,
                bf16,
                stream,
            )

    def on_gpu(array, dtype):
        bits = array.dtype == np.uint16  # bfloat16, which NumPy does not know
        return (
            torch.from_numpy(array.view(np.int16)).cuda().view(dtype)
            if bits
            else torch.from_numpy(array).cuda().to(dtype)
        )

    def attention(q, k, v, causal, weights, bf16=0):
        """sum over i of weights[i] * attention(q rolled by i heads, k, v): many launches to one
        transfer. Arrays of batch x heads x seq x dim.

        Once each head's queries have met all keys, every query is rolled by a place: no launch is
        asked what another was.
        """
        dtype = torch.bfloat16 if bf16 else torch.float16
        q, k, v = (on_gpu(array, dtype).flatten(0, 1).contiguous() for array in (q, k, v))
        # What is never written.
        total, out = (
            torch.zeros_like(q, dtype=torch.float32),
            torch.full_like(q, float("nan")),
        )
        for shift, weight in enumerate(np.asarray(weights).tolist()):
            q = q.roll(1, 2) if shift and shift % len(q) == 0 else q
            launch(q.roll(shift, 0), k, v, out, int(causal))
            total.add_(out, alpha=weight)
        return total.cpu().numpy()

    return attention


SHAPES = {
    "cpu": [(8, 200, 64, 0), (4, 509, 128, 1), (2, 900, 64, 0)],
    "cuda": [(64, 1023, 64, 1), (64, 2048, 128, 0), (32, 4096, 128, 1)],
}
"""Heads, sequence length, head dimension and mask of what is printed."""


def main() -> None:
    """Prints a small table: how far from PyTorch's answer, and both times. First each kernel runs
    once a shape: a profiler finds them side by side.
    """
    import reference

    device = os.environ.get("LAB_DEVICE", "cpu")
    ours, theirs = load(device), reference.load(device)
    generator, once = (
        np.random.default_rng(0),
        ([1] if device == "cpu" else [np.ones(1, np.float32)]),
    )
    calls = [
        [
            *(generator.standard_normal((1, heads, seq, dim), dtype=np.float32) for _ in range(3)),
            causal,
        ]
        for heads, seq, dim, causal in SHAPES[device]
    ]
    errors = [np.abs(ours(*call, *once) - theirs(*call, *once)).max() for call in calls]
    print(
        f"{'heads':>6} {'seq':>6} {'dim':>4} {'mask':>7} {'apart':>9} {'ours ms':>9} {'SDPA ms':>9}"
    )
    for (heads, seq, dim, causal), call, error in zip(SHAPES[device], calls, errors):
        mask, times = (
            "causal" if causal else "full",
            [_milliseconds(side, device, call) for side in (ours, theirs)],
        )
        print(f"{heads:6} {seq:6} {dim:4} {mask:>7} {error:9.1e} {times[0]:9.2f} {times[1]:9.2f}")


def _milliseconds(attention, device: str, call: list) -> float:
    """One thread's time for a call; on a GPU that of a launch, from a call with eleven and a call
    with one, both of which copy as much.
    """
    elapsed = []
    for extra in (
        [1] if device == "cpu" else [np.ones(launches, np.float32) for launches in (1, 11)]
    ):
        started = time.perf_counter()
        attention(*call, extra)
        elapsed.append(1000 * (time.perf_counter() - started))
    return elapsed[0] if device == "cpu" else (elapsed[1] - elapsed[0]) / 10


if __name__ == "__main__":
    sys.exit(main())
