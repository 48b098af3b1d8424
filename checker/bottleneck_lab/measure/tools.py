"""The one finder of programs: compilers, disassemblers and profilers of this machine, wherever they were installed."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.errors import MachineError

_REMEDIES = {
    "g++": "Install a C++ compiler: `apt-get install g++`, or your system's equivalent.",
    "nvcc": 'Install one with `pip install "bottleneck-lab[nvcc]"`, or put a CUDA toolkit\'s bin folder on PATH.',
    "cuobjdump": 'Install it with `pip install "bottleneck-lab[nvcc]"`; Triton brings one too.',
    "nvdisasm": 'Install it with `pip install "bottleneck-lab[nvcc]"`; Triton brings one too.',
}


def _folders() -> Iterator[Path]:
    """Where CUDA's programs may be besides PATH: a toolkit, pip's compiler packages, Triton's own copies."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin"
    for packages in map(Path, dict.fromkeys([sysconfig.get_path("purelib"), *filter(None, sys.path)])):
        yield from sorted((packages / "nvidia").glob("cu[0-9]*/bin"), reverse=True)
        yield packages / "triton" / "backends" / "nvidia" / "bin"
    yield Path("/usr/local/cuda/bin")


def find_tool(name: str) -> Path | None:
    """A compiler or disassembler of this machine, or None: on PATH, in a CUDA toolkit, or brought by pip."""
    found = shutil.which(name) or next((str(p / name) for p in _folders() if os.access(p / name, os.X_OK)), None)
    return Path(found) if found else None


def require_tool(name: str) -> Path:
    """The same. Raises MachineError that says how to install it."""
    if (path := find_tool(name)) is None:
        raise MachineError(f"{name} is not installed here.", _REMEDIES.get(name, f"Install {name}."))
    return path
