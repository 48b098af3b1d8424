"""Hold a learner's native kernel, in the worker that runs it, to what its brief allows.

A lab whose function is a kernel says `native = true` in its settings. Its entry file, which nobody
edits, then has three functions that `guard` wraps:

- `compile_object(source, command, target)` compiles the kernel to an object file. What that calls
  must belong to the language, OpenMP or the CUDA runtime: the kernel is the exercise.
- `new_output(size)` returns room for an answer, as float32 that is not a number yet. It gets a
  guard on either side, in which no write may land.
- `launch_triton(...)`, if there is one, runs a Triton kernel: PyTorch may only allocate meanwhile.

Inputs in memory that is shared with the verifier become read-only, so a kernel that scales them in
place ends. All this shares a process with the kernel. It catches mistakes and shortcuts; hostile
code is held by the sandbox, and every answer is judged by the verifier.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from bottleneck_lab.catalog import FailReason

OWN_SYMBOLS = re.compile(
    # OpenMP, threads, memory and what the compiler itself adds.
    r"GOMP_\w+|omp_\w+|pthread_\w+|mem(cpy|set|move|cmp)|[cm]alloc|realloc|free|aligned_alloc"
    r"|posix_memalign|abort|_Z(nw|na|dl|da)\w+|_ZNK?St\w+|_ZSt\w+|_ZT[VIS]\w+|__cxa_\w+"
    r"|__gxx_personality_v0|_Unwind_\w+|__stack_chk_fail|__tls_get_addr|__dso_handle|__cpu_\w+"
    r"|_GLOBAL_OFFSET_TABLE_|__assert_fail|atexit|s?n?printf|fprintf|puts|stderr"
    # The C library's mathematics, and CUDA's runtime.
    r"|(exp2?|expm1|log2?|log1p|pow|sqrt|tanh|fma|fmax|fmin|ldexp|l?l?rint|l?l?round|floor|ceil"
    r"|trunc|scalbl?n)[fl]?|(__)?cuda\w+|__fatbinwrap\w*"
)
"""Undefined symbols that an object file may have."""
GUARD_FLOATS = 64
"""Floats before an answer and behind it that are nobody's to write."""
ALLOCATIONS = ("aten::empty", "aten::empty_strided", "aten::empty_like")


class ForbiddenCallError(RuntimeError):
    """The kernel calls a library for what it should do itself."""

    reason: ClassVar[FailReason] = "forbidden call"


class StrayWriteError(RuntimeError):
    """The kernel wrote outside its answer."""

    reason: ClassVar[FailReason] = "wrong output"


class GuardedOutputs:
    """Outputs between two guards of random bits each, which must be the same after the call."""

    def __init__(self) -> None:
        self._held: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def new(self, size: int) -> np.ndarray[Any, Any]:
        """Return `size` floats that are not a number: what the kernel leaves out then shows."""
        # Random, so that a kernel cannot write back what stood there.
        room = np.full(size + 2 * GUARD_FLOATS, np.nan, dtype=np.float32)
        guards = np.frombuffer(os.urandom(8 * GUARD_FLOATS), np.uint32).reshape(2, GUARD_FLOATS)
        bits = room.view(np.uint32)
        bits[:GUARD_FLOATS], bits[-GUARD_FLOATS:] = guards
        self._held.append((room, guards))
        return room[GUARD_FLOATS:-GUARD_FLOATS]

    def refuse_stray_writes(self) -> None:
        """Forget the outputs so far. Raise StrayWriteError where one of their guards changed."""
        held, self._held = self._held, []
        for room, (before, behind) in held:
            # Compared as bits: one NaN does not equal another.
            bits = room.view(np.uint32)
            past = np.flatnonzero(bits[-GUARD_FLOATS:] != behind)
            ahead = np.flatnonzero(bits[:GUARD_FLOATS] != before)
            size = len(room) - 2 * GUARD_FLOATS
            if len(past):
                raise StrayWriteError(_stray(size, f"{past[0] + 1} past the end"))
            if len(ahead):
                where = f"{GUARD_FLOATS - ahead[-1]} before the start"
                raise StrayWriteError(_stray(size, where))


def _stray(size: int, where: str) -> str:
    return f"The kernel wrote a float outside its answer of {size:,} floats: the one {where}."


def guard(module: ModuleType) -> None:
    """Wrap the functions of a lab's entry file that the module docstring names."""
    outputs = GuardedOutputs()
    compile_object, load = module.compile_object, module.load

    def compile_and_inspect(source: Path, command: list[str], target: Path) -> None:
        compile_object(source, command, target)
        refuse_libraries(source.name, target)

    def load_guarded(device: str) -> Callable[..., Any]:
        function = load(device)

        def call(*inputs: Any) -> Any:
            for value in inputs:
                if isinstance(value, np.ndarray):
                    make_read_only(value)
            answer = function(*inputs)
            outputs.refuse_stray_writes()
            return answer

        return call

    # The module finds its own functions by these names, so it uses the wrapped ones from here on.
    names = vars(module)
    names.update(compile_object=compile_and_inspect, load=load_guarded, new_output=outputs.new)
    if launch := names.get("launch_triton"):
        names["launch_triton"] = without_operators(launch)


def refuse_libraries(source: str, kernel: Path) -> None:
    """Raise ForbiddenCallError if an object file calls anything but what OWN_SYMBOLS allows."""
    # One undefined symbol a line, `U name`.
    command = ["nm", "-u", str(kernel)]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    foreign = sorted(name for name in listed.split()[1::2] if not OWN_SYMBOLS.fullmatch(name))
    if foreign:
        raise ForbiddenCallError(
            f"{source} calls {', '.join(foreign[:5])}: write the kernel without libraries."
        )


def make_read_only(array: np.ndarray[Any, Any]) -> None:
    """Let a write to this array end the process, if it lies in memory shared with the verifier.

    Only whole pages can be protected; nothing else in the worker writes to those.
    """
    if not isinstance(array.base, mmap.mmap):
        return
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        libc = ctypes.CDLL(None)
        libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.PROT_READ)


def without_operators(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that PyTorch may allocate memory in it, and compute nothing."""

    def guarded(*arguments: Any) -> Any:
        with no_operators():
            return launch(*arguments)

    return guarded


@cache
def no_operators() -> AbstractContextManager[Any]:
    """Return a context in which any PyTorch operator but an allocation is a ForbiddenCallError."""
    # PyTorch has no public name for this; only workers with a GPU come here.
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701

    class NoOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            if func.overloadpacket._qualified_op_name not in ALLOCATIONS:
                raise ForbiddenCallError(
                    f"The kernel calls {func}: write the kernel without libraries."
                )
            return func(*args, **(kwargs or {}))

    return NoOperators()  # type: ignore[no-untyped-call]  # as above
