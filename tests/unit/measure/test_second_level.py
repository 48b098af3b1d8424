"""The second level: the learner's speed against the fastest way in which the library can answer."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.context import Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.figures import Case
from bottleneck_lab.measure.kinds.speedup.second_level import with_second_level

SPEC = CriterionSpec(
    "second-level", "target", "As fast as the fastest backend", target=1.0, unit="x", margin=0.97
)
MOVES_S = 0.02


class Reference:
    """A reference whose calls take MOVES_S and the seconds of the way that they name. One that is
    missing answers with nothing.
    """

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.cases = set()

    def call(self, inputs):
        self.cases.add(inputs[0])
        _case, way = inputs if len(inputs) == 2 else (*inputs, "flash")
        if way not in self.seconds:
            return 0.001, []
        return MOVES_S + self.seconds[way], ["right"]


def note(reference, *, doubt: float = 0.0, holds: bool = True, learner_s=(0.05, 0.05)):
    """The last note on work that takes `learner_s` in each of two cases, and the measurement."""
    judge = SimpleNamespace(
        rivals=lambda inputs: {way: [*inputs, way] for way in ("flash", "cuDNN", "efficient")},
        judge=lambda _case, _inputs, answer, *_: None if answer else "It is no answer.",
    )
    workers = SimpleNamespace(
        context=SimpleNamespace(
            settings=SpeedupSettings(second_level=SPEC),
            progress=lambda *_: None,
            rng=random.Random(1),
        ),
        judge=judge,
        reference=reference,
        inputs=lambda case: [case],
    )
    cases = [
        Case(
            f"case {number}",
            reference_s=[0.1 + MOVES_S] * 12,
            learner_s=[seconds + MOVES_S] * 12,
            moved_s=[MOVES_S] * 12,
        )
        for number, seconds in enumerate(learner_s)
    ]
    passed = CriterionResult("speedup", "target", holds, "As fast.")
    measured = Measured([passed], notes=["first"], conditions=Conditions(doubt=doubt))
    after = with_second_level(workers, measured, cases)
    assert after.results == measured.results  # whatever comes out, the criteria are as they were
    return after.notes[-1], after


def test_a_kernel_as_fast_as_the_fastest_way_reaches_the_level():
    text, measured = note(Reference(flash=0.1, cuDNN=0.05, efficient=0.2))
    assert text.startswith("Second level, not needed for a PASS: reached. As fast as the fastest")
    assert "the fastest is cuDNN" in text
    assert measured.details["second_level"]["value"] == pytest.approx(1.0)


def test_a_case_that_misses_decides_and_its_distance_is_named():
    reference = Reference(flash=0.1, cuDNN=0.05)
    text, measured = note(reference, learner_s=(0.04, 0.08))
    assert ": not reached. " in text
    assert "in one of 2 cases (case 1; the fastest is cuDNN)" in text
    assert measured.details["second_level"]["value"] == pytest.approx(0.05 / 0.08)
    assert reference.cases == {"case 1"}, "the slowest is timed first, and no other can change it"


def test_where_all_cases_reach_it_the_worst_speaks_for_all():
    text, _ = note(Reference(flash=0.1, cuDNN=0.05), learner_s=(0.04, 0.049))
    assert ": reached. " in text
    assert "in the worst of 2 cases (case 1; the fastest is cuDNN)" in text


def test_the_way_that_the_check_compares_with_may_be_the_fastest():
    text, _ = note(Reference(flash=0.1, cuDNN=0.2), learner_s=(0.09, 0.09))
    assert ": reached. " in text
    assert "the fastest is flash" in text


def test_a_machine_that_favours_one_side_leaves_a_close_result_undecided():
    assert ": undecided. " in note(Reference(flash=0.1, cuDNN=0.05), doubt=0.1)[0]


def test_work_that_does_not_pass_is_not_measured_further():
    assert note(Reference(), holds=False)[0] == "first"


def test_a_library_that_fails_takes_nothing_from_the_verdict():
    class Ended(Reference):
        def call(self, inputs):
            raise VerifierFault("The reference worker failed: crashed.")

    assert note(Ended())[0] == (
        "Second level, not needed for a PASS: not measured. The reference worker failed: crashed."
    )
    assert "not measured. The library answered" in note(Reference(other=1.0))[0]
