"""Third-party programs that the labs use: where they are on this machine, and how to get a missing
one.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from bottleneck_lab.errors import SITE, MachineError
from bottleneck_lab.needs import install_command

_NVIDIA = (
    "It comes with the CUDA toolkit; NVIDIA's package repository has it as `{}`:"
    f" {SITE}/capture.html."
)
_HOW_TO_GET = {
    "g++": "Install a C++ compiler: `apt-get install g++`, or your system's equivalent.",
    "nvcc": "Run `{pip_nvcc}`, or put the bin folder of a CUDA toolkit on PATH.",
    "cuobjdump": "Run `{pip_nvcc}`; Triton includes it too.",
    "nvdisasm": "Run `{pip_nvcc}`; Triton includes it too.",
    "nsys": _NVIDIA.format("nsight-systems"),
    "ncu": _NVIDIA.format("nsight-compute"),
    "compute-sanitizer": "Run `{pip_gpu}`; a CUDA toolkit includes it too.",
    "bwrap": "Install it: `apt-get install bubblewrap`, or your system's equivalent.",
}
_FOLDERS = (
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/lib/nsight-systems/bin",
)
"""Where NVIDIA's own packages put the profilers; the newest version is taken."""


def how_to_get(name: str) -> str:
    """Return what to do if the program `name` is missing, as a sentence."""
    return _HOW_TO_GET.get(name, f"Install {name}.").format(
        pip_nvcc=install_command("nvcc"), pip_gpu=install_command("gpu")
    )


def find_program(name: str) -> Path | None:
    """Return the program `name`, or None: on PATH, in a CUDA toolkit, among Python's packages, or
    where NVIDIA's own packages put it.
    """
    if on_path := shutil.which(name):
        return Path(on_path)
    candidates = (folder / name for folder in _folders())
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def require_program(name: str) -> Path:
    """Return the program `name`. Raises MachineError that says how to get it."""
    if (path := find_program(name)) is None:
        raise MachineError(f"{name} is not installed here.", how_to_get(name))
    return path


def _folders() -> Iterator[Path]:
    """Yield where programs may be besides PATH."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin"
    for packages in map(
        Path, dict.fromkeys([sysconfig.get_path("purelib"), *filter(None, sys.path)])
    ):
        yield from sorted((packages / "nvidia").glob("cu[0-9]*/bin"), reverse=True)
        yield packages / "triton" / "backends" / "nvidia" / "bin"
    yield Path("/usr/local/cuda/bin")
    for pattern in _FOLDERS:
        yield from sorted(Path("/").glob(pattern[1:]), reverse=True)


def as_options(values: Mapping[str, object]) -> list[str]:
    """Return options with their values as words of a command line: `--name value`."""
    return [word for name, value in values.items() for word in (name, str(value))]
