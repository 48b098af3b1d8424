"""Numbers, times and intervals as they are written everywhere."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.structs import replace

from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.steps.sides import Sides
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import CriterionSpec, find_lab
from bottleneck_lab.grading.criteria import grade_check, not_measured
from bottleneck_lab.grading.verdict import CriterionResult, Prediction, Standing
from bottleneck_lab.report import capture_words, verdict_words, words
from bottleneck_lab.report.breakdown import Part
from bottleneck_lab.report.console.verdict import render_verdict as print_verdict
from bottleneck_lab.report.markdown import render_verdict
from bottleneck_lab.report.page import charts, steps_chart
from bottleneck_lab.report.page.attempts_chart import attempts_chart
from bottleneck_lab.report.page.verdict import verdict_section

from . import made_up, made_up_capture


def test_a_value_reads_differently_from_the_target_that_it_misses():
    """The figures of all renderings come from the function that writes a verdict's sentences."""
    near = msgspec.structs.replace(
        made_up.utilisation(0.7996, 0.79, 0.81, holds=False), value=0.7996
    )
    assert verdict_words.format_measured(near) == "79.96%"
    assert verdict_words.format_measured(msgspec.structs.replace(near, value=None)) == ""


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_500, "1.50 µs"), (68_694_000, "68.7 ms"), (3.29e9, "3.29 s")],
)
def test_durations(ns, text):
    assert words.format_duration(ns) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.4, 0.5, "between 40% and 50%, 12 samples"),
        (0.4, math.inf, "at least 40%, 12 samples"),
        (-math.inf, 0.5, "at most 50%, 12 samples"),
        (-math.inf, math.inf, "12 samples"),
        (None, None, "12 samples"),
    ],
)
def test_intervals_may_be_open(low, high, text):
    assert verdict_words.format_interval(made_up.utilisation(0.45, low, high, holds=False)) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_no_number_has_no_bar(value):
    criterion = msgspec.structs.replace(made_up.utilisation(0.4, 0.4, 0.4, holds=None), value=value)
    assert verdict_words.gauge(criterion) is None
    assert charts.criterion_bar(criterion) is None


def test_a_bar_shows_the_target_wherever_the_value_is():
    far = msgspec.structs.replace(
        made_up.utilisation(40.0, 39.0, 41.0, holds=True), unit="x", target=2.0
    )
    assert verdict_words.gauge(far).end == pytest.approx(41 * 1.2)
    assert (
        verdict_words.gauge(
            msgspec.structs.replace(far, value=0.0, low=None, high=None, target=0.0)
        ).end
        == 1.0
    )


@pytest.mark.parametrize(
    ("predicted", "measured", "end"),
    [
        (2.0, 2.01, "right on the mark."),
        (1.8, 1.65, "close, too high by a factor of 1.09."),
        (3.0, 1.5, f"too high by a factor of 2.00. {verdict_words.GO_ON}"),
        (1.0, 2.0, "too low by a factor of 2.00."),
        (2.0, None, "You predicted 2.00x."),
    ],
)
def test_predictions(predicted, measured, end):
    verdict = msgspec.structs.replace(
        made_up.passed(), lab="roofline", prediction=Prediction(predicted, measured)
    )
    assert verdict_words.describe_prediction(verdict).endswith(end)


