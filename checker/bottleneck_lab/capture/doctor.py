"""This machine's equipment: what it has, what each thing unlocks, and how to get what is missing.

Nothing here imports torch: the answer must come quickly, even when torch is what is broken.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from bottleneck_lab.capture.devices import DEFAULT_MODE, gpus
from bottleneck_lab.capture.ncu import COUNTERS_REMEDY
from bottleneck_lab.errors import SITE, MachineError
from bottleneck_lab.measure.gpu import GpuState, gpu_states
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap, bubblewrap_problem, how_to_allow
from bottleneck_lab.measure.sandbox.cgroup import in_charge, limits_problem, own_group
from bottleneck_lab.needs import dali_build, dali_extra, install_command
from bottleneck_lab.programs import find_program, how_to_get
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.home import dataset_root, home

Need = Literal["required", "recommended", "optional"]

_PROBE_S = 10

# Its bit in a set of capabilities (linux/capability.h).
_CAP_SYS_ADMIN = 21
_STATUS = Path("/proc/self/status")
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")

# The GPU as Windows hands it to WSL2.
_WSL = Path("/dev/dxg")
_GIB = 2**30


class Requirement(msgspec.Struct, frozen=True):
    """One requirement that doctor checks. `remedy` is empty if it is met; `found` is a version, a
    size, or why it is not met.
    """

    name: str
    present: bool
    found: str
    unlocks: str
    need: Need
    remedy: str = ""


def _state(name: str, found: str, unlocks: str, need: Need, remedy: str = "") -> Requirement:
    """Return a requirement that is met unless there is a remedy."""
    return Requirement(name, not remedy, found, unlocks, need, remedy)


def examine() -> list[Requirement]:
    """Check everything that a lab may need from this machine, most important first; on other
    systems than Linux, only what runs there. Never raises if something is missing.
    """
    anywhere: tuple[Callable[[], list[Requirement]], ...] = (probe_python, probe_packages)
    if sys.platform == "linux":
        probes = (*anywhere, probe_gpu, probe_programs, probe_isolation, probe_sizes, probe_data)
    else:
        probes = anywhere
    return [finding for probe in probes for finding in probe()]


def _output(*command: str) -> str | None:
    """Return the first line that a tool prints, or None if it cannot be run in time."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return None
    if lines:
        return lines[-1]
    return "works"


def probe_python() -> list[Requirement]:
    """Check Python and the operating system."""
    python = "" if sys.version_info >= (3, 11) else "Install Python 3.11 or newer."
    system = ""
    if sys.platform != "linux":
        system = (
            f"Use WSL2 or the container: {SITE}/install.html. `lab report`, `compare` and `verify`"
            " work here."
        )
    runs = "`lab run`, `profile` and `check`"
    return [
        _state("Python", platform.python_version(), "everything", "required", python),
        _state("Linux", platform.platform(terse=True), runs, "required", system),
    ]


def probe_packages() -> list[Requirement]:
    """Check the Python packages that labs and tools need."""
    rows: tuple[tuple[str, str, str, Need, str], ...] = (
        ("torch", "torch", "every lab: `lab run`, `profile` and `check`", "required", "labs"),
        ("torchvision", "torchvision", "models and fast transforms", "required", "labs"),
        ("Pillow", "pillow", "`lab data`, and the labs on images", "required", "labs"),
        ("DALI", dali_build(), "loading images with DALI in the labs", "recommended", dali_extra()),
        ("nvtx", "nvtx", "named ranges in an nsys trace", "optional", "labs"),
        ("ncu-report", "ncu-report", "reading .ncu-rep files at full precision", "optional", "ncu"),
        ("NVML", "nvidia-ml-py", "the GPUs in `lab monitor`", "optional", "gpu"),
    )
    checked = []
    for name, distribution, unlocks, need, extra in rows:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            remedy = install_command(extra)
            checked.append(_state(name, "not installed", unlocks, need, remedy))
        else:
            checked.append(_state(name, version, unlocks, need))
    return checked


