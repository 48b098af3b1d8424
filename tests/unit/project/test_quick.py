"""What `make quick` runs: the tests nearest to a change, as many as there is time for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ... import quick, weather
from ...quick import Quick, distances, long_files_first, modules_of, stands_on

ROOT = Path(__file__).parents[3]


def test_a_test_stands_on_the_helpers_it_imports_and_on_what_these_import():
    files, modules = stands_on(ROOT / "tests" / "exploits" / "test_exploits.py")
    assert {
        "tests/exploits/test_exploits.py",
        "tests/exploits/hostile.py",
        "tests/tools.py",
    } <= files
    assert {
        "bottleneck_lab.measure.verifier",
        "bottleneck_lab.measure.sandbox.bubblewrap",
    } <= modules


def test_modules_are_as_far_from_a_change_as_imports_lie_between():
    assert modules_of({"checker/bottleneck_lab/trace/__init__.py", "labs/course.toml"}) == {
        "bottleneck_lab.trace"
    }
    far = distances({"bottleneck_lab.measure.channel.wire"})
    assert far["bottleneck_lab.measure.channel.wire"] == 0
    assert far["bottleneck_lab.measure.channel.session"] == 1
    assert far["bottleneck_lab.cli"] > 1
    assert "bottleneck_lab.errors" not in far
    assert distances(set()) == {}


def item(name: str, *marks: str, at: str = "tests/unit/project/test_quick.py") -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        nodeid=name,
        path=ROOT / at,
        get_closest_marker=lambda mark: mark if mark in marks else None,
    )


@pytest.fixture
def chosen(monkeypatch):
    """The names of the tests that are run of some, for a change and a number of seconds."""

    def choose(items, changed, seconds, took=()):
        monkeypatch.setattr(quick, "changed_files", lambda: changed)
        config = SimpleNamespace(
            cache=SimpleNamespace(get=lambda *_: dict(took)),
            getoption=lambda _: seconds,
            hook=SimpleNamespace(pytest_deselected=lambda items: None),
        )
        Quick(config).pytest_collection_modifyitems(items)
        return [one.name for one in items]

    return choose


ELSEWHERE = "tests/unit/measure/test_wire.py"


def test_long_tests_are_run_for_what_changed_only(chosen):
    tests = [
        item("fast"),
        item("long", "long"),
        item("timed", "timed"),
        item("far", "long", at=ELSEWHERE),
    ]
    assert chosen([*tests], set(), 100) == ["fast"]
    assert chosen([*tests], {"tests/unit/project/test_quick.py"}, 100) == ["fast", "long", "timed"]
    assert chosen([*tests], {"checker/bottleneck_lab/measure/channel/wire.py"}, 100) == [
        "fast",
        "far",
    ]


def test_a_lab_s_tests_are_known_by_its_name(chosen):
    tests = [
        item("check[idle-gpu-starter]", "timed", at=ELSEWHERE),
        item("check[other]", "timed", at=ELSEWHERE),
    ]
    assert chosen(tests, {"solutions/idle-gpu/train.py"}, 100) == ["check[idle-gpu-starter]"]


def test_what_changed_comes_first_then_what_is_fast_until_the_time_is_used_up(chosen):
    tests = [item("slower", at=ELSEWHERE), item("faster", at=ELSEWHERE), item("near", "long")]
    took = {"slower": 2.0, "faster": 1.0, "near": 6.0}
    changed = {"tests/unit/project/test_quick.py"}
    assert chosen([*tests], changed, 9.1, took) == ["slower", "faster", "near"]
    assert chosen([*tests], changed, 7.1, took) == ["faster", "near"]
    assert chosen([*tests], changed, 6.1, took) == ["near"]


def test_tests_that_take_no_time_are_not_run_without_end(chosen):
    tests = [item(str(number), at=ELSEWHERE) for number in range(1000)]
    assert len(chosen(tests, set(), 5, {one.name: 0.0 for one in tests})) == 500


def test_what_a_busy_machine_spoils_is_left_out_of_a_quick_run_and_asked_again_otherwise(
    monkeypatch,
):
    answers = iter(["INCONCLUSIVE", "PASS"])
    monkeypatch.setattr(weather, "wait_until_quiet", lambda *_: None)
    monkeypatch.setattr(weather, "hurried", False)
    assert weather.asked_again(lambda: next(answers), str) == "PASS"
    monkeypatch.setattr(weather, "hurried", True)
    with pytest.raises(pytest.skip.Exception, match="make test"):
        weather.asked_again(lambda: "INCONCLUSIVE", str)
    assert weather.asked_again(lambda: "FAIL", str) == "FAIL"


def test_without_a_time_everything_is_run(chosen):
    assert chosen([item("one"), item("two", "long")], set(), None) == ["one", "two"]


def test_files_with_long_tests_come_first_and_keep_their_order():
    tests = [
        item("fast"),
        item("near", at=ELSEWHERE),
        item("long", "long", at=ELSEWHERE),
        item("last"),
    ]
    long_files_first(tests)
    assert [one.name for one in tests] == ["near", "long", "fast", "last"]
