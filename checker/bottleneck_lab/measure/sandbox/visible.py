"""Choose what a worker can see of the machine (files, devices, environment), and the bubblewrap
command line that hides the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bottleneck_lab.measure.sandbox.bubblewrap import MAY_MOUNT, SYSTEM, bubblewrap, namespaces
from bottleneck_lab.measure.sandbox.gpus import chosen_gpus, visible_nodes
from bottleneck_lab.plugin import VARIABLE, plugin_path
from bottleneck_lab.programs import find_program

ACCOUNT = "worker"
"""The user name of a worker's process, the same on every machine."""
_NOBODY = 65534
"""The user and group as which a user namespace shows whoever it does not map (proc(5))."""
_GPU_CHOICE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Which of the machine's GPUs is meant."""


@dataclass
class Paths:
    """The folders that a worker sees besides the system and Python: a scratch folder of its own,
    and folders it may only read. `hidden` ones are empty to it.

    `may_mount`: what starts in the sandbox is trusted, and makes narrower ones in it.
    """

    scratch: Path
    readable: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)
    may_mount: bool = False


@cache
def python_folders() -> list[str]:
    """Return what an isolated Python needs: itself, and every folder it imports from, also those
    that a .pth file names.
    """
    listed = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # Site-packages, or the `checker` of a checkout.
    imported_from = Path(__file__).resolve().parents[3]
    executable = Path(sys.executable).resolve().parent.parent
    return sorted(
        {
            sys.prefix,
            sys.base_prefix,
            str(executable),
            str(imported_from),
            *listed.stdout.splitlines(),
        }
    )


def readable_folders(shown: list[Path]) -> list[str]:
    """Return what a worker may read besides the system: Python's folders, downloaded weights, the
    plugin of this process, and those that it is shown.
    """
    more = [path for path in (torch_home(), plugin_path()) if path]
    return [*python_folders(), *map(str, [*shown, *more])]


def write_accounts(folder: Path) -> Path:
    """Write `passwd` and `group` files that know only this process's user, and return `folder`.

    Libraries look up the user they run as: since 2.11 torch does when an optimizer is made, and
    dies with "getpwuid(): uid not found" where there is no entry. The machine's own files would
    tell a worker who else has an account.
    """
    folder.mkdir(exist_ok=True)
    users = {os.getuid(): ACCOUNT, _NOBODY: "nobody"}
    groups = {os.getgid(): ACCOUNT, _NOBODY: "nogroup"}
    passwd = [f"{name}:x:{uid}:{os.getgid()}::/tmp:/bin/sh\n" for uid, name in users.items()]
    (folder / "passwd").write_text("".join(passwd))
    (folder / "group").write_text("".join(f"{name}:x:{gid}:\n" for gid, name in groups.items()))
    return folder


def _sandbox(paths: Paths, memory_bytes: int, gpu: bool, accounts: Path | None) -> list[str]:
    # First /proc and /dev: what follows may lie below them.
    command = [*namespaces(), *(MAY_MOUNT if paths.may_mount else ())]
    for folder in ("/dev/shm", "/tmp"):  # in memory that no process is charged for
        command += ["--size", str(memory_bytes // 4), "--tmpfs", folder]
    shown = list(paths.readable)
    if gpu:
        shown += _driver_libraries()
        if toolkit := _cuda_toolkit():
            shown += [toolkit]
    for folder in [*SYSTEM, *readable_folders(shown)]:
        command += ["--ro-bind-try", folder, folder]
    # Not the machine's own accounts, which name its users.
    if accounts is not None:
        for name in ("passwd", "group"):
            command += ["--ro-bind", str(accounts / name), f"/etc/{name}"]
    # An installed package holds the labs with their solutions: nothing that runs here needs them.
    content = Path(__file__).resolve().parents[2] / "content"
    for hidden in filter(Path.is_dir, [*paths.hidden, content]):
        # Read-only, or it would be memory that nobody is charged for.
        command += ["--tmpfs", str(hidden), "--remount-ro", str(hidden)]
    command += ["--bind", str(paths.scratch), str(paths.scratch)]
    if gpu:
        for device in visible_nodes(chosen_gpus()):
            command += ["--dev-bind-try", str(device), str(device)]
    # The root itself lies in memory that nobody is charged for: nothing is to be written beside
    # what is mounted.
    return [*command, "--remount-ro", "/", "--chdir", str(paths.scratch), "--"]


def sandboxed(
    command: list[str],
    paths: Paths,
    memory_bytes: int,
    *,
    gpu: bool,
    accounts: Path | None = None,
) -> list[str]:
    """Return the command line with bubblewrap around it, or as it is where there is none.

    `accounts`: a folder of `write_accounts`, for a program that asks who it runs as.
    """
    if not bubblewrap():
        return command
    return [*_sandbox(paths, memory_bytes, gpu, accounts), *command]


def is_visible(path: Path, readable: list[Path]) -> bool:
    """Return True if a worker can see a path of this machine: any without a sandbox, otherwise only
    what lies in a folder that it is shown.
    """
    folders = [*SYSTEM, *readable_folders(readable)]
    # Both resolved: a symbolic link into a visible folder is visible, too.
    return bubblewrap() is None or any(
        path.resolve().is_relative_to(Path(folder).resolve()) for folder in folders
    )


def torch_home() -> Path | None:
    """Return where torch keeps downloaded weights, if there are any: reference and learner both may
    read them, or neither.
    """
    folder = Path(os.environ.get("TORCH_HOME", Path.home() / ".cache" / "torch"))
    if (folder / "hub" / "checkpoints").is_dir():
        return folder
    return None


def _driver_libraries() -> list[Path]:
    """Return the folders of LD_LIBRARY_PATH: a container's driver may be found by it alone."""
    folders = map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return [folder.resolve() for folder in folders if folder.is_absolute()]


def _cuda_toolkit() -> Path | None:
    """Return the folder of the CUDA compiler that this machine has, if it has one."""
    compiler = find_program("nvcc")
    return compiler.resolve().parents[1] if compiler else None


def _gpu_environment() -> dict[str, str]:
    """Return what a worker on a GPU has of the verifier's environment: the same GPU, driver and
    compiler.
    """
    environment = {name: os.environ[name] for name in _GPU_CHOICE if name in os.environ}
    if bubblewrap() and (gpus := chosen_gpus()):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    if libraries := _driver_libraries():
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    if toolkit := _cuda_toolkit():
        environment["CUDA_HOME"] = str(toolkit)
    return environment


def worker_environment(
    paths: Paths, threads: int, *, bound: bool = False, gpu: bool = False
) -> dict[str, str]:
    """Return a worker's whole environment: nothing of the verifier's own except which GPU to use,
    and what that GPU needs.
    """
    # In the sandbox /tmp is the worker's own, and short: a DataLoader puts sockets there, whose
    # names may have 107 bytes.
    temporary = Path("/tmp") if bubblewrap() else paths.scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(paths.scratch),
        "USER": ACCOUNT,
        "LOGNAME": ACCOUNT,
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "LAB_CACHE": str(paths.scratch / "cache"),
    }
    if bound:
        # A thread that waits for work by spinning would go on into the next call, which may be of
        # another case.
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
        environment["OMP_WAIT_POLICY"] = "passive"
    if weights := torch_home():
        environment["TORCH_HOME"] = str(weights)
    if plugin := plugin_path():
        environment[VARIABLE] = str(plugin)
    return environment | (_gpu_environment() if gpu else {})