@pytest.mark.parametrize(
    ("outcome", "prediction", "sentence"),
    [
        ("slow", Prediction(2.0, None), "You predicted 2.00x; the gain was not measured."),
        (
            "slow",
            Prediction(2.0, None, corrected=2.5),
            "You predicted 2.00x first (corrected: 2.50x); the gain was not measured.",
        ),
        (
            "passed",
            Prediction(1.5, 2.4, corrected=2.0),
            "You predicted 1.50x first (corrected: 2.00x) and measured 2.40x: too low by a factor"
            " of 1.60; the corrected one is too low by a factor of 1.20.",
        ),
        (
            "slow",
            Prediction(20.0, 10.34, "memory"),
            "You predicted that the peak of memory falls by a factor of 20.00; this attempt lowers"
            " it by a factor of 10.34 so far.",
        ),
        (
            "passed",
            Prediction(20.0, 20.0, "memory"),
            "You predicted that the peak of memory falls by a factor of 20.00; this attempt lowers"
            " it by a factor of 20.00: right on the mark.",
        ),
        (
            "passed",
            Prediction(20.0, 25.0, "memory"),
            "You predicted that the peak of memory falls by a factor of 20.00; this attempt lowers"
            " it by a factor of 25.00: too low by a factor of 1.25. Your peak is lower than what"
            " you worked out from a report: a step of your fix makes less, or less is kept when"
            " memory is highest.",
        ),
        (
            "slow",
            Prediction(2.0, 3.2, "reference"),
            "You predicted that the shipped code must become 2.00x as fast; a check of it measured"
            " 3.20x: too low by a factor of 1.60.",
        ),
        (
            "passed",
            Prediction(2.0, None, "reference"),
            "You predicted that the shipped code must become 2.00x as fast.",
        ),
    ],
)
def test_a_prediction_is_worded_as_what_it_is_about(outcome, prediction, sentence):
    verdict = msgspec.structs.replace(getattr(made_up, outcome)(), prediction=prediction)
    assert verdict_words.describe_prediction(verdict) == sentence


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("slow", "a factor of 1.00 so far."),
        ("undecided", "a factor of 1.00."),
        (
            "passed",
            "a factor of 1.00: too high by a factor of 1.96. The peak that a report promises is"
            " that of steps which leave nothing behind: what your fix still keeps until the next"
            " report, such as losses, comes on top.",
        ),
    ],
)
def test_a_gain_in_memory_names_both_peaks(outcome, end):
    verdict = msgspec.structs.replace(
        getattr(made_up, outcome)(),
        prediction=Prediction(1.96, 43.49 / 43.41, "memory"),
        measurement={"shipped": {"peak_mib": 43.49}, "figures": {"peak-mib": 43.41}},
    )
    sentence = verdict_words.describe_prediction(verdict)
    assert "; it went from 43.5 MiB to 43.4 MiB, " in sentence
    assert sentence.endswith(end)


def test_the_speed_of_a_step_has_the_times_that_it_is_the_ratio_of():
    speed = CriterionResult("step-speedup", "target", True, "", 2.58, target=1.4, unit="x")
    times = {"step_us": 4704.9, "shipped": {"step_us": 12151.0}}
    verdict = msgspec.structs.replace(made_up.passed(), measurement=times)
    expected = "12.2 ms → 4.70 ms a step, on the check's own data"
    assert verdict_words.describe_step_times(verdict, speed) == expected
    assert not verdict_words.describe_step_times(verdict, made_up.DATA_WAIT)
    assert not verdict_words.describe_step_times(made_up.passed(), speed), "not measured"


def test_a_fault_has_the_target_that_it_misses():
    spec = find_lab("timing-pitfalls").spec.devices["virtual"].criteria[0]
    verdict = msgspec.structs.replace(made_up.slow(), lab="timing-pitfalls", device="virtual")
    missed = grade_check(spec, "49 of 50 are further off", 50)
    assert verdict_words.describe_miss(verdict, missed) == (
        "worst error of an estimate: wanted at most 5%; 49 of 50 are further off."
    )


def test_a_fault_stands_behind_the_label_of_its_criterion():
    (spec,) = [
        each
        for each in find_lab("resnet-top-ops").spec.devices["cpu"].criteria
        if each.id == "share"
    ]
    verdict = msgspec.structs.replace(made_up.slow(), lab="resnet-top-ops", device="cpu")
    missed = grade_check(spec, "That is its total time", 4)
    assert (
        verdict_words.describe_miss(verdict, missed)
        == "share of the first: That is its total time."
    )
    page = verdict_section(replace(verdict, criteria=[missed]))
    assert "share of the first: That is its total time." in page
    assert str(page).count("share of the first") == 1, "its label stands once"
    right = grade_check(spec, None, 4)
    assert verdict_words.describe_miss(verdict, right) == right.sentence


