"""How a CUDA source launches its kernels, and what one warp's addresses do there, without a GPU:
its host code runs against a runtime that launches nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import msgspec

from bottleneck_lab.analysis.machine_code.ptx import Kernel, read_ptx
from bottleneck_lab.analysis.machine_code.warp import Launch, WarpAccesses, follow
from bottleneck_lab.measure.kinds.speedup.cuda.compilers import compile_host
from bottleneck_lab.measure.kinds.speedup.cuda.static_check import disassembled
from bottleneck_lab.measure.sandbox.children import lower_limit
from bottleneck_lab.measure.settings import HostCall

ARCHITECTURE = "90a"
CALL_S = 20


class TracedLaunch(msgspec.Struct, frozen=True):
    """A kernel's launch, and what the first warp of it does to memory."""

    launch: Launch
    followed: WarpAccesses


def read_launches(
    source: Path, calls: tuple[HostCall, ...], folder: Path | None = None
) -> list[TracedLaunch]:
    """What these calls of a .cu file's host functions launch; nothing where its host code does not
    run without a GPU.

    Raises UsageError for a source that does not compile, MachineError without a compiler.
    """
    library = compile_host(source, Path(__file__).with_name("launches.c"), ARCHITECTURE, folder)
    kernels = read_ptx(disassembled("-ptx", library))
    launches = _called(library, kernels, calls)
    return [
        TracedLaunch(launch, follow(kernels[launch.kernel], launch))
        for launch in launches
        if launch.kernel in kernels
    ]


def _called(library: Path, kernels: dict[str, Kernel], calls: tuple[HostCall, ...]) -> list[Launch]:
    """The launches of the calls, each in full before the next; those before a crash where there is
    one.
    """
    request = {
        "capability": int(re.sub(r"\D", "", ARCHITECTURE)),
        "sizes": {
            name: [parameter.size for parameter in kernel.parameters]
            for name, kernel in kernels.items()
        },
        "calls": msgspec.to_builtins(calls),
    }
    command = [
        sys.executable,
        "-I",
        str(Path(__file__).with_name("launches_child.py")),
        str(library),
        json.dumps(request),
    ]
    told = ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=CALL_S,
            preexec_fn=_limit,
        )
        told = done.stdout
    return [_launch(line) for line in told.splitlines() if line.startswith('{"kernel"')]


def _launch(line: str) -> Launch:
    told = json.loads(line)
    return Launch(
        told["kernel"],
        tuple(told["grid"]),
        tuple(told["block"]),
        told["dynamic_shared_bytes"],
        [bytes.fromhex(value) for value in told["arguments"]],
    )


def _limit() -> None:
    lower_limit(resource.RLIMIT_CPU, CALL_S)
    lower_limit(resource.RLIMIT_CORE, 0)
