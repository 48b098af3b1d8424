"""What a learner is told: figures in their unit, the gravest reason first, never a PASS for what
was not measured.
"""

from __future__ import annotations

import itertools
import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.errors import BusyMachineError, LabError, MachineError
from bottleneck_lab.grading.conclusion import (
    ADVICE,
    IN_COMMON,
    WRONG_AS_SHIPPED,
    Conditions,
    Stopped,
    conclude,
    explain_noise,
)
from bottleneck_lab.grading.criteria import (
    describe_criterion,
    format_beside,
    format_figure,
    format_limit,
    grade_check,
    grade_decision,
    grade_value,
    not_held_against,
    not_measured,
    sequential_test,
    worst_case,
)
from bottleneck_lab.grading.sequential import BLOCKS, Plan
from bottleneck_lab.grading.verdict import WHEN_QUIET, CriterionResult, Outcome

ANSWERS = CriterionSpec("right-answers", "correctness", "The answers agree with the reference")
SPEEDUP = CriterionSpec(
    "speedup", "target", "At least {target} as fast as shipped", target=1.5, unit="x"
)
BUSY = CriterionSpec("useful-utilisation", "target", "useful utilisation", target=0.8, unit="share")
LATENCY = CriterionSpec(
    "p50-ms", "target", "Median latency", target=5, direction="at_most", unit="ms"
)
WAIT = CriterionSpec(
    "data-wait", "mechanism", "Waiting for data", target=0.15, direction="at_most", unit="share"
)
CAUSE = CriterionSpec("cause", "diagnosis", "The cause is named")
SPECS = [ANSWERS, SPEEDUP, WAIT, CAUSE]


def sampled(spec, samples, **settings):
    return grade_decision(spec, sequential_test(spec, BLOCKS).decide(samples, **settings), "blocks")


def given_results(*holds):
    """One result a criterion of SPECS, holding as told."""
    return [
        CriterionResult(spec.id, spec.kind, hold, f"{spec.id} is {hold}.")
        for spec, hold in zip(SPECS, holds, strict=True)
    ]


def test_a_missed_share_is_told_in_percent_with_bounds_samples_and_target():
    result = sampled(BUSY, [0.39, 0.40, 0.41, 0.41, 0.41, 0.42, 0.42, 0.43])
    assert (
        result.sentence
        == "useful utilisation: no, 41% (39–43%, 8 blocks); the target is at least 80%."
    )
    assert (result.holds, result.value, result.low, result.high, result.samples) == (
        False,
        0.41,
        0.39,
        0.43,
        8,
    )
    assert (result.target, result.direction, result.unit, result.kind) == (
        0.8,
        "at_least",
        "share",
        "target",
    )


def test_a_text_that_states_the_target_does_not_hear_it_twice():
    result = sampled(SPEEDUP, [1.6, 1.61, 1.62, 1.64, 1.64, 1.65, 1.66, 1.7])
    assert result.sentence == "At least 1.5x as fast as shipped: 1.64x (1.6–1.7x, 8 blocks)."
    assert result.holds is True


def test_at_most_is_told_as_such():
    result = sampled(LATENCY, [4.0, 4.1, 4.2, 4.3, 4.3, 4.3, 4.3, 4.4])
    assert (
        result.sentence
        == "Median latency: 4.3 ms (4–4.4 ms, 8 blocks); the target is at most 5 ms."
    )
    assert result.holds is True


def test_undecided_is_told_as_such():
    result = sampled(SPEEDUP, [1.4, 1.6] * 4, exhausted=True)
    assert result.holds is None
    assert result.sentence == "At least 1.5x as fast as shipped: undecided, 1.4–1.6x (8 blocks)."


def test_too_few_samples_leave_no_figure():
    result = sampled(SPEEDUP, [1.6] * 3, exhausted=True)
    assert (result.holds, result.value, result.low, result.high) == (None, None, None, None)
    assert result.sentence == "At least 1.5x as fast as shipped: undecided, 0 blocks measured."


@given(st.lists(st.floats(0.01, 100), max_size=24), st.sampled_from([SPEEDUP, BUSY, LATENCY, WAIT]))
def test_a_result_survives_json_and_its_bounds_agree_with_holds(samples, spec):
    result = sampled(spec, samples)
    assert msgspec.json.decode(msgspec.json.encode(result), type=CriterionResult) == result
    if result.holds is not None:
        assert result.low <= result.value <= result.high
        better = (
            result.low >= spec.target
            if spec.direction == "at_least"
            else result.high <= spec.target
        )
        assert better is result.holds