def test_a_gain_that_no_check_can_measure_is_explained_beside_the_measured_one():
    verdict = msgspec.structs.replace(
        made_up.passed(), lab="idle-gpu", device="virtual", prediction=Prediction(4.7, 2.39)
    )
    sentence = verdict_words.describe_prediction(verdict)
    assert "too high by a factor of 1.97. A check measures 2.50x at most: " in sentence
    right = msgspec.structs.replace(verdict, prediction=Prediction(2.5, 2.49))
    assert verdict_words.describe_prediction(right) == (
        "You predicted 2.50x and measured 2.49x: right on the mark."
    )


def test_a_verdict_signed_before_predictions_named_their_quantity_still_has_the_same_bytes():
    assert msgspec.json.encode(Prediction(2.0, 1.5)) == b'{"predicted":2.0,"measured":1.5}'


BUSY = "Other programs kept 1.3 of 2 cores busy meanwhile."


def test_a_gain_without_a_figure_says_why():
    verdict = msgspec.structs.replace(
        made_up.undecided(), prediction=Prediction(1.9, None), summary=f"Too noisy. {BUSY}"
    )
    assert verdict_words.describe_prediction(verdict) == (
        "You predicted 1.90x; the gain was not measured, because other programs kept 1.3 of 2"
        " cores busy meanwhile."
    )


def test_a_gain_that_stayed_open_stands_with_its_bounds():
    step = CriterionResult(
        "step-speedup", "target", None, "A step: undecided.", 2.3, 1.6, 3.18, 3.0, unit="x"
    )
    verdict = msgspec.structs.replace(
        made_up.undecided(),
        lab="stuttering-tagger",
        device="virtual",
        summary=f"{step.sentence} {BUSY}",
        criteria=[step],
        prediction=Prediction(1.9, None),
    )
    assert verdict_words.describe_prediction(verdict) == (
        "You predicted 1.90x; the gain was between 1.60x and 3.18x, undecided because other"
        " programs kept 1.3 of 2 cores busy meanwhile."
    )
    assert verdict_words.describe_doubt(step) == "The target lies in that range."
    sided = msgspec.structs.replace(step, low=3.1)
    assert not verdict_words.describe_doubt(sided), "its own sentence says why"
    of_another = msgspec.structs.replace(verdict, lab="ddp-scaling")
    assert verdict_words.describe_open_gain(of_another) == "not measured", (
        "no ratio to the shipped code"
    )


@pytest.mark.parametrize(
    "reason", ["not measured, because the check ended", "not checked, because nothing was there"]
)
def test_what_was_not_reached_is_no_doubt(reason):
    each = CriterionResult("a", "target", None, f"A step is fast: {reason}.")
    assert reason.endswith(verdict_words.unmeasured_because(each))
    verdict = msgspec.structs.replace(made_up.slow(), criteria=[each])
    assert "| – | A step" in render_verdict(verdict)
    assert 'aria-label="not judged"' in verdict_section(verdict)


ANSWER_UNJUDGED = "evidence: not judged, because your `cause` is wrong."
SHARE_UNJUDGED = "Not met: A share is right. It rests on `first`: correct that first."


@pytest.mark.parametrize(
    ("mark", "result"),
    [
        ("right", CriterionResult("a", "target", True, "A step is fast: 2x.")),
        ("wrong", CriterionResult("a", "target", False, "A step is fast: no, 1x.")),
        ("undecided", CriterionResult("a", "target", None, "A step is fast: undecided, 1–3x.")),
        ("not judged", CriterionResult("a", "target", None, "A step: not measured, since B.")),
        ("not judged", CriterionResult("evidence", "diagnosis", False, ANSWER_UNJUDGED)),
        ("not judged", CriterionResult("share", "diagnosis", False, SHARE_UNJUDGED)),
        (
            "not judged",
            CriterionResult("gain", "diagnosis", None, "Not judged, because the cause is wrong."),
        ),
    ],
)
def test_a_result_has_the_same_sign_wherever_it_is_shown(mark, result, draw):
    assert verdict_words.mark_of(result) == mark
    verdict = msgspec.structs.replace(made_up.slow(), criteria=[result])
    sign = verdict_words.SIGNS[mark]
    assert any(
        line.startswith(f" {sign} ") for line in draw(print_verdict, verdict).splitlines()[4:]
    )
    assert f'aria-label="{mark}">{sign}<' in verdict_section(verdict)
    emoji = {"right": "✅", "wrong": "❌", "undecided": "❔"}
    assert f"| {emoji.get(mark, sign)} | " in render_verdict(verdict)


