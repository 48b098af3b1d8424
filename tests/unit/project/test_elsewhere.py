"""What works without the extras, on macOS and on Windows, and what the rest says it needs. See
tests/elsewhere.py for how a place is simulated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ... import warm

ROOT = Path(__file__).parents[3]
CAPTURES = ROOT / "datasets" / "captures"
PLACES = ("bare", "macos", "windows")
pytestmark = pytest.mark.long


def lab(place: str, *arguments: object, at: Path) -> subprocess.CompletedProcess[str]:
    home = {"BOTTLENECK_LAB_HOME": str(at / "home"), "BOTTLENECK_LAB_DEBUG": "1"}
    return warm.lab(*map(str, arguments), at=at, environment={**os.environ, **home}, place=place)


@pytest.mark.parametrize("place", PLACES)
def test_the_course_is_listed(place, tmp_path):
    done = lab(place, "list", at=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resnet-latency" in done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_a_capture_is_read_and_drawn(place, tmp_path):
    done = lab(place, "report", CAPTURES / "synthetic-input.json.gz", at=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The device waits for data" in done.stdout
    done = lab(
        place,
        "report",
        CAPTURES / "synthetic-input.json.gz",
        "--html",
        tmp_path / "r.html",
        at=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("place", PLACES)
def test_a_signature_is_checked(place, tmp_path):
    key = Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "cohort.pub").write_bytes(pem)
    (tmp_path / "verdict.json").write_text("{}")
    done = lab(place, "verify", "verdict.json", "--key", "cohort.pub", at=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("✗")


@pytest.mark.parametrize("place", PLACES)
def test_two_captures_are_compared(place, tmp_path):
    done = lab(
        place,
        "compare",
        CAPTURES / "synthetic-input.json.gz",
        CAPTURES / "synthetic-healthy.json.gz",
        at=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "The device waits for data" in done.stdout


@pytest.mark.parametrize("place", ["macos", "windows"])
def test_doctor_says_that_checks_need_linux(place, tmp_path):
    done = lab(place, "doctor", at=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "WSL2" in done.stdout


@pytest.mark.parametrize("command", ["start", "check", "data"])
def test_on_windows_a_lab_says_that_it_needs_linux(command, tmp_path):
    done = lab("windows", command, at=tmp_path)
    assert done.returncode == 4
    assert f"`lab {command}` needs Linux; this is Windows." in done.stderr


def test_on_macos_a_lab_is_read_but_not_checked(tmp_path):
    workspace = tmp_path / "here"
    assert lab("macos", "start", "ddp-scaling", workspace, "--no-data", at=tmp_path).returncode == 0
    done = lab("macos", "check", at=workspace)
    assert done.returncode == 4
    assert "`lab check` needs Linux; this is macOS." in done.stderr


def test_without_the_extras_doctor_names_them(tmp_path):
    done = lab("bare", "doctor", at=tmp_path)
    assert done.returncode == 4
    for extra in ("labs", "gpu", "ncu"):
        assert f"bottleneck-lab[{extra}]" in done.stdout
    assert "lacks what every lab needs: torch, torchvision, Pillow" in done.stdout


def test_without_the_extras_no_lab_is_begun(tmp_path):
    workspace = tmp_path / "here"
    done = lab("bare", "start", "ddp-scaling", workspace, "--no-data", at=tmp_path)
    assert done.returncode == 4
    assert "bottleneck-lab[labs]" in done.stderr
    assert not workspace.exists()


@pytest.mark.parametrize("command", ["check", "run", "profile"])
def test_without_the_extras_a_lab_says_which_it_needs(command, tmp_path):
    workspace = tmp_path / "here"
    # Begun where everything was there.
    assert lab("macos", "start", "ddp-scaling", workspace, "--no-data", at=tmp_path).returncode == 0
    done = lab("bare", command, at=workspace)
    assert done.returncode == 4
    assert "Not installed for this Python: PyTorch, torchvision, Pillow." in done.stderr
    assert "bottleneck-lab[labs]" in done.stderr


def test_without_the_extras_a_cohort_says_which_it_needs(tmp_path):
    done = lab("bare", "cohort", "serve", at=tmp_path)
    assert done.returncode == 4
    assert "bottleneck-lab[cohort]" in done.stderr
    done = lab("bare", "status", at=tmp_path)  # a learner needs none of it
    assert "You have not joined a cohort." in done.stderr


def test_without_the_extras_the_data_set_says_which_it_needs(tmp_path):
    done = lab("bare", "data", at=tmp_path)
    assert done.returncode == 4
    assert "bottleneck-lab[labs]" in done.stderr


def test_without_the_extras_a_profile_of_a_program_says_which_it_needs(tmp_path):
    (tmp_path / "empty.py").touch()
    bare = tmp_path / "bare" / "python"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    bare.chmod(0o755)
    done = lab("bare", "profile", "--", bare, "empty.py", at=tmp_path)
    assert done.returncode == 4
    assert "bottleneck-lab[labs]" in done.stderr
