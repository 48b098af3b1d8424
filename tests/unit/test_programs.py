"""One finder of programs and one probe of bubblewrap: `lab doctor`, the readers, the recorders and
a check agree on what there is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bottleneck_lab import programs
from bottleneck_lab.capture import doctor
from bottleneck_lab.capture.tools import locate
from bottleneck_lab.errors import CaptureError, MachineError
from bottleneck_lab.measure.sandbox import bubblewrap as probe
from bottleneck_lab.trace import load


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """A machine without any of the programs; their folders may be put below `tmp_path`."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(programs, "_FOLDERS", (f"{tmp_path}/nsight-systems/*/bin",))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for cached in (probe.bubblewrap, probe.bubblewrap_problem, probe.namespaces):
        cached.cache_clear()
    yield tmp_path
    for cached in (probe.bubblewrap, probe.bubblewrap_problem, probe.namespaces):
        cached.cache_clear()


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def found(name: str) -> doctor.Requirement:
    return next(finding for finding in doctor.examine() if finding.name == name)


def test_nsys_of_nvidia_s_package_is_found_by_all(nothing):
    older = script(nothing / "nsight-systems" / "2024.1" / "bin" / "nsys", "echo older")
    newer = script(older.parents[2] / "2025.3" / "bin" / "nsys", "echo version 2025.3")
    assert locate("nsys") == str(newer)
    assert (found("nsys").present, found("nsys").found) == (True, "version 2025.3")
    report = nothing / "report.nsys-rep"
    report.write_bytes(b"\0")
    with pytest.raises(CaptureError, match=r"could not export report.nsys-rep: version 2025\.3"):
        load(report)


def test_what_is_missing_is_missing_to_all(nothing):
    assert not found("nsys").present
    with pytest.raises(MachineError, match="nsys is not installed"):
        locate("nsys")
    assert found("nsys").remedy in programs.how_to_get("nsys")


def test_a_missing_bubblewrap_is_named(nothing):
    assert probe.bubblewrap() is None
    assert (found("bubblewrap").present, found("bubblewrap").found) == (False, "not installed")
    with pytest.raises(MachineError, match="not installed"):
        probe.require_sandbox()


def test_a_bubblewrap_that_a_check_cannot_use_does_not_work_for_doctor_either(nothing):
    script(
        nothing / "bin" / "bwrap",
        'case "$*" in *--proc*) echo "bwrap: Can\'t mount proc on /newroot/proc" >&2; exit 1;;'
        " esac",
    )
    assert probe.bubblewrap() is None
    assert not found("bubblewrap").present
    assert "Can't mount proc" in found("bubblewrap").found
    assert "user namespaces" in found("bubblewrap").remedy


def test_an_old_bubblewrap_works_without_its_newer_option(nothing):
    path = script(nothing / "bin" / "bwrap", 'case "$*" in *--disable-userns*) exit 1;; esac')
    assert probe.bubblewrap() == str(path)
    assert "--disable-userns" not in probe.namespaces()