def test_the_margin_is_part_of_the_test_and_of_the_sentence():
    spec = msgspec.structs.replace(SPEEDUP, text="Speed beside SDPA", target=1.0, margin=0.97)
    result = sampled(spec, [0.98] * 8)
    assert result.holds is True
    assert result.sentence.endswith("; the target is at least 1x, and counts as met from 0.97x.")


@pytest.mark.parametrize(
    ("value", "holds"), [(0.149, True), (0.15, True), (0.151, False), (math.inf, False)]
)
def test_an_exact_value_is_compared_as_it_is(value, holds):
    assert grade_value(WAIT, value).holds is holds


def test_a_value_that_is_no_number_decides_nothing():
    result = grade_value(WAIT, math.nan)
    assert (result.holds, result.value) == (None, None)


def test_a_target_that_the_author_forgot_is_the_authors_fault():
    with pytest.raises(LabError, match="no target"):
        grade_value(ANSWERS, 1.0)


@pytest.mark.parametrize(
    ("value", "unit", "against", "text"),
    [
        (0.7996, "share", 0.8, "79.96%"),
        (0.8, "share", 0.8, "80%"),
        (0.1001, "share", 0.104, "10%"),
        (0.1038, "share", 0.104, "10%"),
        (0.1042, "share", 0.104, "10.42%"),
        (0.1249, "share", 0.125, "12%"),
        (0.1251, "share", 0.125, "13%"),
        (0.412, "share", 0.8, "41%"),
        (0.0042, "share", None, "0.42%"),
        (1.4999, "x", 1.5, "1.4999x"),
        (1234.5, "ms", 5.0, "1,234 ms"),
        (0, "ms", 5.0, "0 ms"),
        (1, "ms", None, "1 ms"),
        (1, "times", None, "1 time"),
        (2, "launches", None, "2 launches"),
        (-0.5, "", None, "-0.5"),
        (math.inf, "x", None, "inf"),
    ],
)
def test_figures_read_differently_from_the_target_they_miss(value, unit, against, text):
    assert format_figure(value, unit, against) == text


@pytest.mark.parametrize("unit", ["share", "x", "ms"])
def test_no_figure_reads_like_a_limit_that_it_misses(unit):
    for limit in (0.07, 0.104, 0.125, 0.29, 0.8, 1.125, 12.34):
        for off in (1e-6, 1e-5, 1e-4, 0.003, 0.02):
            for value in (limit * (1 - off), limit * (1 + off)):
                text, bar = format_figure(value, unit, limit), format_limit(limit, unit)
                number, target = (float(re.sub("[^0-9.]", "", each)) for each in (text, bar))
                assert (number > target) == (value > limit), (text, bar)
                assert number != target, (text, bar)


def test_a_limit_is_not_rounded():
    assert format_limit(0.125, "share") == "12.5%"
    assert format_limit(0.07, "share") == "7%"
    assert format_limit(1234.5, "ms") == "1,234.5 ms"
    assert format_limit(1, "times") == "1 time"


def test_a_figure_just_beyond_its_limit_reads_differently():
    assert format_beside(0.0013, 0.001) == ("0.0013", "0.001")
    assert format_beside(0.001001, 0.001) == ("0.001001", "0.001")


def test_a_check_says_what_is_wrong_or_how_much_was_right():
    assert (
        grade_check(ANSWERS, None, 320).sentence
        == "The answers agree with the reference: yes (320 answers checked)."
    )
    wrong = grade_check(ANSWERS, "image 7 differs by 0.3", 7)
    text = "The answers agree with the reference"
    assert wrong.sentence == f"Not met: {text}. image 7 differs by 0.3."
    assert (wrong.holds, wrong.samples) == (False, 7)


@pytest.mark.parametrize(
    ("things", "one"), [("answers", "1 answer"), ("batches", "1 batch"), ("losses", "1 loss")]
)
def test_one_of_a_thing_is_singular(things, one):
    assert one in grade_check(ANSWERS, None, 1, things).sentence


def test_nothing_checked_is_never_right():
    assert grade_check(ANSWERS, None, 0).holds is None


def test_what_was_not_reached_says_why():
    result = not_measured(SPEEDUP, "the answers were wrong")
    assert (result.holds, result.target) == (None, 1.5)
    assert (
        result.sentence == "At least 1.5x as fast as shipped: not measured, the answers were wrong."
    )


