"""Check what a command needs from the installation and the operating system, and how to get it in
one sentence.

The core (list, report, compare, verify) installs in seconds and runs anywhere. Everything else is
an extra of the package, or needs Linux.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

from bottleneck_lab.errors import SITE, MachineError

EXTRAS: dict[str, dict[str, str]] = {
    "labs": {
        "torch": "PyTorch",
        "torchvision": "torchvision",
        "PIL": "Pillow",
        "nvtx": "nvtx",
        "starlette": "Starlette",
        "uvicorn": "uvicorn",
        "httptools": "httptools",
    },
    "gpu": {"pynvml": "nvidia-ml-py"},
    "ncu": {"ncu_report": "ncu-report"},
    "cohort": {
        "alembic": "alembic",
        "argon2": "argon2-cffi",
        "fastapi": "fastapi",
        "httptools": "httptools",
        "jinja2": "jinja2",
        "markdown_it": "markdown-it-py",
        "multipart": "python-multipart",
        "prometheus_client": "prometheus-client",
        "segno": "segno",
        "sqlalchemy": "sqlalchemy",
        "uvicorn": "uvicorn",
    },
    "sign-in": {"authlib": "Authlib", "joserfc": "joserfc", "requests": "requests"},
    "ray": {"ray": "ray"},
}
"""The modules of each extra that one of our commands imports by name, and their packages."""

DALI_BUILDS = {"dali": "nvidia-dali-cuda130", "dali-cuda12": "nvidia-dali-cuda120"}
"""Extras that bring DALI, each with the distribution that it installs."""

_CUDA_13_DRIVER = 580
"""The first driver branch that runs CUDA 13 (NVIDIA's CUDA compatibility guide, table of minimum
driver versions).
"""

_DRIVER = Path("/proc/driver/nvidia/version")


def install_command(extra: str) -> str:
    """Return the command that adds `extra` to this installation, for the installer that made it:
    pip, uv or pipx.
    """
    wanted = f"'bottleneck-lab[{extra}]'"
    if (Path(sys.prefix) / "uv-receipt.toml").is_file():
        return f"uv tool install {wanted}"
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return f"pipx install --force {wanted}"
    return f"pip install {wanted}"


def require_packages(extra: str, **modules: str) -> None:
    """Raise MachineError that names `extra` if one of its top-level `modules` is not installed.

    Each module comes with its package's name. None is imported.
    """
    missing = [
        package for module, package in modules.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise _not_installed(missing, extra)


def missing_package(error: ModuleNotFoundError) -> MachineError | None:
    """Return a failed import of an extra's module as an error that names the extra.

    None if no extra brings the module.
    """
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return _not_installed([modules[module]], extra)
    return None


def _not_installed(packages: list[str], extra: str) -> MachineError:
    return MachineError(
        f"Not installed for this Python: {', '.join(packages)}.",
        f"Run `{install_command(extra)}`.",
    )


def require_lab_packages() -> None:
    """Raise MachineError if a package that every lab needs is not installed."""
    require_packages("labs", torch="PyTorch", torchvision="torchvision", PIL="Pillow")


def require_linux(command: str) -> None:
    """Raise MachineError if `command` cannot work here.

    It isolates and measures processes with what only Linux has.
    """
    if sys.platform != "linux":
        system = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
        raise MachineError(
            f"{command} needs Linux; this is {system}.",
            f"Run it in WSL2 or in the container: {SITE}/install.html. `lab list`, `report`,"
            " `compare` and `verify` work here.",
        )


def dali_extra() -> str:
    """Return the extra whose DALI fits this machine's driver, or where there is none, the CUDA
    release that torch was built for.
    """
    driver = _leading(r"Kernel Module.*?\s(\d+)\.\d", _DRIVER)
    if driver is not None:
        return "dali" if driver >= _CUDA_13_DRIVER else "dali-cuda12"
    torch = importlib.util.find_spec("torch")
    cuda = None
    if torch and torch.origin:
        cuda = _leading(r"cuda\b[^=]*= '(\d+)", Path(torch.origin).with_name("version.py"))
    return "dali-cuda12" if cuda == 12 else "dali"


def dali_build() -> str:
    """Return the distribution of DALI that is installed, else the one that would be."""
    for name in DALI_BUILDS.values():
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    return DALI_BUILDS[dali_extra()]


def _leading(pattern: str, path: Path) -> int | None:
    """Return the number that `pattern` finds in a text file, or None."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(match[1]) if match else None
