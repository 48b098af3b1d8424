"""Every lab, as shipped and as solved, measured on this machine by the function that grades
learners.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bottleneck_lab.capture.devices import choose_device
from bottleneck_lab.catalog import Lab, find_lab
from bottleneck_lab.course import proving
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.home import dataset_root

from ..weather import asked_again

ROOT = Path(__file__).parents[2]
COURSE = tomllib.loads((ROOT / "labs" / "course.toml").read_text())
LABS = [slug for stage in COURSE["stages"] for slug in stage["labs"]]
ON_A_MODELLED_CLOCK = {"data_parallel", "training", "benchmark"}
"""Kinds of measurement that no neighbour disturbs."""
FOR_ITS_KIND = {
    "speedup": "fused-attention",
    "training": "stuttering-tagger",
    "benchmark": "timing-pitfalls",
}
"""Where several labs of a kind take minutes, the one that every run of the tests measures; `make
slow` measures them all.
"""
PARTS = ("starter", "solution")
WITH_LESS = {
    ("benchmark", "solution"),
    ("data_parallel", "starter"),
    ("data_parallel", "solution"),
    ("input_pipeline", "starter"),
    ("operator_profile", "starter"),
    ("operator_profile", "solution"),
    ("speedup", "starter"),
    ("inference_server", "starter"),
    ("training", "starter"),
    ("training", "solution"),
}
"""Parts of labs by their kinds that are proved with fewer runs, on a smaller lab, in the
demonstration or from the wheel (below, `test_data_parallel.py`, `test_http_server.py`,
`test_docs.py`, `test_demo.py`, `test_wheel.py`, the exploit `burning_helpers`); `make slow`
measures them whole.
"""
NO_TRITON = "" if is_made("tritonserver") else "no Triton Inference Server: lab data tritonserver"
needs_triton = pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)


@pytest.fixture
def home(request, slug, tmp_path) -> Path:
    """A user's home, with the photographs in it where the lab needs them (to make them takes
    minutes), and Triton where it is set up.
    """
    (tmp_path / "datasets").mkdir()
    if "photos" in spec_of(slug).get("datasets", ()):
        (tmp_path / "datasets" / "photos").symlink_to(request.getfixturevalue("photos"))
    if is_made("tritonserver"):
        (tmp_path / "datasets" / "tritonserver").symlink_to(dataset_root("tritonserver"))
    return tmp_path


def spec_of(slug: str) -> dict[str, Any]:
    """A lab's lab.toml."""
    return tomllib.loads((ROOT / "labs" / slug / "lab.toml").read_text())


def mutants() -> list[tuple[str, str]]:
    """Lab and name of each mutant that is declared."""
    found = [
        (path.parent.name, path)
        for path in sorted((ROOT / "tests" / "mutants").glob("*/mutants.toml"))
    ]
    return [
        (slug, mutant["id"])
        for slug, path in found
        for mutant in tomllib.loads(path.read_text())["mutant"]
    ]


def right_answers() -> list[Any]:
    """Lab and name of each variant, those on Triton left out where there is none."""
    folders = sorted((ROOT / "tests" / "variants").glob("*/*/"))
    return [
        pytest.param(path.parent.name, path.name, marks=needs_triton if on_triton(path) else ())
        for path in folders
    ]


def on_triton(variant: Path) -> bool:
    """Whether its models are to be served by a Triton Inference Server."""
    entry = variant / "serve.py"
    return entry.is_file() and 'SERVER = "triton"' in entry.read_text()


