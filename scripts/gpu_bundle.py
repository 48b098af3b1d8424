"""Pack this project for a GPU machine that has no package index: `make gpu-bundle PYTHON=3.12`.

    python scripts/gpu_bundle.py [--python 3.12] [--out build/bottleneck-lab-gpu.tar.gz]

The archive holds the committed files, the wheels that such a machine usually lacks (it has torch,
torchvision, NumPy and a CUDA toolkit), bubblewrap where this machine can download Debian's package,
and `start`, which runs `make gpu` with all of that in place. Nothing is installed there, and
nothing is written outside the unpacked folder but what a check needs in its own scratch folders.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 60 << 20
"""What the archive may come to: rented machines are often fed through slow links."""
THERE = ("torch", "torchvision", "numpy")
"""What a GPU machine brings itself, in versions that fit its driver."""
TESTS = ("pytest", "pytest-timeout")
PLATFORM = "manylinux_2_28_x86_64"

START = """#!/usr/bin/env bash
# Runs `make gpu` from this folder: ./start ARGS, such as ./start --list or ./start --budget-s 800.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
export PATH="$here/bin:$PATH" PYTHONPATH="$here/wheels${PYTHONPATH:+:$PYTHONPATH}"
export BOTTLENECK_LAB_HOME="${BOTTLENECK_LAB_HOME:-$here/home}"
cd "$here/bottleneck-lab"
exec make --no-print-directory gpu ARGS="$*"
"""


def needed() -> list[str]:
    """Return the requirements of the labs and the tests on a GPU, less what is there already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["labs"]]
    return [one for one in wanted if not one.startswith(THERE)] + [*TESTS, "nvidia-ml-py"]


def download_wheels(python: str, folder: Path) -> None:
    """Unpack the wheels for that Python into `folder`, as one importable directory."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
                *("--python-version", python, "--platform", PLATFORM),
                *("--platform", "manylinux2014_x86_64", "--platform", "any"),
                *("--dest", scratch, *needed()),
            ],
            check=True,
        )
        for wheel in sorted(Path(scratch).glob("*.whl")):
            if wheel.name.lower().startswith(tuple(f"{name}-" for name in THERE)):
                continue
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            # A few wheels keep modules in a folder whose content pip would move up.
            for modules in folder.glob("*.data/purelib"):
                shutil.copytree(modules, folder, dirs_exist_ok=True)


def download_bubblewrap(folder: Path) -> bool:
    """Put Debian's `bwrap` into `folder`. Returns False where apt cannot download it.

    It is linked against libcap and libselinux, which every Debian and Ubuntu has.
    """
    if shutil.which("apt-get") is None:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        got = subprocess.run(["apt-get", "download", "-qq", "bubblewrap"], cwd=scratch, check=False)
        packages = list(Path(scratch).glob("bubblewrap_*.deb"))
        if got.returncode or not packages:
            return False
        subprocess.run(["dpkg-deb", "-x", packages[0], scratch], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(scratch, "usr/bin/bwrap"), folder / "bwrap")
        return True


def unpack_project(folder: Path) -> None:
    """Put the committed files into `folder`: what is not committed is not on that machine."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="the Python of the GPU machine")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bottleneck-lab-gpu.tar.gz")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch, "bottleneck-lab-gpu")
        unpack_project(bundle / "bottleneck-lab")
        download_wheels(options.python, bundle / "wheels")
        with_sandbox = download_bubblewrap(bundle / "bin")
        start = bundle / "start"
        start.write_text(START, encoding="utf-8")
        start.chmod(0o755)
        with tarfile.open(options.out, "w:gz", compresslevel=9) as archive:
            archive.add(bundle, bundle.name)
    size = options.out.stat().st_size
    sys.stdout.write(
        f"{options.out}: {size / 1e6:.1f} MB, for Python {options.python},"
        f" {'with' if with_sandbox else 'without'} bubblewrap.\n"
        "On the machine: tar xf it, then bottleneck-lab-gpu/start\n"
    )
    if size > MAX_BYTES:
        sys.exit(f"That is more than the {MAX_BYTES >> 20} MiB that it should have at most.")


if __name__ == "__main__":
    main()