def test_an_answer_that_was_not_judged_is_no_wrong_one():
    wrong = CriterionResult("cause", "diagnosis", False, "cause: 'x' does not fit.")
    unjudged = CriterionResult("evidence", "diagnosis", False, ANSWER_UNJUDGED)
    verdict = msgspec.structs.replace(made_up.slow(), criteria=[wrong, unjudged])
    assert verdict_words.wrong_answers(verdict) == 1


def test_an_attempt_that_falls_short_is_no_wrong_prediction():
    sentence = verdict_words.describe_prediction(made_up.slow())
    assert sentence.startswith("You predicted 3.00x; this attempt ran 1.03x as fast. A check ")


def test_more_steps_than_columns_keep_the_slow_one():
    from bottleneck_lab.analysis.steps.window import Step

    times = [99 if n == 777 else 10 for n in range(1000)]
    steps = [
        Step(name=f"step {n}", rank=0, start_ns=n, duration_ns=ns, cost_ns=ns)
        for n, ns in enumerate(times)
    ]
    drawn = steps_chart.steps_chart(steps)
    assert drawn.count("<rect") == steps_chart.MAX_COLUMNS
    assert "step 777" in drawn


def test_the_chart_of_steps_has_an_axis_numbers_and_causes():
    from bottleneck_lab.analysis.steps.window import Step

    costs = [8_310_000, 8_360_000, 8_960_000]
    steps = [
        Step(name=f"ProfilerStep#{n}", rank=0, start_ns=n, duration_ns=ns, cost_ns=ns)
        for n, ns in enumerate(costs)
    ]
    parts = [
        [
            Part("idle-launch", "idle: launch", "gap-launch", "", ns - 1_000_000, 0.9),
            Part("compute", "computing", "cat-kernel", "", 1_000_000, 0.1),
        ]
        for ns in costs
    ]
    drawn = steps_chart.steps_chart(steps, parts)
    for text in ("0", "2.00 ms", "8.00 ms", "8.31 ms", "8.36 ms", "8.96 ms", "1", "2", "3"):
        assert f">{text}</text>" in drawn
    assert drawn.count('class="gap-launch"') == drawn.count('class="cat-kernel"') == 3
    assert "ProfilerStep#2: 8.96 ms\nidle: launch: 7.96 ms\ncomputing: 1.00 ms" in drawn


@pytest.mark.parametrize("top", [1, 9, 10, 99, 1234, 8.5e6, 1e9, 9.99e9])
def test_an_axis_has_two_to_six_round_marks(top):
    marks = list(steps_chart._ticks(top))
    assert marks[0] == 0
    assert 2 <= len(marks) <= 6
    assert marks[-1] <= top < marks[-1] + 2 * (marks[1] - marks[0])


def test_what_recording_cost_is_told_by_setting():
    timeline = made_up_capture.capture()
    count, whole = len(timeline.operators), timeline.extent[1] - timeline.extent[0]
    costs = {"operators": whole / count / 50, "shapes": whole / count / 100}
    sentence = capture_words.describe_costs(timeline, costs)
    assert sentence.startswith("Recording took at least ")
    assert ", 3%: operators " in sentence
    assert ", shapes " in sentence
    assert capture_words.describe_costs(timeline, {}) == ""


def test_a_lab_that_asks_for_no_cause_gets_no_praise_for_one():
    misread = replace(made_up.slow(), diagnosis=Standing(True, measured=False))
    shown = verdict_words.describe_standing(replace(misread, lab="resnet-top-ops"))
    assert shown == "not all answers right on the first try"
    assert "cause named" in verdict_words.describe_standing(misread)


def test_an_answer_that_a_check_found_wrong_is_judged():
    first = replace(made_up.slow(), criteria=[], diagnosis=Standing(None, corrections=1))
    assert verdict_words.describe_standing(first) == "diagnosis not judged yet"
    missed = CriterionResult("evidence", "diagnosis", False, "evidence: no.")
    judged = replace(first, criteria=[missed])
    assert verdict_words.describe_standing(judged) == "1 answer wrong"


