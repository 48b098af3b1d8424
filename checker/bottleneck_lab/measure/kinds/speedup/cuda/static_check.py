"""The machine code of a CUDA source, or of a compiled file. Needs the compiler packages, no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.analysis.machine_code.sass import KernelReport, read_reports
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure.kinds.speedup.cuda.compilers import compile_cubin
from bottleneck_lab.programs import find_program, require_program

READ_S = 120

Wrapper = Callable[[list[str]], list[str]]
"""A function that puts a sandbox around a command line."""


def check_source(source: Path, arch: str, folder: Path | None = None) -> list[KernelReport]:
    """Compile a .cu file for `arch` (`80`, `90a`) and read every kernel in it. Raises UsageError,
    MachineError or CaptureError.
    """
    return check_binary(compile_cubin(source, arch, folder))


def check_binary(binary: Path, around: Wrapper = lambda command: command) -> list[KernelReport]:
    """Read every kernel of a cubin, or of a library that holds some. Raises MachineError without a
    disassembler, CaptureError when there is no kernel.
    """
    return read_reports(
        *(disassembled(option, binary, around) for option in ("-res-usage", "-sass", "-elf"))
    )


def disassembled(option: str, binary: Path, around: Wrapper = lambda command: command) -> str:
    """Return the output of cuobjdump on a binary, with one of its options. Raises MachineError
    without it, CaptureError where it fails.
    """
    # cuobjdump looks for nvdisasm on PATH.
    path = f"{require_program('nvdisasm').parent}:/usr/bin:/bin"
    command = around(
        ["env", f"PATH={path}", str(require_program("cuobjdump")), option, str(binary)]
    )
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=READ_S
    )
    if done.returncode:
        raise CaptureError(
            f"{binary.name} cannot be disassembled: {done.stderr.strip()[-300:]}",
            "Is it CUDA machine code?",
        )
    return done.stdout


def readable(name: str) -> str:
    """Return a kernel's name as it was written, where binutils can tell; else as the compiler
    mangled it.
    """
    filt = find_program("c++filt")
    if filt is None:
        return name
    done = subprocess.run(
        [filt, "--no-params", name], capture_output=True, text=True, check=False, timeout=10
    )
    return done.stdout.strip().replace("(anonymous namespace)::", "").removeprefix("void ") or name
