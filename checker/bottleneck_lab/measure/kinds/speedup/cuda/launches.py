"""The launches of a CUDA source's kernels, and the addresses of one warp there, without a GPU: its
host code runs against a runtime that launches nothing.
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
    """A kernel's launch, and the memory accesses of its first warp."""

    launch: Launch
    followed: WarpAccesses


def read_launches(
    source: Path, calls: tuple[HostCall, ...], folder: Path | None = None
) -> list[TracedLaunch]:
    """Return the launches of these calls of a .cu file's host functions; none where its host code
    does not run without a GPU.

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
    """Return the launches of the calls, each in full before the next; up to a crash where there is
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
    child = Path(__file__).with_name("launches_child.py")
    command = [sys.executable, "-I", str(child), str(library), json.dumps(request)]
    output = ""
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
        output = done.stdout
    return [_launch(line) for line in output.splitlines() if line.startswith('{"kernel"')]


def _launch(line: str) -> Launch:
    launch = json.loads(line)
    return Launch(
        launch["kernel"],
        tuple(launch["grid"]),
        tuple(launch["block"]),
        launch["dynamic_shared_bytes"],
        [bytes.fromhex(value) for value in launch["arguments"]],
    )


def _limit() -> None:
    lower_limit(resource.RLIMIT_CPU, CALL_S)
    lower_limit(resource.RLIMIT_CORE, 0)