def test_work_that_ran_out_of_time_before_it_was_judged_is_not_called_correct():
    late = CriterionResult("budget", "target", False, "It took too long.")
    caught = not_measured(CriterionSpec("caught", "correctness", "It is right"), "it ended")
    slow = replace(made_up.slow(), criteria=[late])
    assert verdict_words.headline(slow) == "correct but slow"
    assert verdict_words.headline(replace(slow, criteria=[late, caught])) == "too slow to be judged"


def test_where_results_are_what_a_lab_is_about_the_heading_names_the_first_that_is_missed():
    width, share = (CriterionResult(id_, "correctness", False, "") for id_ in ("width", "coverage"))
    cost = CriterionResult("cost", "correctness", True, "")
    wrong = replace(made_up.slow(), reason="wrong output", lab="timing-pitfalls", device="virtual")
    assert verdict_words.headline(replace(wrong, criteria=[cost, width])) == (
        "missed: width over an honest interval's"
    )
    assert verdict_words.headline(replace(wrong, criteria=[cost, width, share])).endswith(
        " and 1 more"
    )
    answer = CriterionResult("nightly", "diagnosis", False, "nightly: wrong.")
    headline = verdict_words.headline(replace(wrong, criteria=[width, answer]))
    assert headline.endswith("; 1 answer wrong"), "there is more to mend than the code"
    assert verdict_words.headline(replace(wrong, lab="stuttering-tagger", criteria=[width])) == (
        "wrong output"
    )


def test_the_answers_that_were_wrong_are_named():
    misread = Standing(True, measured=False, missed=["evidence", "where"])
    verdict = replace(made_up.slow(), criteria=[], diagnosis=misread)
    assert verdict_words.describe_standing(verdict) == (
        "cause named on the first try, evidence and where wrong"
    )
    corrected = replace(verdict, diagnosis=replace(misread, corrections=2))
    assert verdict_words.describe_standing(corrected) == (
        "cause named on the first try, evidence and where wrong at first"
    )


def test_an_answer_that_was_not_judged_is_not_named_as_wrong():
    rested = Standing(False, measured=False, missed=["evidence", "where"], corrections=1)
    verdict = replace(made_up.slow(), lab="stuttering-tagger", criteria=[], diagnosis=rested)
    assert verdict_words.describe_standing(verdict) == "cause not named on the first try"


@pytest.mark.parametrize(
    ("standing", "holds", "ending"),
    [
        (Standing(False, corrections=1), True, "first try, corrected since"),
        (Standing(False, corrections=2), False, "first try, 1 answer wrong now"),
        (Standing(True, measured=True, corrections=2), False, "first try, 1 answer wrong now"),
        (Standing(True, measured=True, corrections=1), True, "first try"),
        (Standing(False), True, "cause not named on the first try"),
    ],
)
def test_a_standing_says_how_corrected_answers_are_now(standing, holds, ending):
    answer = CriterionResult("cause", "diagnosis", holds, "cause: …")
    verdict = replace(made_up.slow(), criteria=[answer], diagnosis=standing)
    assert verdict_words.describe_standing(verdict).endswith(ending)


def test_a_lab_is_about_what_its_shipped_code_fails_and_learners_miss():
    figures = [
        CriterionResult("caught", "correctness", True, "", value=1.0, target=1.0),
        CriterionResult("false-alarms", "correctness", False, "", value=0.8),
        CriterionResult("budget", "target", True, "", value=500.0, target=900.0),
    ]
    gate = msgspec.structs.replace(made_up.slow(), lab="perf-gate", criteria=figures)
    assert verdict_words.main_criterion([gate]) == "false-alarms"
    assert verdict_words.main_criterion([]) is None
    assert "false alarms over 2 attempts" in str(attempts_chart([gate, gate]))
    assert verdict_words.main_criteria([gate]) == ["caught", "false-alarms"]


def test_a_missed_limit_is_named_in_place_of_a_cause_that_may_be_gone():
    verdict = msgspec.structs.replace(
        made_up.slow(),
        reason="the mechanism is still there",
        lab="stuttering-tagger",
        criteria=[msgspec.structs.replace(made_up.DATA_WAIT, id="waits-per-interval")],
    )
    assert verdict_words.headline(verdict) == "a limit is missed: waits between two reports"
    assert (
        verdict_words.headline(msgspec.structs.replace(verdict, reason="timed out", criteria=[]))
        == "timed out"
    )


