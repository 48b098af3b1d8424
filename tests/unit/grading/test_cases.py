"""Grading of cases, and what past answers show of a learner's habits."""

from __future__ import annotations

import msgspec
import pytest

from bottleneck_lab.grading.answers import describe_choices, parse_answers, question_about
from bottleneck_lab.grading.cases import (
    CAUSES,
    FIGURES,
    MEMORY_GROWTH,
    QUESTIONS,
    Case,
    PastCase,
    Switch,
    evidence_of,
    grade_case,
    habits,
    streak,
)
from bottleneck_lab.grading.figures import FIGURES as KNOWN_FIGURES

SWITCHES = [
    Switch("workers", "input-bound", "Load in workers.", 2.0, [30, 31]),
    Switch("item", "synchronisation-bound", "Do not read.", 1.2, [40]),
]
CASE = Case("a", "A", 1, "", "", "input-bound", 10.0, {}, SWITCHES)
HEALTHY = Case("b", "B", 1, "", "", "healthy", 10.0, {})
SHOWN = {"idle_input_share": 0.5, "idle_launch_share": 0.2, "busy_share": 0.3}


def graded(case: Case, **answers: object) -> dict[str, bool | None]:
    return {result.id: result.holds for result in grade_case(case, answers, SHOWN)}


def test_right_answers_all_hold():
    right = graded(CASE, cause="input-bound", evidence=0.52, line=33, gain=1.8)
    assert right == {"cause": True, "evidence": True, "line": True, "gain": True}


@pytest.mark.parametrize("line", [31, 32, 33])
def test_a_line_that_is_near_counts(line: int):
    answers = {"cause": "input-bound", "evidence": 0.5, "line": line, "gain": 2.0}
    grade = grade_case(CASE, answers, SHOWN)[2]
    assert grade.holds
    assert grade.sentence == f"You named line {line}; the cause is about lines 30 and 31."


def test_a_grade_tells_the_lines_that_the_fix_changes_from_the_others_that_count():
    edited = msgspec.structs.replace(SWITCHES[0], lines=[31, 68, 24], edits=[("    a = 1\n", "")])
    case = msgspec.structs.replace(CASE, switches=[edited])
    answers = {"cause": "input-bound", "evidence": 0.5, "line": 68, "gain": 2.0}
    grade = grade_case(case, answers, SHOWN)[2]
    assert grade.holds
    assert grade.sentence == (
        "You named line 68; the fix changes line 31, and the cause is about lines 24 and 68 as"
        " well."
    )


@pytest.mark.parametrize("line", [2, 3])
def test_a_line_near_none_is_wrong_where_no_line_has_to_change(line: int):
    answers = {"cause": "healthy", "evidence": 0.3, "line": line, "gain": 1}
    grade = grade_case(HEALTHY, answers, SHOWN)[2]
    assert not grade.holds
    assert grade.sentence == f"You named line {line}; no line of the program has to change."


def test_none_is_an_answer_where_no_line_has_to_change():
    texts = ["cause=healthy", "evidence=30%", "line=None", "gain=1"]
    answers, wrong = parse_answers(QUESTIONS, texts)
    assert not wrong
    grade = grade_case(HEALTHY, answers, SHOWN)[2]
    assert (grade.holds, grade.sentence) == (True, "No line of the program has to change.")
    grade = grade_case(CASE, answers, SHOWN)[2]
    assert grade.sentence == "You answered none; the cause is about lines 30 and 31."
    _, (zero, word) = parse_answers(QUESTIONS, ["line=0", "line=no"])
    assert zero == "line: Write a number above 0 or none, not 0."
    assert word == "line: Write a plain number or none, without quotes or units."


def test_a_word_in_place_of_a_number_is_no_numbered_choice():
    line = next(question for question in QUESTIONS if question.id == "line")
    assert describe_choices(line) == ["A number, or `none`."]


def test_questions_say_how_far_off_an_answer_may_be():
    measures = {question.id: question.measure for question in QUESTIONS}
    assert "Within 2 lines counts" in measures["line"]
    assert "Within a factor of 1.2" in measures["gain"]


def test_each_answer_is_graded_by_itself():
    wrong = graded(CASE, cause="input-bound", evidence=0.6, line=40, gain=3.0)
    assert wrong == {"cause": True, "evidence": False, "line": False, "gain": False}


@pytest.mark.parametrize(("gain", "holds"), [(1.9, True), (5.5, True), (3.3, False)])
def test_a_gain_counts_if_it_is_the_fixs_or_that_of_the_whole_cause(gain: float, holds: bool):
    case = msgspec.structs.replace(CASE, entire=5.6)
    answers = {"cause": "input-bound", "evidence": 0.5, "line": 30, "gain": gain}
    assert graded(case, **answers)["gain"] is holds
    assert case.gain_near(gain, SHOWN) == (2.0 if gain < 3.34 else 5.6)


LAUNCHES = Switch("steps", "launch-bound", "Launch less.", 31.0, [54])