def test_no_easy_case_carries_a_hard_one():
    good, bad = sampled(SPEEDUP, [3.0] * 8), sampled(SPEEDUP, [1.2] * 8)
    undecided = sampled(SPEEDUP, [1.4, 1.6] * 12)
    worst = worst_case({"short": good, "long": bad, "odd": undecided})
    assert (worst.holds, worst.value, worst.samples) == (False, 1.2, 8 + 8 + 24)
    assert worst.sentence.endswith("in the worst of 3 cases (long).")
    assert worst_case({"short": good, "odd": undecided}).holds is None
    assert worst_case({"short": good, "better": sampled(SPEEDUP, [4.0] * 8)}).value == 3.0
    assert worst_case({"short": good}) == good


@pytest.mark.parametrize(
    ("holds", "outcome", "reason"),
    [
        ((True, True, True, True), "PASS", None),
        ((False, False, False, False), "FAIL", "wrong output"),
        ((True, False, False, False), "FAIL", "correct but slow"),
        ((True, True, False, False), "FAIL", "the mechanism is still there"),
        ((True, True, True, False), "FAIL", "wrong diagnosis"),
        ((True, None, True, False), "FAIL", "wrong diagnosis"),
        ((False, None, None, None), "FAIL", "wrong output"),
        ((None, True, True, True), "INCONCLUSIVE", None),
        ((True, None, True, True), "INCONCLUSIVE", None),
        ((True, True, None, True), "INCONCLUSIVE", None),
    ],
)
def test_gravest_reason_first(holds, outcome, reason):
    conclusion = conclude(given_results(*holds), specs=SPECS)
    assert (conclusion.outcome, conclusion.reason) == (outcome, reason)
    assert (ADVICE["wrong diagnosis"][0] in conclusion.advice) == (holds[3] is False)


def test_nothing_needs_to_be_undone_where_the_shipped_code_was_wrong():
    wrong, slow = (given_results(*holds) for holds in ([False] + [True] * 3, [True, False] * 2))
    assert conclude(wrong, specs=SPECS, about="wrong output").advice == [WRONG_AS_SHIPPED]
    assert conclude(wrong, specs=SPECS).advice == ADVICE["wrong output"]
    for counted, advice in (
        ("47 of 48 (97.9%)", WRONG_AS_SHIPPED),
        ("1,046 of 1,048 (99.8%)", IN_COMMON),
    ):
        missed = [msgspec.structs.replace(wrong[0], counted=counted), *wrong[1:]]
        assert conclude(missed, specs=SPECS, about="wrong output").advice == [advice]
    assert conclude(slow, specs=SPECS, about="wrong output") == conclude(slow, specs=SPECS)


def test_pass_needs_every_criterion_and_fail_needs_one():
    for holds in itertools.product((True, False, None), repeat=4):
        expected = Outcome.INCONCLUSIVE if None in holds else Outcome.PASS
        if False in holds:
            expected = Outcome.FAIL
        assert conclude(given_results(*holds), specs=SPECS).outcome is expected, holds


def test_a_lab_about_its_mechanism_names_that_first():
    about = "the mechanism is still there"
    failed = conclude(given_results(True, False, False, True), specs=SPECS, about=about)
    assert (failed.reason, failed.summary) == (about, "data-wait is False.")
    passed = conclude(given_results(True, True, True, True), specs=SPECS, about=about)
    assert passed.summary == "All 4 criteria are met. data-wait is True."
    wrong = conclude(given_results(False, True, False, True), specs=SPECS, about=about)
    assert wrong.reason == "wrong output"


def test_a_pass_quotes_the_figure_that_the_lab_is_about():
    cost = msgspec.structs.replace(
        ANSWERS, id="cost", target=0.05, direction="at_most", unit="share"
    )
    specs = [ANSWERS, cost, SPEEDUP]
    results = [
        grade_check(ANSWERS, None, 9),
        grade_value(cost, 0.03),
        sampled(SPEEDUP, [1.7] * 8),
    ]
    quoted = conclude(results, specs=specs, about="wrong output").summary
    assert quoted.endswith(results[1].sentence)
    assert conclude(results, specs=specs).summary.endswith(results[2].sentence)


@pytest.mark.parametrize(
    ("about", "speed", "advice"),
    [
        (
            "correct but slow",
            True,
            "The target is met. Not there yet: data-wait. It need not be part of the cause that you"
            " named.",
        ),
        ("correct but slow", None, "Not there yet: data-wait."),
        ("the mechanism is still there", True, "Met: speedup. Not there yet: data-wait."),
        ("the mechanism is still there", False, "Not there yet: data-wait; also speedup."),
    ],
)
def test_a_target_is_met_only_where_it_is(about, speed, advice):
    conclusion = conclude(given_results(True, speed, False, True), specs=SPECS, about=about)
    assert conclusion.advice[0] == advice