def test_an_unreliable_capture_is_not_said_to_lack_bottlenecks():
    summary = replace(summarise(made_up_capture.capture()), findings=[], withheld=[])
    for reliable, begins in ((True, "Nothing stands out"), (False, "No finding is listed")):
        judged = replace(summary, quality=replace(summary.quality, reliable=reliable))
        assert capture_words.describe_no_findings(judged).startswith(begins)
    assert "`--ask budget`" in capture_words.describe_no_findings(summary)
    slower = replace(summary, sides=Sides(5.5e6, 4.83e6))
    assert "its slower side, the host: 5.50 ms." in capture_words.describe_no_findings(slower)
    for lacks in (replace(summary, steps=[]), replace(summary, cpu_only=True)):
        assert "--ask" not in capture_words.describe_no_findings(lacks)


@pytest.mark.parametrize(
    ("host_ns", "launches", "said"),
    [(5.5e6, 117.0, True), (5.5e6, 40.0, False), (4.5e6, 117.0, False), (5.5e6, 0.0, False)],
)
def test_a_line_with_many_launches_is_named_where_the_host_is_slower(host_ns, launches, said):
    sides = Sides(host_ns, 4.83e6, 221.0, "code/train.py(35): train" if launches else "", launches)
    text = capture_words.describe_slower_side(sides)
    assert text.startswith("Without waits a step takes as long as its slower side, the ")
    assert text.endswith(" Most launches: train.py(35), 117 of 221 a step.") == said


def test_sizes_that_add_up_have_one_unit():
    assert words.format_sum(732 << 10, 352 << 10) == ["1,084.0 KiB", "732.0 KiB", "352.0 KiB"]
    assert words.format_sum(40 << 10, 3 << 20) == ["3,112.0 KiB", "40.0 KiB", "3,072.0 KiB"]
    assert words.format_sum(512, 1024) == ["1,536 B", "512 B", "1,024 B"]
    assert words.format_sum(1049000, 1049000)[0] == "2.0 MiB"
    assert words.format_sum(3 << 30, 40 << 10) == ["3,072.0 MiB", "3,072.0 MiB", "0.0 MiB"]


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ((272 << 20, 136 << 20), ("272.0 MiB", "136.0 MiB", "2.00x")),
        ((47702 << 10, 1604 << 10), ("46.6 MiB", "1.57 MiB", "29.7x")),
        ((9052 << 10, 1642 << 10), ("8.840 MiB", "1.604 MiB", "5.51x")),
        ((47702 << 10, 47706 << 10), ("46.6 MiB", "46.6 MiB", "1.00x")),
        ((3 << 20, 512), ("3.00 MiB", "512 B", "6144.0x")),
    ],
)
def test_sizes_before_and_after_have_the_digits_of_their_ratio(sizes, shown):
    assert words.format_change(*sizes) == shown


def test_idle_time_of_a_charge_is_said_to_shrink_where_it_is_listed():
    price = "fixed charge of a step (modelled)"
    assert capture_words.describe_fixed_prices([price]) == (
        "The fixed charge is a step's Python besides its operators: every step has it."
    )
    both = capture_words.describe_fixed_prices([price, "idle: fixed charges"])
    assert "The device idles through them only while it has nothing queued: fewer" in both
    assert capture_words.describe_fixed_prices(["data"]) == ""


def test_both_words_for_gains_are_explained_where_both_stand():
    def finding(ratio, *, at_most):
        return Finding("x", "X", "", "input-bound", "", 0.1, ratio, at_most)

    about, most = finding(3.25, at_most=False), finding(1.12, at_most=True)
    assert (
        capture_words.describe_bounds([about, about]) == capture_words.describe_bounds([most]) == ""
    )
    assert capture_words.describe_bounds([most, finding(0.0, at_most=False)]) == "", (
        "no gain is stated"
    )
    assert "'At most' is a ceiling" in capture_words.describe_bounds([about, most])
