#!/usr/bin/env python3
"""Set up a Triton Inference Server that needs no GPU and no container, in an environment of its
own.

    python datasets/tritonserver.py --root DIR     # about 300 MB; `lab data tritonserver` does it

The server is the bare `tritonserver` of the wheel nvidia-pytriton. Its Python models run on the
Python that runs this script, with a NumPy of their own: the wheel's Python backend does not work
with NumPy 2. They find all other packages where LAB_PYTHON says. Beside it lies `perf_analyzer`, of
the wheel tritonclient.
Exit status: 0 done, 4 this machine cannot. Needs nothing but Python's own library and pip.
"""

# ruff: noqa: T201 - a script talks to its terminal.
from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

PACKAGES = (
    "nvidia-pytriton==0.7.0",
    "numpy==1.26.4",
    # perf_analyzer of the same release, and the library that it is linked to; newer wheels of it
    # need glibc 2.38.
    "tritonclient==2.51.0",
    "nvidia-cuda-runtime-cu12==12.9.79",
)
PYTHONS = [(3, 11), (3, 12)]
"""Those for which there are both the server's Python backend and a NumPy 1."""
PTH = "import os, sys; sys.path += os.environ.get('LAB_PYTHON', '').split(os.pathsep)\n"


class CannotError(Exception):
    """Why this machine cannot have the server, as a sentence."""


def refusal(system: str, machine: str, python: tuple[int, int], library: Path) -> str:
    """Why a machine cannot have the server, as a sentence; empty where it can. `library`: Python as
    a shared library.
    """
    if (system, machine) != ("Linux", "x86_64"):
        return f"The wheel nvidia-pytriton is for Linux on x86-64; this is {system} on {machine}."
    if python not in PYTHONS:
        known = " and ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        return f"It runs with Python {known}; this is {python[0]}.{python[1]}."
    if not library.is_file():
        return (
            f"Its Python backend needs Python as a shared library, and {library} is missing (on"
            f" Debian: apt-get install libpython{python[0]}.{python[1]})."
        )
    return ""


def python_library() -> Path:
    """Where this Python is a shared library, if it is one."""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/")
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    multiarch = folder / str(sysconfig.get_config_var("MULTIARCH") or "") / name
    return multiarch if multiarch.is_file() else folder / name


def require_machine(_root: Path) -> None:
    """Raises CannotError where there is no such server for this machine."""
    if why := refusal(
        platform.system(), platform.machine(), sys.version_info[:2], python_library()
    ):
        raise CannotError(why)


def make_environment(root: Path) -> None:
    """A virtual environment of this Python's."""
    _run([sys.executable, "-m", "venv", "--clear", str(root / "env")])


def install(root: Path) -> None:
    """The server, its NumPy and perf_analyzer; of what pytriton and tritonclient themselves import
    nothing is needed.
    """
    _run([str(root / "env/bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES])


def arrange(root: Path) -> None:
    """The Python backend with the program that runs models for this version of Python."""
    packages = packages_of(root)
    server = packages / "pytriton" / "tritonserver"
    shutil.copytree(server / "backends", root / "backends", dirs_exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy2(stub, root / "backends" / "python")
    (packages / "lab.pth").write_text(PTH)


def try_out(root: Path) -> None:
    """Has the server say what options it has, which takes all of its libraries."""
    packages = packages_of(root)
    program, libraries = (
        packages / "pytriton/tritonserver/bin/tritonserver",
        packages / "nvidia_pytriton.libs",
    )
    program.chmod(0o755)
    # It prints its help and exits with status 1.
    told = subprocess.run(
        [str(program), "--help"],
        env={"LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "--model-repository" not in told.stdout + told.stderr:
        raise CannotError(f"tritonserver does not start: {_last_line(told.stderr)}")


def packages_of(root: Path) -> Path:
    """The folder of the environment's packages."""
    return (
        root
        / "env"
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )


def set_up(root: Path, report: Callable[[int, int], None]) -> None:
    """Does everything, step by step. What is there and whole stays. Raises CannotError."""
    manifest = root / "manifest.json"
    wanted = {
        "complete": True,
        "packages": list(PACKAGES),
        "library": str(python_library()),
        "python": sys.executable,
    }
    if manifest.is_file() and json.loads(manifest.read_text()) == wanted:
        return
    steps = (require_machine, make_environment, install, arrange, try_out)
    for number, step in enumerate(steps):
        report(number, len(steps))
        step(root)
        root.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"complete": False}))
    manifest.write_text(json.dumps(wanted))
    report(len(steps), len(steps))


def _run(command: list[str]) -> None:
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise CannotError(f"`{' '.join(command[1:4])}` failed: {_last_line(told.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--progress", choices=["json", "none"], default="none")
    options = parser.parse_args()

    def report(done: int, total: int) -> None:
        if options.progress == "json":
            print(json.dumps({"done": done, "total": total}), flush=True)

    try:
        set_up(options.root, report)
    except (CannotError, OSError) as error:
        print(error, file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