def test_what_is_left_has_its_label_and_its_figure():
    peak = CriterionSpec(
        *("peak-mib", "mechanism", "At most {target} are allocated"),
        target=4.0,
        direction="at_most",
        unit="MiB",
        label="most memory allocated",
    )
    results = [sampled(SPEEDUP, [1.7] * 8), grade_value(peak, 6.95)]
    about = "the mechanism is still there"
    conclusion = conclude(results, specs=[SPEEDUP, peak], about=about)
    assert conclusion.summary == "At most 4 MiB are allocated: no, 6.95 MiB."
    assert conclusion.advice[0] == (
        "Met: speedup. Not there yet: most memory allocated, 6.95 MiB (wanted at most 4 MiB)."
    )


def test_results_in_another_order_conclude_the_same():
    for results in itertools.permutations(given_results(True, False, False, True)):
        conclusion = conclude(results, specs=SPECS)
        assert (conclusion.reason, conclusion.summary) == ("correct but slow", "speedup is False.")
        assert not any("data-wait" in advice for advice in conclusion.advice), (
            "each failure is said once, by its criterion"
        )


def test_a_busy_machine_is_inconclusive_in_one_sentence():
    fault = BusyMachineError("Other programs kept most cores busy.", "Close them.")
    conclusion = conclude([], specs=SPECS, machine=fault)
    assert (conclusion.outcome, conclusion.summary) == (Outcome.INCONCLUSIVE, fault.message)
    assert any("--when-quiet" in advice for advice in conclusion.advice)


def test_undecided_on_a_machine_that_is_in_doubt_says_by_how_much():
    results = given_results(True, None, True, True)
    conclusion = conclude(
        results, specs=SPECS, conditions=Conditions(other_cores=1.0, cores=2, doubt=0.31)
    )
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert "beaten by 31%" in conclusion.summary
    assert "Other programs kept 1.0 of 2 cores busy" in conclusion.summary


@pytest.mark.parametrize(
    "reason", ["crashed", "timed out", "tampered", "forbidden call", "does not compile"]
)
def test_code_that_stopped_fails_for_that_reason_even_when_it_was_fast(reason):
    stopped = Stopped(reason, "the worker ended with status 139")
    for results in (
        [],
        given_results(True, True, True, True),
        given_results(True, False, True, True),
    ):
        conclusion = conclude(results, specs=SPECS, stopped=stopped)
        assert (conclusion.outcome, conclusion.reason) == (Outcome.FAIL, reason)
        assert conclusion.summary == "the worker ended with status 139."
        assert conclusion.advice


def test_a_crash_names_the_line_to_mend_and_no_other_input_where_python_could_not_read_it():
    sentence = "starting up: train.py, line 40: loss.backward((\nSyntaxError: '(' was never closed"
    conclusion = conclude([], specs=SPECS, stopped=Stopped("crashed", sentence))
    assert conclusion.advice == ["Mend train.py, line 40; then check again."]
    sentence = "during a trial: gate.py: TypeError: it must return a list"
    assert conclude([], specs=SPECS, stopped=Stopped("crashed", sentence)).advice[0] == (
        "Mend gate.py; then check again."
    )
    sentence = "during a call: train.py, line 40, in train: x\nNameError: x"
    mend, other_inputs = conclude([], specs=SPECS, stopped=Stopped("crashed", sentence)).advice
    assert "train.py, line 40;" in mend
    assert "other inputs" in other_inputs


def test_wrong_output_beats_a_crash_and_tampering_beats_both():
    results = given_results(False, None, None, None)
    assert (
        conclude(results, specs=SPECS, stopped=Stopped("crashed", "It ended.")).reason
        == "wrong output"
    )
    assert (
        conclude(results, specs=SPECS, stopped=Stopped("tampered", "It traced us.")).reason
        == "tampered"
    )


@pytest.mark.parametrize("holds", [(True,) * 4, (False,) * 4])
def test_a_fault_of_the_machine_blames_the_machine(holds):
    fault = MachineError("This machine is too busy.", "Close what else is running.")
    conclusion = conclude(given_results(*holds), specs=SPECS, machine=fault)
    assert (conclusion.outcome, conclusion.reason) == (Outcome.ERROR, None)
    assert conclusion.summary == "Not your work's fault: this machine is too busy."
    assert conclusion.advice == ["Close what else is running."]


@pytest.mark.parametrize(
    "results",
    [
        [],
        given_results(True, True, True, True)[:3],
        [*given_results(True, True, True, True), given_results(True, True, True, True)[0]],
        [
            *given_results(True, True, True, True)[:3],
            CriterionResult("cause", "mechanism", True, "As another kind."),
        ],
        [
            *given_results(True, True, True, True),
            CriterionResult("made-up", "target", True, "Unasked."),
        ],
    ],
)
def test_a_checker_that_left_something_out_never_passes(results):
    assert conclude(results, specs=SPECS).outcome is Outcome.ERROR


