"""The compilers of this machine, run on a learner's kernel with limits and a cache.

A kernel is compiled once for each content, command and compiler. Complaints are shown with the
learner's own file, line and text.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.sandbox.children import lower_limit
from bottleneck_lab.programs import require_program

COMPILE_S = 120
"""Longest time a compiler may take: an edit-compile-check loop is meant to take seconds."""

_MAX_FILE_BYTES = 512 << 20
_MAX_SHOWN = 5
_COMPLAINT = re.compile(
    r"^(?P<file>[^\s:()]+)(?:\((?P<cuda>\d+)\)|:(?P<line>\d+)(?::\d+)?): (?:fatal"
    r" )?error\s*:?\s*(?P<text>.*)$",
    re.MULTILINE,
)


@cache
def _version(tool: Path) -> str:
    return subprocess.run(
        [tool, "--version"], capture_output=True, text=True, check=False, timeout=60
    ).stdout


def compile_cubin(source: Path, arch: str, folder: Path | None = None) -> Path:
    """Compile a .cu file to machine code for one architecture (`80`, `90a`), into `folder`
    (default: the user's cache). Returns the path.

    Raises UsageError for an error in the source, MachineError without nvcc.
    """
    options = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin"]
    return _compiled(source, (), options, f".sm_{arch}.cubin", folder)


def compile_host(source: Path, runtime: Path, arch: str, folder: Path | None = None) -> Path:
    """Compile the host code of a .cu file to a library, with `runtime` (a C file) for the CUDA
    runtime and its kernels as PTX. Raises as `compile_cubin`.
    """
    options = ["-gencode", f"arch=compute_{arch},code=compute_{arch}"]
    options += ["-shared", "-cudart", "none", "-Xcompiler", "-fPIC"]
    return _compiled(source, (runtime,), options, f".compute_{arch}.so", folder)


def _compiled(
    source: Path, libraries: tuple[Path, ...], options: list[str], suffix: str, folder: Path | None
) -> Path:
    """Compile with nvcc, unless the cache has it. Returns the path."""
    tool = require_program("nvcc")
    options = ["-O3", "-std=c++17", "-lineinfo", *options]
    texts = [file.read_bytes() for file in (source, *libraries)]
    key = hashlib.sha256(
        b"\0".join([*texts, _version(tool).encode(), *map(str.encode, options)])
    ).hexdigest()[:24]
    folder = folder or Path(
        os.environ.get("LAB_CACHE") or Path(tempfile.gettempdir()) / f"bottleneck-lab-{os.getuid()}"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / f"{source.stem}-{key}{suffix}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / target.name
            _run([str(tool), *options, source.name, *map(str, libraries), "-o", str(fresh)], source)
            # Renamed when whole: another process may be looking for it.
            fresh.replace(target)
    return target


def _run(command: list[str], source: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=source.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_S,
            preexec_fn=_limit,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{source.name}: the compiler did not finish within {COMPILE_S} s.",
            "Unroll less, or use fewer template instantiations.",
        ) from error
    if done.returncode:
        raise UsageError(
            complaint(source, done.stderr + done.stdout), f"Correct {source.name} and try again."
        )


def _limit() -> None:
    lower_limit(resource.RLIMIT_CPU, 2 * COMPILE_S)
    lower_limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    lower_limit(resource.RLIMIT_CORE, 0)


def complaint(source: Path, output: str) -> str:
    """Return a compiler's (g++ or nvcc) errors as the learner's lines: `attention.cu, line 12: …`,
    then the line itself.
    """
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = list(_COMPLAINT.finditer(output))
    if not errors:
        return f"{source.name} does not compile: {output.strip()[-1500:]}"
    shown = []
    for error in errors[:_MAX_SHOWN]:
        number, file = int(error["cuda"] or error["line"]), Path(error["file"]).name
        shown.append(f"  {file}, line {number}: {error['text'].strip()}")
        if file == source.name and number <= len(lines):
            shown.append(f"    {lines[number - 1].strip()}")
    more = f"\n… and {len(errors) - _MAX_SHOWN} more" if len(errors) > _MAX_SHOWN else ""
    return f"{source.name} does not compile:\n" + "\n".join(shown) + more