@pytest.mark.parametrize(
    ("share", "gain", "holds"),
    [(0.88, 8.5, True), (0.91, 11.1, True), (0.91, 12.5, False), (0.7, 3.33, False)],
)
def test_what_the_questions_rule_gives_for_the_share_is_a_right_gain(share, gain, holds):
    """The capture's share, or one read so that it counts, in Amdahl's law."""
    case = Case("c", "C", 1, "", "", "launch-bound", 10.0, {}, [LAUNCHES], entire=6.3)
    answers = {"cause": "launch-bound", "evidence": share, "line": 54, "gain": gain}
    figures = {"idle_launch_share": 0.88, "largest_gain_ratio": 6.3}
    result = grade_case(case, answers, figures)[-1]
    assert result.holds is holds
    origin = f"Amdahl's law gives {1 / (1 - share):.2f}x for the share of {share:.1%}"
    assert (origin in result.sentence) is holds


@pytest.mark.parametrize(
    ("gain", "sentence"),
    [
        (30.0, "with the fix it ran 31.00x as fast."),
        (6.0, "with the cause gone altogether it ran 6.30x as fast."),
        (
            9.0,
            "Amdahl's law gives 8.33x for the share of 88.0%. The fix ran 31.00x as fast: it also"
            " saves other time.",
        ),
    ],
)
def test_a_grade_names_the_figure_that_it_goes_by(gain: float, sentence: str):
    case = Case("c", "C", 1, "", "", "launch-bound", 10.0, {}, [LAUNCHES], entire=6.3)
    answers = {"cause": "launch-bound", "evidence": 0.88, "line": 54, "gain": gain}
    figures = {"idle_launch_share": 0.88, "largest_gain_ratio": 6.1}
    result = grade_case(case, answers, figures)[-1]
    assert result.holds
    assert result.sentence == f"You predicted {gain:.2f}x; {sentence}"


def test_evidence_and_gain_rest_on_the_cause():
    for share in (0.2, 0.5):  # that of the cause named, and of the right one
        answers = {"cause": "launch-bound", "evidence": share, "line": 30, "gain": 2.0}
        results = {each.id: each for each in grade_case(CASE, answers, SHOWN)}
        for name in ("evidence", "gain"):
            assert results[name].holds is None
            assert results[name].sentence == "Not judged, because the cause is wrong."


def test_a_wrong_gain_comes_with_every_range_that_counts():
    fix = replaced(gain=15.09)
    case = Case("c", "C", 1, "", "", "launch-bound", 10.0, {}, [fix], entire=4.3)
    answers = {"cause": "launch-bound", "evidence": 0.81, "line": 54}
    figures = {"idle_launch_share": 0.8073}
    wrong, right = (grade_case(case, {**answers, "gain": each}, figures)[-1] for each in (3, 4))
    assert (wrong.holds, right.holds) == (False, True)
    assert wrong.sentence.endswith(". 3.58x to 6.23x and 12.58x to 18.11x count.")
    assert "counts" not in right.sentence


def test_a_wrong_cause_comes_with_what_speaks_against_it():
    answers = {"cause": "launch-bound", "evidence": 0.2, "line": 30, "gain": 2.0}
    assert grade_case(CASE, answers, SHOWN)[0].sentence == (
        "You named launch-bound; it is input-bound. Of the capture, 50.0% goes to that, and"
        " 20.0% to launch-bound."
    )
    figures = {"exposed_communication_share": 0.18}
    case = msgspec.structs.replace(CASE, cause="straggler")
    sentence = grade_case(case, {**answers, "cause": "communication-bound"}, figures)[0].sentence
    assert "The capture shows one rank whose own work takes longer" in sentence


def test_no_share_of_a_busy_device_is_what_a_fix_gains():
    case = Case("c", "C", 1, "", "", "compute-bound", 10.0, {}, [replaced(gain=1.4)])
    answers = {"cause": "compute-bound", "evidence": 0.99, "line": 54, "gain": 100}
    result = grade_case(case, answers, {"busy_share": 0.99})[-1]
    assert not result.holds
    assert "Amdahl" not in result.sentence


def test_the_evidence_of_a_busy_device_is_what_the_fix_saves():
    case = Case("c", "C", 1, "", "", "memory-bound", 10.0, {}, [replaced(gain=1.4)])
    answers = {"cause": "memory-bound", "line": 54, "gain": 1.4}
    right, wrong = (
        grade_case(case, {**answers, "evidence": share}, {"busy_share": 0.993})[1]
        for share in (0.29, 0.993)
    )
    assert (right.holds, wrong.holds) == (True, False)
    assert right.sentence == "You read 29.0%; the fix saves 28.6%."