def test_a_lab_without_criteria_never_passes():
    assert conclude([], specs=[]).outcome is Outcome.ERROR


def test_a_pass_leads_with_the_target():
    assert (
        conclude(given_results(*[True] * 4), specs=SPECS).summary
        == "All 4 criteria are met. speedup is True."
    )


@pytest.mark.parametrize(
    ("conditions", "cause"),
    [
        (
            Conditions(noise=0.3, other_cores=1.2, cores=2, waiting=0.4),
            "Other programs kept 1.2 of 2 cores busy",
        ),
        (
            Conditions(noise=0.3, other_cores=0.1, waiting=0.12),
            "Programs waited for a CPU 12% of the time",
        ),
        (
            Conditions(noise=0.18, other_cores=0.0),
            "differed by about 18%, though little else was running",
        ),
        (Conditions(noise=0.18), "differed by about 18%, for an unknown reason"),
        (Conditions(noise=0.01), "too close to the target"),
    ],
)
def test_inconclusive_names_the_surest_cause_and_what_to_do(conditions, cause):
    undecided = sampled(SPEEDUP, [1.4, 1.6] * 12)
    results = [
        *given_results(True, True, True, True)[::2],
        undecided,
        given_results(True, True, True, True)[3],
    ]
    conclusion = conclude(results, specs=SPECS, conditions=conditions)
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert cause in conclusion.summary
    assert conclusion.advice


def test_what_other_programs_left_open_says_so_once():
    missed = not_held_against(sampled(SPEEDUP, [1.0] * 12), 0.6)
    results = [*given_results(True, True, True, True)[::2], missed]
    results.append(given_results(True, True, True, True)[3])
    conclusion = conclude(results, specs=SPECS, conditions=Conditions(other_cores=0.6))
    assert conclusion.summary == missed.sentence
    assert conclusion.advice == [WHEN_QUIET]


def test_no_time_to_measure_is_not_called_close_to_the_target():
    assert "Time ran out" in explain_noise(Conditions(), near_target=False)[0]
    results = [*given_results(True, True, True, True)[::2], sampled(SPEEDUP, [], exhausted=True)]
    conclusion = conclude([*results, given_results(True, True, True, True)[3]], specs=SPECS)
    assert "Time ran out" in conclusion.summary


def test_the_plan_of_a_test_can_be_chosen():
    assert sequential_test(BUSY, Plan(looks=(20,))).plan.looks == (20,)


def test_a_miss_without_a_partner_is_not_held_against_anybody_while_others_use_the_machine():
    missed = sampled(SPEEDUP, [1.0] * 12)
    assert missed.holds is False
    assert not_held_against(missed, 0.6).holds is None
    why = ": undecided, because other programs kept 0.6 cores busy."
    assert not_held_against(missed, 0.6).sentence == f"{describe_criterion(SPEEDUP)}{why}"
    assert not_held_against(missed, 0.6, "it waited").sentence.endswith("because it waited.")
    assert not_held_against(missed, 0.1).holds is False
    assert not_held_against(sampled(SPEEDUP, [9.0] * 12), 0.6).holds is True


def test_a_rate_too_low_even_without_the_time_that_others_took_is_held_against():
    missed = sampled(SPEEDUP, [1.0] * 12)
    just_in_reach = 1 - 1.0 / SPEEDUP.target
    assert not_held_against(missed, just_in_reach - 0.01, rate=True) == missed
    for others in (just_in_reach + 0.01, 1.5):
        assert not_held_against(missed, others, rate=True).holds is None


def test_undecided_blocks_are_told_by_the_figure_over_all_of_them():
    decision = sequential_test(BUSY, BLOCKS).decide([0.19, 1.0] * 12, exhausted=True)
    result = grade_decision(BUSY, decision, "blocks", overall=0.62)
    assert result.holds is None
    assert result.value == 0.62
    assert (
        "undecided, 62% over all 24 blocks, whose median lies between 19% and 100%"
        in result.sentence
    )
    few = grade_decision(
        BUSY,
        sequential_test(BUSY, BLOCKS).decide([0.19, 1.0], exhausted=True),
        "blocks",
        overall=0.62,
    )
    assert "too few to give an interval" in few.sentence
    passed = sequential_test(BUSY, BLOCKS).decide([0.95] * 24, exhausted=True)
    assert grade_decision(BUSY, passed, "blocks", overall=0.3).value == 0.95, (
        "what is decided is the median's"
    )
