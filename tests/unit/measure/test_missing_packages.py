"""A package of the checker's own that a worker cannot import is an ERROR with a remedy, in every
kind of check; one that the learner's file misses is the learner's.
"""

from __future__ import annotations

import shutil
import sys

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure.channel import session
from bottleneck_lab.measure.kinds.data_parallel import session as data_parallel
from bottleneck_lab.measure.verifier import check_lab

pytestmark = pytest.mark.long
WITHOUT = """
import runpy, sys
sys.modules["msgspec"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
LABS = {
    "benchmark": ("timing-pitfalls", "virtual"),
    "speedup": ("fused-attention", "cpu"),
    "training": ("forecaster-out-of-memory", "virtual"),
    "data_parallel": ("ddp-scaling", "virtual"),
}


def verdict_on(slug: str, device: str, tmp_path, code: str | None = None):
    lab = find_lab(slug)
    workspace, data = tmp_path / "workspace", tmp_path / "data"
    workspace.mkdir()
    data.mkdir()
    for name in lab.spec.editable:
        shutil.copy(lab.path / name, workspace / name)
    if code:
        (workspace / lab.spec.editable[0]).write_text(code, encoding="utf-8")
    return check_lab(lab, workspace, device, data=data)


@pytest.mark.parametrize("kind", LABS)
def test_a_worker_without_a_package_of_ours_is_an_error_with_a_remedy(kind, tmp_path, monkeypatch):
    def without(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-I", "-u", "-c", WITHOUT, name, *arguments]

    for module in (session, data_parallel):
        monkeypatch.setattr(module, "python_module", without)
    verdict = verdict_on(*LABS[kind], tmp_path, "1 / 0\n")
    assert verdict.outcome is Outcome.ERROR, verdict.summary
    assert "before it loaded the code to check" in verdict.summary
    assert "msgspec" in verdict.summary
    assert "lab doctor" in verdict.advice[0]


@pytest.mark.parametrize("kind", ["benchmark", "training", "data_parallel"])
def test_a_package_that_the_learners_file_misses_is_a_crash_of_its_own(kind, tmp_path):
    verdict = verdict_on(*LABS[kind], tmp_path, "import a_package_nobody_has\n")
    assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, "crashed"), verdict.summary
    assert "line 1, in <module>: import a_package_nobody_has" in verdict.summary