def problems(slug: str, home: Path, *options: str) -> list[str]:
    """What `lab dev check` finds wrong with a lab."""
    done = subprocess.run(
        [sys.executable, "-m", "bottleneck_lab", "dev", "check", slug, "--json", *options],
        env={**os.environ, "BOTTLENECK_LAB_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [
        f"{row['what']}: {problem}"
        for row in json.loads(done.stdout)
        for problem in row["problems"]
    ]


def prove(slug: str, part: str, home: Path, *options: str) -> None:
    """A part of a lab does as it is declared to."""
    assert asked_again(lambda: problems(slug, home, "--only", part, *options), "\n".join) == []


def measured(slug: str, part: str):
    """A part of a lab as a parameter: `slow` where others stand for it, else `timed` where its
    check needs the machine to itself.
    """
    kind = spec_of(slug)["measure"]
    if FOR_ITS_KIND.get(kind, slug) != slug or (kind, part) in WITH_LESS:
        return pytest.param(slug, part, marks=pytest.mark.slow)
    return pytest.param(
        slug, part, marks=pytest.mark.long if kind in ON_A_MODELLED_CLOCK else pytest.mark.timed
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("slug", "part"), [measured(slug, part) for slug in LABS for part in PARTS]
)
def test_the_starter_fails_for_its_declared_reason_and_the_solution_passes(slug, part, home):
    prove(slug, part, home)


ON_CORES = [slug for slug in LABS if {"virtual", "cpu"} <= {*spec_of(slug)["devices"]}]
"""Labs with an emulated device that can be checked on this machine's own cores, too."""


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", [*PARTS, "variants", "mutants"])
@pytest.mark.parametrize("slug", ON_CORES)
def test_the_same_holds_on_this_machines_own_cores(slug, part, home):
    prove(slug, part, home, "--device", "cpu")


def of_kind(kind: str) -> list[str]:
    """The course's labs of a kind."""
    return [slug for slug in LABS if spec_of(slug)["measure"] == kind]


@pytest.fixture
def lab(slug, home, monkeypatch) -> Lab:
    """A lab as this process finds it, with the user's home of the test."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(home))
    return find_lab(slug)


def with_settings(lab: Lab, device: str, **changed: Any) -> Lab:
    """The lab with other settings of a device."""
    there = lab.spec.devices[device]
    settings = {**there.settings, **changed}
    devices = {**lab.spec.devices, device: msgspec.structs.replace(there, settings=settings)}
    return msgspec.structs.replace(lab, spec=msgspec.structs.replace(lab.spec, devices=devices))


@pytest.mark.timed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slug", of_kind("operator_profile"))
def test_a_solution_passes_with_shares_known_as_roughly_as_a_check_allows(lab):
    device = choose_device(lab, None)
    loosest = kind_of(lab).settings(lab, device).loosest
    roughly = with_settings(lab, device, least_captures=2, precision=loosest)

    def problems() -> list[str]:
        return proving.pass_problems(proving.check(roughly, lab.solution, device))

    assert asked_again(problems, "\n".join) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slug", of_kind("operator_profile"))
def test_a_starter_without_findings_fails_however_well_the_shares_are_known(lab):
    device = choose_device(lab, None)
    roughly = with_settings(lab, device, least_captures=2, precision=1.0, loosest=1.0)
    assert proving.starter_problems(roughly, proving.check(roughly, lab.path, device)) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("slug", "name"), right_answers())
def test_every_variant_passes(slug, name, lab, home):
    if name not in {folder.name for folder in variants(lab, choose_device(lab, None))}:
        pytest.skip("it is for another device")
    prove(slug, "variants", home, "--name", name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("slug", "name"), mutants())
def test_no_mutant_passes_and_each_fails_for_its_reason(slug, name, home):
    prove(slug, "mutants", home, "--name", name)


@pytest.mark.long
def test_the_static_check_reads_the_shipped_kernels_machine_code(tmp_path, cubins):
    lab = [sys.executable, "-m", "bottleneck_lab"]
    environment = {
        **os.environ,
        "BOTTLENECK_LAB_HOME": str(tmp_path / "home"),
        "LAB_CACHE": str(cubins),
    }
    place = tmp_path / "attention é"
    subprocess.run(
        [*lab, "start", "fused-attention", str(place)],
        env=environment,
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        [*lab, "check", "--static", "--json"],
        cwd=place,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    (found,) = json.loads(done.stdout)
    assert {arch for group in found["groups"] for arch in group["archs"]} == {"80", "90a"}
    assert all(
        group["figures"]["threads"] == 128 and group["figures"]["tensor_core"]
        for group in found["groups"]
    )
    told = subprocess.run(
        [*lab, "check", "--static"],
        cwd=place,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "attention.cu: compiled, not run" in told.stdout
    assert "4 sectors" in told.stdout
    assert "needs at least" not in told.stdout, (
        "nothing is diagnosed yet: no verdict on the evidence"
    )


def test_a_report_that_came_with_the_lab_is_read_without_a_gpu(tmp_path):
    lab = [sys.executable, "-m", "bottleneck_lab"]
    environment = {**os.environ, "BOTTLENECK_LAB_HOME": str(tmp_path / "home"), "COLUMNS": "80"}
    run = {"env": environment, "capture_output": True, "text": True}
    subprocess.run([*lab, "start", "fused-attention", str(tmp_path / "work")], check=True, **run)
    report = subprocess.run(
        [*lab, "report", "--recorded", "ncu"], cwd=tmp_path / "work", check=False, **run
    )
    assert report.returncode == 0, report.stderr
    assert "0.53x the speed of" in report.stdout, "an H100's, and not made up"
    assert "no GPU has measured them" not in report.stdout
    assert "1 Shared memory is read and written with bank conflicts" not in report.stdout, (
        "nothing is diagnosed yet"
    )
    none = subprocess.run(
        [*lab, "report", "--recorded", "nsys"], cwd=tmp_path / "work", check=False, **run
    )
    assert none.returncode == 2
    assert "does not ship with a 'nsys' report" in none.stderr