@pytest.mark.parametrize("cause", CAUSES)
def test_who_has_named_a_cause_is_asked_for_its_own_evidence(cause: str):
    about = {each.id: question_about(each, {"cause": cause}).measure for each in QUESTIONS}
    assert about["evidence"].endswith("Within 4 points counts.")
    assert about["evidence"].count(".") == 2, "one sentence"
    assert about["line"] == next(each.measure for each in QUESTIONS if each.id == "line")


def replaced(**fields: float) -> Switch:
    return msgspec.structs.replace(LAUNCHES, **fields)


def test_a_healthy_program_has_no_line_and_no_gain():
    right = graded(HEALTHY, cause="healthy", evidence=0.3, line=1, gain=1)
    assert all(right.values())


def test_the_average_wait_of_all_ranks_is_not_what_a_stragglers_fix_gains():
    """Of two ranks one waits for 36%: what it waits for may go (1.56x), or be spread (1.22x)."""
    preview = Switch("preview", "straggler", "Compute it seldom.", 1.56, [50])
    case = Case("c", "C", 3, "", "", "straggler", 10.0, {}, [preview])
    answers = {"cause": "straggler", "evidence": 0.18, "line": 50, "gain": 1.22}
    result = grade_case(case, answers, {"exposed_communication_share": 0.18})[-1]
    assert not result.holds
    assert result.sentence.endswith("with the fix it ran 1.56x as fast. 1.30x to 1.87x counts.")


def test_memory_that_grows_is_graded_by_shares_and_ratios_of_the_peak():
    watch = Switch("watch", MEMORY_GROWTH, "Detach it.", 2.0, [54])
    case = Case("c", "C", 2, "", "", MEMORY_GROWTH, 10.0, {}, [watch])
    answers = {"cause": MEMORY_GROWTH, "evidence": 0.47, "line": 53, "gain": 3.0}
    results = {each.id: each for each in grade_case(case, answers, {"memory_growth_share": 0.45})}
    assert [id_ for id_, each in results.items() if not each.holds] == ["gain"]
    assert "its peak of memory was 2.00x as high as without it" in results["gain"].sentence


@pytest.mark.parametrize("cause", ["input-bound", "launch-bound"])
@pytest.mark.parametrize("shown", [0.2, 0.9])
def test_evidence_counts_within_four_points(cause, shown):
    figures = {FIGURES[cause][0]: shown}
    for share, holds in ((shown + 0.04, True), (shown - 0.04, True), (shown + 0.041, False)):
        answers = {"cause": cause, "evidence": share, "line": 1, "gain": 1}
        case = msgspec.structs.replace(CASE, cause=cause)
        results = {each.id: each.holds for each in grade_case(case, answers, figures)}
        assert results["evidence"] is holds, share


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_figures_that_captures_show(cause: str):
    assert set(FIGURES.get(cause, ("busy_share",))) <= set(KNOWN_FIGURES)
    assert 0 <= evidence_of(cause, SHOWN) <= 1


def past(called: str, cause: str, factor: float = 1.0) -> PastCase:
    return PastCase(called, cause, 2.0 * factor, 2.0)


def test_a_streak_ends_with_a_wrong_answer():
    right = past("input-bound", "input-bound")
    assert streak([past("healthy", "input-bound"), right, right]) == 2


def test_a_cause_named_too_often_is_a_habit():
    wrong = past("input-bound", "host-bound")
    assert habits([wrong, wrong]) == []
    sentences = habits([wrong, wrong, wrong])
    assert sentences == [
        "You call cases input-bound too often: 3 of 3 were something else.",
        "You overlook host-bound: 3 of 3 were missed.",
    ]


def test_gains_predicted_too_high_are_a_habit():
    assert habits([past("healthy", "healthy", 1.5)] * 3) == [
        "Where you name the cause, you predict gains too high by a factor of 1.50."
    ]


def test_a_grade_says_how_its_figure_is_made_up_and_what_would_have_counted():
    """The share of one cause may be two of the report's parts, and less than all idle time."""
    figures = {"idle_python_share": 0.4, "idle_files_share": 0.132, "idle_launch_share": 0.011}
    answers = {"cause": "host-bound", "evidence": 0.483, "line": 30, "gain": 3}
    case = msgspec.structs.replace(CASE, cause="host-bound")
    sentences = {each.id: each.sentence for each in grade_case(case, answers, figures)}
    assert "shows 53.2% (idle: Python 40.0% + idle: files 13.2%)" in sentences["evidence"]
    assert sentences["evidence"].endswith(" Within 4 points counts.")
    assert sentences["gain"].endswith("1.67x to 2.56x counts.")
    case = msgspec.structs.replace(CASE, cause="launch-bound")
    alone = grade_case(case, {**answers, "cause": "launch-bound"}, figures)[1].sentence
    assert "the capture shows 1.1%." in alone


def test_a_question_about_memory_names_the_cause_that_it_is_for():
    """The choices have two causes of memory: one of traffic, one of size."""
    for question in QUESTIONS:
        if "peak" in question.ask and question.type == "ratio":
            assert f"If the cause is {MEMORY_GROWTH}:" in question.ask