def probe_gpu() -> list[Requirement]:
    """Check for a GPU, and for what would disturb a measurement on it."""
    names = gpus()
    unlocks = "measuring on `cuda`; without it every lab works on `cpu` or `virtual`"
    version = Path("/proc/driver/nvidia/version")
    if names:
        if version.exists():
            driver = version.read_text().splitlines()[0].removeprefix("NVRM version: ")
        else:
            driver = "driver unknown"
        state = f"{', '.join(names)} ({' '.join(driver.split())})"
        obstacles = [row for state in gpu_states() for row in list_obstacles(state)]
        return [_state("GPU", state, unlocks, "optional"), *obstacles, probe_counters()]
    if _WSL.exists():
        state = "WSL2, but no device that this process may use"
        remedy = "Install NVIDIA's driver in Windows, none inside WSL, then `wsl --update`."
    elif version.exists():
        state = "a driver, but no device that this process may use"
        remedy = "Check CUDA_VISIBLE_DEVICES and, in a container, `--gpus all`."
    else:
        state = "none"
        remedy = (
            "If this machine has a GPU, install NVIDIA's driver; if not, there is nothing to do."
        )
    return [_state("GPU", state, unlocks, "optional", remedy)]


def list_obstacles(gpu: GpuState) -> list[Requirement]:
    """List what in a GPU's state would disturb a measurement; usually nothing."""
    rows = []
    if refusal := gpu.refusal():
        mode = _state("GPU mode", refusal, "`lab check` on `cuda`", "recommended", DEFAULT_MODE)
        rows.append(mode)
    if gpu.others:
        state = f"{counted(gpu.others, 'other process', 'other processes')} on {gpu.name}"
        if gpu.busy is not None:
            state += f", a kernel running {gpu.busy:.0%} of the time"
        remedy = "End them (`nvidia-smi` lists them), or name a free GPU: `CUDA_VISIBLE_DEVICES=1`."
        unlocks = "verdicts other than INCONCLUSIVE"
        rows.append(_state("GPU to itself", state, unlocks, "recommended", remedy))
    if gpu.sliced:
        remedy = "Ratios hold on a slice. Whole GPU: as administrator, `nvidia-smi -mig 0`."
        unlocks = "utilisation and nsys's GPU metrics"
        rows.append(_state("whole GPU", "a MIG slice", unlocks, "optional", remedy))
    return rows


def probe_counters() -> Requirement:
    """Check whether ncu may read counters. The driver refuses it (ERR_NVGPUCTRPERM) when they are
    kept for administrators.

    Source: the driver's own /proc/driver/nvidia/params and NVIDIA's page on ERR_NVGPUCTRPERM.
    """
    restricted = (
        _DRIVER_PARAMETERS.exists() and "RmProfilingAdminOnly: 1" in _DRIVER_PARAMETERS.read_text()
    )
    # Root in a container lacks CAP_SYS_ADMIN, which is what the driver asks for.
    effective = next(
        line.split()[1] for line in _STATUS.read_text().splitlines() if line.startswith("CapEff")
    )
    administrator = bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)
    state, remedy = "allowed", ""
    if restricted and not administrator:
        state, remedy = "refused: ERR_NVGPUCTRPERM", COUNTERS_REMEDY
    return _state("GPU counters", state, "ncu's metrics of a kernel", "optional", remedy)


def probe_program(name: str, option: str, unlocks: str) -> Requirement:
    """Return a program with the last line that it prints of its version."""
    path = find_program(name)
    if path is None:
        return _state(name, "not installed", unlocks, "optional", how_to_get(name))
    line = _output(str(path), option)
    if line is None:
        failure = f"`{path} {option}` fails"
        return _state(name, failure, unlocks, "optional", how_to_get(name))
    return _state(name, line, unlocks, "optional")


def probe_headers() -> Requirement:
    """Check for Python's own headers, which Triton and Inductor compile against."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    unlocks = "Triton kernels and `torch.compile`"
    if header.is_file():
        return _state("Python.h", str(header.parent), unlocks, "optional")
    remedy = "apt-get install python3-dev, or a Python that brings its headers (uv, conda)."
    return _state("Python.h", "not installed", unlocks, "optional", remedy)


def probe_programs() -> list[Requirement]:
    """Check for the tools that are programs of their own."""
    return [
        probe_headers(),
        probe_program(
            "nsys", "--version", "`lab profile --tool nsys`: the timeline of the whole system"
        ),
        probe_program("ncu", "--version", "`lab profile --tool ncu`: one kernel's counters"),
        probe_program("compute-sanitizer", "--version", "finding races and out-of-bounds accesses"),
        probe_program("g++", "-dumpfullversion", "lab `fused-attention` on a CPU"),
        probe_program(
            "nvcc", "--version", "writing CUDA C++ kernels and reading their machine code"
        ),
    ]


def probe_isolation() -> list[Requirement]:
    """Check what isolates a learner's code during a check."""
    unlocks = "running your code during a check without access to the network or your files"
    if problem := bubblewrap_problem():
        missing = _state("bubblewrap", problem, unlocks, "recommended", how_to_allow())
        return [missing, probe_cgroup()]
    version = _output(str(bubblewrap()), "--version") or "works"
    return [_state("bubblewrap", version, unlocks, "recommended"), probe_cgroup()]


