"""Kinds of labs: found by name, another package's too; their settings typed, with defaults in one
place.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.criteria import grade_check
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure.clock import PhaseClock
from bottleneck_lab.measure.context import Measured
from bottleneck_lab.measure.kinds import registry
from bottleneck_lab.measure.kinds.base import Kind
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.measure.settings import Settings
from bottleneck_lab.measure.verifier import check_lab


class QuizSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass_mark: int = 3


class Quiz(Kind[QuizSettings]):
    """A kind that another package brings: right is who has enough lines."""

    name = "quiz"
    settings_type = QuizSettings

    def measure(self, context):
        lines = len((context.submission / context.lab.spec.entry).read_text().splitlines())
        problem = None if lines >= context.settings.pass_mark else f"{lines} lines"
        return Measured([grade_check(context.required("right-answers"), problem, lines)])

    def profile(self, context, trace, on_line):
        raise NotImplementedError


@pytest.fixture
def pack(monkeypatch):
    """An installed package with that kind."""
    module = ModuleType("quiz_pack")
    module.KIND, module.OTHER = Quiz(), object()
    monkeypatch.setitem(sys.modules, "quiz_pack", module)
    entries = EntryPoints(
        EntryPoint(name, f"quiz_pack:{attribute}", registry.GROUP)
        for name, attribute in (("quiz", "KIND"), ("odd", "OTHER"), ("speedup", "KIND"))
    )
    monkeypatch.setattr(registry, "entry_points", entries.select)
    registry.find_kind.cache_clear()
    yield module.KIND
    registry.find_kind.cache_clear()


def quiz(lab, **settings):
    device = lab.spec.devices["cpu"]
    cpu = msgspec.structs.replace(device, criteria=device.criteria[:1], settings=settings)
    return msgspec.structs.replace(
        lab, spec=msgspec.structs.replace(lab.spec, measure="quiz", devices={"cpu": cpu})
    )


def test_another_package_s_kind_measures_a_lab(pack, lab, workspace, tmp_path):
    def outcome(**settings):
        return check_lab(quiz(lab, **settings), workspace, "cpu", data=tmp_path)

    assert registry.find_kind("quiz") is pack
    assert outcome().outcome is Outcome.PASS
    assert outcome(pass_mark=1000).outcome is Outcome.FAIL
    wrong = outcome(pass_marks=1000)
    assert wrong.outcome is Outcome.ERROR
    assert "there is no `pass_marks` here. Did you mean `pass_mark`?" in wrong.summary


def test_a_wrong_setting_is_found_without_measuring(pack, lab):
    assert not [line for line in check_files(quiz(lab)) if "pass_mark" in line]
    assert [
        line
        for line in check_files(quiz(lab, pass_mark="many"))
        if "`pass_mark`: expected a whole number" in line
    ]


def test_a_built_in_kind_cannot_be_replaced(pack):
    assert registry.find_kind("speedup") is not pack


@pytest.mark.parametrize(
    ("name", "says"), [("odd", "is not a kind of lab"), ("riddle", "no kind of lab called")]
)
def test_an_entry_point_that_is_not_a_kind_is_an_error(pack, name, says):
    with pytest.raises(LabError, match=says):
        registry.find_kind(name)


@pytest.mark.usefixtures("pack")
def test_an_unknown_kind_is_an_error_that_names_the_known(lab, workspace, tmp_path):
    unknown = msgspec.structs.replace(lab, spec=msgspec.structs.replace(lab.spec, measure="riddle"))
    verdict = check_lab(unknown, workspace, "cpu", data=tmp_path)
    assert verdict.outcome is Outcome.ERROR
    assert "input_pipeline, odd, operator_profile, quiz" in verdict.advice[0]


@pytest.mark.parametrize("lab", load_labs().values(), ids=lambda lab: lab.slug)
def test_every_lab_s_settings_are_its_kind_s(lab):
    for device in lab.spec.devices:
        registry.kind_of(lab).settings(lab, device)


def test_a_kind_without_its_files_names_what_is_missing():
    class Bare(Kind[Settings]):
        name = "bare"
        settings_type = Settings

    for call, file in (
        (lambda: Bare().measure(SimpleNamespace(clock=PhaseClock())), "check"),
        (lambda: Bare().run_by_kind(None, print), "run"),
    ):
        with pytest.raises(LabError, match=rf"'bare' has no function `\w+` in .*\.{file}\."):
            call()


def test_a_package_that_a_kind_s_module_lacks_is_not_taken_for_its_own(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr("bottleneck_lab.measure.kinds.base.import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="triton"):
        Quiz().run_by_kind(None, print)
