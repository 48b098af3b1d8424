"""What is installed from the wheel alone, outside the checkout, is complete and works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.long


def run(*command: object, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=at,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, at=out
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it. Other packages are seen where they are; the
    checkout is not: a folder named in a .pth file gets none of its own .pth files read, and it is
    by one of these that the checkout is installed.
    """
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    done = run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",  # most of it is never imported here
        wheel,
        at=place,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    (site / "third_party.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    return place


def lab(place: Path, *arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"BOTTLENECK_LAB_HOME": str(place / "home"), "BOTTLENECK_LAB_CONTENT": ""}
    return run(place / "venv" / "bin" / "lab", *arguments, at=at or place, **environment)


def test_it_carries_every_lab_and_nothing_that_a_build_left_behind(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    content = {
        name.removeprefix("bottleneck_lab/content/") for name in names if "/content/" in name
    }
    tracked = run(
        "git", "ls-files", "labs", "solutions", "datasets/photos.py", at=ROOT
    ).stdout.split()
    assert tracked
    assert {name for name in tracked if not Path(name).name.startswith(".")} <= content
    assert not [
        name for name in names if "__pycache__" in name or name.endswith((".pyc", ".gitkeep"))
    ]


def test_its_page_on_the_package_index_needs_no_repository_around_it(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [
        archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
    ]
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert any(target.endswith(".svg") for target in targets)
    assert not [target for target in targets if not target.startswith("https://")]
    required = [
        line
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert not re.search("torch|dali|pillow", "".join(required)), (
        "the core is to install without torch"
    )


def test_it_is_the_wheel_that_runs_and_it_knows_its_labs(installed):
    done = run(
        installed / "venv" / "bin" / "python",
        "-c",
        "import bottleneck_lab; print(bottleneck_lab.__file__)",
        at=installed,
    )
    assert done.stdout.startswith(str(installed)), done.stderr
    labs = json.loads(lab(installed, "list", "--json").stdout)
    assert {row["lab"] for row in labs} == {
        path.parent.name for path in ROOT.glob("labs/*/lab.toml")
    }
    done = lab(installed, "start", "idle-gpu", "--no-data", "--json")
    assert done.returncode == 0, done.stderr
    assert (Path(json.loads(done.stdout)["workspace"]) / "README.md").is_file()


def test_it_checks_a_lab(installed):
    """One of those that it carries, whose times are modelled: other tests run beside this one."""
    place = installed / "a lab"
    assert lab(installed, "start", "timing-pitfalls", str(place)).returncode == 0
    assert lab(installed, "solution", "--yes", at=place).returncode == 0
    done = lab(installed, "check", "--json", at=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["outcome"] == "PASS"


def test_it_begins_a_new_lab(installed):
    done = lab(installed, "dev", "new", "mine", "--into", str(installed / "own"))
    assert done.returncode == 0, done.stderr
    assert (installed / "own" / "labs" / "mine" / "judge.py").is_file()