def probe_cgroup() -> Requirement:
    """Check for cgroup v2 in which limits can be set, as a cohort's runner does."""
    unlocks = (
        "limits that the kernel enforces in a check; a cohort's runner measures nothing without"
        " (`--allow-no-cgroup`)"
    )
    own = own_group()
    if own is None:
        remedy = "Boot with cgroup v2; until then process groups are used."
        return _state("cgroup v2", "not mounted", unlocks, "optional", remedy)
    with in_charge():
        problem = limits_problem()
    if not problem:
        return _state("cgroup v2", str(own), unlocks, "optional")
    remedy = (
        "Put `systemd-run --user --scope -p Delegate=yes` before the command; until then a check"
        " watches its processes itself."
    )
    return _state("cgroup v2", problem, unlocks, "optional", remedy)


def probe_sizes() -> list[Requirement]:
    """Check cores, memory, disk and shared memory."""
    folder = next(folder for folder in (home(), *home().parents) if folder.exists())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shared = Path("/dev/shm")
    shared_gib = 0.0
    if shared.exists():
        shared_gib = shutil.disk_usage(shared).total / _GIB
    cores = float(len(os.sched_getaffinity(0)))
    need_cores = "Allow this process at least two cores."
    need_memory = "Use a machine with at least 4 GiB."
    need_disk = f"Free some space below {folder}."
    need_shared = "In Docker, add `--shm-size=2g`."
    for_shared = "DataLoader workers and the emulated accelerator"
    free = shutil.disk_usage(folder).free / _GIB
    rows = [
        ("cores", cores, 2.0, "cores", "measuring at all", need_cores),
        ("memory", pages / _GIB, 4.0, "GiB", "the training workloads", need_memory),
        ("disk", free, 2.0, "GiB free", "data sets and captures", need_disk),
        ("/dev/shm", shared_gib, 0.5, "GiB", for_shared, need_shared),
    ]
    return [
        _state(name, f"{value:.3g} {unit}", unlocks, "required", "" if value >= least else remedy)
        for name, value, least, unit, unlocks, remedy in rows
    ]


def probe_data() -> list[Requirement]:
    """Check for data sets and servers that `lab data` makes."""
    return [
        probe_dataset("photos", "the labs on images", "recommended", "lab data"),
        probe_dataset(
            "tritonserver",
            "a lab's server on a real Triton Inference Server",
            "optional",
            "lab data tritonserver",
        ),
        probe_perf_analyzer(),
    ]


def probe_perf_analyzer() -> Requirement:
    """Check for Triton's own load generator, installed next to it."""
    unlocks = "the same load from Triton's own tool, next to `lab run`'s"
    name = "perf_analyzer"
    if importlib.util.find_spec("httptools") is None:  # which our own load generator imports
        missing = "httptools is not installed"
        return _state(name, missing, unlocks, "optional", install_command("labs"))
    from bottleneck_lab.measure.kinds.inference_server.triton.perf_analyzer import (
        PerfAnalyzer,  # half a second, of every command
    )

    try:
        version = PerfAnalyzer(dataset_root("tritonserver")).version()
    except MachineError as error:
        return _state(name, error.message, unlocks, "optional", error.remedy)
    return _state(name, version, unlocks, "optional")


def probe_dataset(name: str, unlocks: str, need: Need, remedy: str) -> Requirement:
    """Check for a data set; `remedy` is the command that makes it."""
    if is_made(name):
        return _state(name, str(dataset_root(name)), unlocks, need)
    return _state(name, "not created yet, or incomplete", unlocks, need, remedy)
