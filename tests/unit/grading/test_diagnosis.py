"""What a learner says is graded against the solution and against the learner's own capture."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs

from bottleneck_lab.analysis.device.gaps import GapCause
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.catalog import QuestionSpec, find_lab, load_labs
from bottleneck_lab.commands.diagnose import EXAMPLE
from bottleneck_lab.grading.answers import form_problem
from bottleneck_lab.grading.diagnosis import (
    RESTED_ON_WRONG_CAUSE,
    beyond_ceiling,
    describe_reading,
    grade_diagnosis,
    misplaced_stretch,
    stretch_rule,
)
from bottleneck_lab.grading.figures import CaptureFigures, figures_of
from bottleneck_lab.grading.verdict import Prediction

CAUSE = QuestionSpec("cause", "choice", "What is it?", choices=["input", "launch"])
WAIT = QuestionSpec(
    "wait", "share", "What share is waiting?", from_capture="data_wait_share", tolerance=0.1
)
CEILING = QuestionSpec(
    "ceiling", "ratio", "How much at most?", from_capture="amdahl", tolerance=0.1
)
GAIN = QuestionSpec("gain", "ratio", "What will it bring?", predicts_gain=True)
WORDS = QuestionSpec("words", "text", "Why?")
WHERE = QuestionSpec(
    "where", "interval", "Where?", shows="idle_share", least=0.8, measure="Mark a gap."
)
WORKED = QuestionSpec(
    "worked", "share", "How much?", by_solution=True, tolerance=0.01, measure="Count the pairs."
)
COUNTED = QuestionSpec(
    "counted", "number", "How many?", by_solution=True, tolerance=0.1, measure="Count both."
)
LATE = QuestionSpec(
    "late", "share", "How long?", from_capture="idle_launch_share", measure="Subtract the rest."
)
FIGURES = {
    "data_wait_share": 0.6,
    "amdahl": 2.5,
    "busy_share": 0.4,
    "idle_launch_share": 0.5,
    "idle_share": 0.54,
    "idle_line_share": 0.33,
}


def seen(figures=FIGURES):
    """A capture of 1 ms that is idle in its second half, in gaps of up to 0.3 ms."""
    if figures is None:
        return None
    return CaptureFigures(
        figures,
        1_000_000,
        lambda stretch: {"idle_share": max(0, stretch.end - 500_000) / stretch.length},
        longest_gap_ns=300_000,
    )


def test_the_tool_says_from_what_share_on_a_stretch_counts():
    reading = describe_reading(WHERE, {"where": "0.3-0.8 ms"}, seen())
    assert reading.endswith("of that stretch is what the question asks for; 80% would do.")


def grade(question, answer, figures=FIGURES, solution=None):
    answers = {} if answer is None else {question.id: answer}
    results, _ = grade_diagnosis(
        [question],
        answers,
        solution or {"cause": "input", "worked": 0.505, "counted": 341.3},
        seen(figures),
    )
    return results[0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (CAUSE, "input"),
        (WAIT, 0.6),
        (WAIT, 0.66),
        (WAIT, 0.54),
        (LATE, 0.46),
        (CEILING, 2.75),
        (CEILING, 2.25),
        (WORDS, "because"),
        (WHERE, "0.6-0.9 ms"),
        (WHERE, "600 - 900us"),
        (WORKED, 0.505),
        (COUNTED, 341.3),
        (COUNTED, 310),
        (COUNTED, 375),
    ],
)
def test_a_right_answer_holds(question, answer):
    result = grade(question, answer)
    assert result.holds
    assert result.kind == "diagnosis"


@pytest.mark.parametrize(("cause", "says"), [("input", "loading's row"), ("other", "General.")])
def test_a_wrong_figure_is_explained_by_the_rule_for_its_own_cause(cause, says):
    choices = structs.replace(CAUSE, choices=["input", "launch", "other"])
    rules = {"input": "Take loading's row.", "launch": "Subtract the waits."}
    figure = structs.replace(WAIT, follows="cause", measure="General.", rules=rules)
    answers = {"cause": cause, "wait": 0.1}
    _, result = grade_diagnosis([choices, figure], answers, {"cause": cause}, seen()).results
    assert says in result.sentence
    assert "waits" not in result.sentence
    assert ("General." in result.sentence) == (cause == "other")


def test_advice_on_a_wrong_stretch_names_the_learners_own():
    question = structs.replace(
        WHERE, measure="`lab report --at 4.2-5.7ms` shows what ran in a stretch."
    )
    assert "`lab report --at 0.1-0.4ms` shows" in grade(question, "100 - 400us").sentence


@pytest.mark.parametrize(
    ("question", "answer", "sentence"),
    [
        (CAUSE, "launch", "'launch' does not fit what the capture shows"),
        (CAUSE, "magic", "not one of the choices:\n  1  input\n  2  launch"),
        (CAUSE, 3, "not one of the choices"),
        (CAUSE, ["input"], "not one of the choices"),
        (CAUSE, None, "Not answered yet"),
        (CAUSE, "  ", "Not answered yet"),
        (WAIT, 0.72, "a different figure"),
        (WAIT, 0.67, "a different figure"),
        (LATE, 0.54, "all of the device's idle time, whatever it waited for"),
        (WAIT, 0.41, "the share in which the device is busy"),
        (WAIT, 0.33, "only the device's idle time while the host is on that line"),
        (WAIT, 0.49, "only the device's idle time of one cause"),
        (WAIT, 60, r"write 0.6 for 60% \(`lab diagnose` takes both\)"),
        (WAIT, "60%", "plain number"),
        (WAIT, True, "plain number"),
        (WAIT, float("nan"), "plain number"),
        (WAIT, 10**400, "plain number"),
        (CEILING, 2.8, "a different figure"),
        (WHERE, "0.1-0.4 ms", "Less than 80% of that stretch .* Mark a gap"),
        (WHERE, "0.9-2 ms", "after your capture does"),
        (WHERE, "0.9-0.9005 ms", r"too short \(0\.0005 ms\): mark at least 0\.00\d+ ms"),
        (WHERE, "0-1 ms", r"too long \(1 ms\) to point at anything: mark at most 0\.302 ms"),
        (WHERE, "all of it", "as start and end"),
        (WHERE, 0.5, "as start and end"),
        (WHERE, "0.9-0.6 ms", "as start and end"),
        (WORKED, 0.55, "Count the pairs"),
        (GAIN, 0.5, "at least 1"),
        (GAIN, "", "Not answered yet"),
        (WORDS, 4, "Write a text"),
    ],
)
def test_a_wrong_answer_says_why(question, answer, sentence):
    result = grade(question, answer)
    assert result.holds is False
    assert re.search(sentence, result.sentence)


def test_a_number_off_a_capture_needs_one():
    assert "lab profile" in grade(WAIT, 0.6, figures=None).sentence
    assert "does not show `data_wait_share`" in grade(WAIT, 0.6, figures={}).sentence


@pytest.mark.parametrize(
    ("question", "answer"), [(WAIT, 0.8), (CEILING, 1.2), (CAUSE, "launch"), (WORKED, 0.9)]
)
def test_no_sentence_tells_the_right_answer(question, answer):
    """Nothing that a learner could copy stands in it: neither the figure in any form, nor the
    choice.
    """
    sentence = grade(question, answer).sentence
    assert not re.search(
        r"0\.60?\b|60|2\.5|0\.505|50\.5|\binput\b", sentence.replace("an input", "")
    )


def test_a_figure_of_a_wrong_cause_is_not_sent_to_find_another():
    """It may be the right figure of that cause: only the cause is to be mended."""
    share = structs.replace(WAIT, follows=CAUSE.id)

    def sentence(cause: str, figure: object) -> str:
        answers = {CAUSE.id: cause, WAIT.id: figure}
        results, _ = grade_diagnosis([CAUSE, share], answers, {CAUSE.id: "input"}, seen())
        return results[-1].sentence

    rests = f"{WAIT.id}: not judged, because your `{CAUSE.id}` is wrong."
    assert sentence("launch", 0.9) == rests
    assert "different figure" in sentence("input", 0.9)
    assert "plain number" in sentence("launch", "much")


def test_the_right_figure_of_another_cause_is_no_evidence():
    """It tells the causes apart: read for a wrong one, it is not what this one costs."""
    share = structs.replace(WAIT, follows=CAUSE.id)
    first, now = ({CAUSE.id: cause, WAIT.id: 0.6} for cause in ("launch", "input"))
    results, _ = grade_diagnosis([CAUSE, share], first, {CAUSE.id: "input"}, seen())
    assert [result.holds for result in results] == [False, False]
    results, _ = grade_diagnosis([CAUSE, share], now, {CAUSE.id: "input"}, seen(), first)
    assert [(result.holds, result.corrected) for result in results] == [(True, True)] * 2
    cause, evidence = (result.sentence for result in results)
    assert "It was wrong in your first diagnosis" in cause
    assert evidence.endswith(RESTED_ON_WRONG_CAUSE), "only the cause was corrected"
    figure = {**first, WAIT.id: 0.61}
    results, _ = grade_diagnosis([CAUSE, share], now, {CAUSE.id: "input"}, seen(), figure)
    assert results[-1].sentence.endswith(RESTED_ON_WRONG_CAUSE), "nobody judged the other figure"


@pytest.mark.parametrize("lab", load_labs().values(), ids=lambda lab: lab.slug)
def test_a_question_follows_one_that_stands_before_it(lab):
    ids = [question.id for question in lab.spec.questions]
    for number, question in enumerate(lab.spec.questions):
        assert question.follows is None or question.follows in ids[:number]


@pytest.mark.parametrize("lab", load_labs().values(), ids=lambda lab: lab.slug)
def test_a_stretch_is_evidence_for_the_named_cause_alone(lab):
    """Beside a wrong cause, a stretch that shows the right one is no right answer."""
    for question in lab.spec.questions:
        assert question.type != "interval" or question.follows


def test_a_wrong_choice_is_told_what_it_would_have_to_show():
    rules = QuestionSpec("cause", "choice", "?", choices=["input", "launch-bound"], rules={"x": ""})
    assert "many short kernels" in grade(rules, "launch-bound").sentence
    told = QuestionSpec(
        "cause", "choice", "?", choices=["input", "y"], rules={"y": "Look at the lengths."}
    )
    assert grade(told, "y").sentence.endswith("Look at the lengths.")


def test_no_prediction_is_a_wrong_diagnosis_and_amdahl_s_law_is_only_a_remark():
    bound = QuestionSpec("gain", "ratio", "?", predicts_gain=True, ceiling_of="wait")
    for gain, remarked in ((4.0, True), (2.5, False)):
        answers = {"wait": 0.6, "gain": gain}
        results, prediction = grade_diagnosis([WAIT, bound], answers, {}, seen())
        assert [(result.id, result.holds) for result in results] == [("wait", True)]
        assert prediction.predicted == gain
        assert ("2.50x" in (beyond_ceiling(bound, answers) or "")) == remarked
    assert beyond_ceiling(bound, {"gain": 4.0}) is None


@pytest.mark.parametrize(
    ("gap_ns", "stretch", "fault"),
    [
        (1_800_000, "100-101.8 ms", None),  # of a capture of 30 s, a gap below the least share
        (1_800_000, "100-101 ms", "short"),
        (10_000_000_000, "2-12 s", None),  # a third of the capture, but a single gap
        (10_000_000_000, "2-13 s", "long"),
        (0, "100-160 ms", None),
        (0, "1-4.1 s", "long"),
    ],
)
def test_the_longest_gap_is_neither_too_short_nor_too_long_to_mark(gap_ns, stretch, fault):
    capture = CaptureFigures({}, 30 * 10**9, lambda _: {}, gap_ns)
    problem = misplaced_stretch(stretch, capture)
    assert (problem is None) == (fault is None)
    assert (fault or "") in (problem or "")


def test_the_limits_of_a_stretch_are_the_same_where_it_is_asked_for_and_where_it_is_refused():
    capture = CaptureFigures({}, 90_875_000, lambda _: {})
    assert stretch_rule(WHERE, capture).startswith("Mark a stretch that is 0.182 to 9.09 ms long.")
    assert (misplaced_stretch("1-30 ms", capture) or "").endswith("mark at most 9.09 ms.")
    assert (misplaced_stretch("1-1.1 ms", capture) or "").endswith("mark at least 0.182 ms.")
    assert misplaced_stretch("1-10.09 ms", capture) is None, "0.0025 ms above the exact limit"
    assert "0.2% to 10% of the capture." in stretch_rule(WHERE, None)
    long = CaptureFigures({}, 13_000_000_000, lambda _: {})
    assert "26 to 1,300 ms long." in stretch_rule(WHERE, long), "not 1.3e+03"
    assert "mark at most 1,300 ms." in (misplaced_stretch("1-4 s", long) or "")
    assert "At least 80% of it must" in stretch_rule(WHERE, None), "a whole gap may be less"


def test_a_right_share_is_praised_with_the_tools_own_figure():
    assert grade(WAIT, 0.63).sentence == "wait: 63%, where your capture shows 60%."


def test_an_answer_that_was_corrected_holds_and_earns_nothing():
    """Since the first diagnosis, reports have shown the right figure."""
    first = {"wait": 0.3, "cause": "input"}
    solution = {"cause": "input"}
    now = {"wait": 0.6, "cause": "input"}
    wait, cause = grade_diagnosis([WAIT, CAUSE], now, solution, seen(), first)[0]
    assert (wait.holds, wait.corrected, cause.corrected) == (True, True, UNSET)
    assert "wrong in your first diagnosis" in wait.sentence
    assert "report" not in wait.sentence, "none need have been read"
    (other,) = grade_diagnosis([WAIT], {"wait": 0.61}, {}, seen(), {"wait": 0.6})[0]
    assert other.corrected is UNSET, "both answers are right"


def test_the_first_prediction_is_the_one_that_counts():
    later = grade_diagnosis([GAIN], {"gain": 1.6}, {}, None, {"gain": 1.2}).prediction
    assert later == Prediction(1.2, None, corrected=1.6)
    same = grade_diagnosis([GAIN], {"gain": 1.2}, {}, None, {"gain": 1.2}).prediction
    assert same == Prediction(1.2, None)
    assert grade_diagnosis([GAIN], {"gain": 1.2}, {}, None, {"gain": "?"}).prediction == same


def test_an_answer_is_called_by_the_name_that_learners_type():
    assert grade(WAIT, 0.72).sentence.startswith("wait: ")


def test_a_choice_that_the_solution_leaves_open_only_has_to_be_given():
    assert grade(CAUSE, "launch", solution={"other": "x"}).holds


def test_the_prediction_is_handed_on_unmeasured():
    _, prediction = grade_diagnosis([CAUSE, GAIN], {"gain": 2}, {}, None)
    assert prediction is not None
    assert (prediction.predicted, prediction.measured) == (2.0, None)


@pytest.mark.parametrize("answer", [None, "", "2", 0.5, float("inf"), True])
def test_an_unusable_prediction_is_none(answer):
    assert grade_diagnosis([GAIN], {"gain": answer}, {}, None)[1] is None


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.lists(st.text()),
        st.dates(),
    )
)
def test_whatever_toml_can_hold_gets_an_answer_in_words(answer):
    for question in (CAUSE, WAIT, CEILING, WORDS, WHERE):
        result = grade(question, answer)
        assert isinstance(result.holds, bool)
        assert result.sentence


def test_figures_have_the_names_that_a_lab_may_ask_for():
    gap = GapCause(
        cause="input", idle_ns=60, share_of_wall=0.6, gaps=3, evidence="", inside=[("main", 40)]
    )
    parts = {
        "compute_ns": 30,
        "communication_ns": 20,
        "copy_ns": 0,
        "exposed_communication_ns": 10,
        "exposed_copy_ns": 0,
    }
    use = DeviceUse(
        rank=0,
        device=0,
        name="",
        emulated=True,
        is_cpu=False,
        wall_ns=100,
        busy_ns=40,
        idle_ns=60,
        streams=1,
        gap_causes=[gap],
        largest_gaps=[],
        **parts,
    )
    rows = [
        SimpleNamespace(self_ns=0, device_self_ns=30),
        SimpleNamespace(self_ns=9, device_self_ns=10),
    ]
    figures = figures_of(
        SimpleNamespace(
            range_shares={"data": 0.55, "forward": 0.3},
            devices=[use, use],
            operators=rows,
            findings=[
                SimpleNamespace(id="sync", expected_gain_ratio=2.5, share_of_wall=0.6),
                SimpleNamespace(
                    id="interrupted-kernels", expected_gain_ratio=1.2, share_of_wall=0.16
                ),
            ],
            cpu_only=False,
            syncs=[
                SimpleNamespace(total_ns=30, line="train.py(31): train"),
                SimpleNamespace(total_ns=20, line="train.py(27): train"),
                SimpleNamespace(total_ns=10, line="train.py(31): train"),
            ],
            memory=[
                SimpleNamespace(peak_bytes=100, growth_bytes_per_step=10, steps=9, first_bytes=20)
            ],
            serving=SimpleNamespace(unpaused_images_per_s=200.0),
            collectives=[
                SimpleNamespace(bytes=8, exposed_ns=10),
                SimpleNamespace(bytes=1 << 20, exposed_ns=4),
                SimpleNamespace(bytes=1 << 20, exposed_ns=6),
            ],
            longest_line_share=0.4,
            waiting_line_share=0.3,
            longest_wait_gain=4 / 3,
        )
    )
    expected = {
        "data_share": 0.55,
        "data_wait_share": 0.55,
        "busy_share": 0.4,
        "idle_share": 0.6,
        "idle_input_share": 0.6,
        "idle_line_share": 0.4,
        "exposed_communication_share": 0.1,
        "overlap_share": 0.5,
        "host_wait_share": 0.3,
        "longest_wait_saving_share": 0.25,
        "interrupted_share": 0.16,
        "top_operator_share": 0.75,
        "largest_gain_ratio": 2.5,
        "memory_growth_ratio": 5.0,
        "peak_over_start_ratio": 5.0,
        "longest_line_share": 0.4,
        "waiting_line_share": 0.3,
        "largest_message_share": 0.05,
        "unpaused_images_per_s": 200.0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


@pytest.fixture
def empty_summary():
    return SimpleNamespace(
        range_shares={},
        devices=[],
        operators=[],
        findings=[],
        cpu_only=False,
        syncs=[],
        memory=[],
        serving=None,
        collectives=[],
        longest_line_share=0.0,
        waiting_line_share=0.0,
        longest_wait_gain=None,
    )


def test_memory_that_shrinks_does_not_grow(empty_summary):
    empty_summary.memory = [
        SimpleNamespace(peak_bytes=100, growth_bytes_per_step=-1, steps=9, first_bytes=50)
    ]
    assert figures_of(empty_summary) == {
        "memory_growth_share": 0.0,
        "memory_growth_ratio": 1.0,
        "peak_over_start_ratio": 2.0,
    }


def test_an_empty_capture_has_no_figures(empty_summary):
    assert figures_of(empty_summary) == {}


def test_the_example_in_the_help_answers_a_question_of_the_first_lab():
    key, _, value = EXAMPLE.split()[-1].partition("=")
    questions = {question.id: question for question in find_lab("idle-gpu").spec.questions}
    assert form_problem(questions[key], float(value)) is None


def test_a_prediction_is_joined_with_the_ceilings_of_the_other_answers():
    """The cause alone, the costliest finding, and all but computation: three figures, one line."""
    evidence = QuestionSpec("evidence", "share", "?", from_capture="largest_message_share")
    best = QuestionSpec("best", "share", "?", from_capture="compute_share")
    gain = QuestionSpec("gain", "ratio", "?", predicts_gain=True, ceiling_of="evidence")
    answers = {"evidence": 0.338, "best": 0.472, "gain": 1.95}
    shown = {"largest_gain_ratio": 1.86, "largest_message_share": 0.34, "compute_share": 0.47}
    figures = CaptureFigures(shown, 1_000, lambda _: {})
    questions = [evidence, best, gain]
    reading = describe_reading(gain, answers, figures, questions)
    assert "about 1.86x from ending" in reading
    assert reading.endswith(
        "By the shares that you gave: without your cause alone 1.51x, with nothing but computation"
        " 2.12x."
    )
    assert "you gave" not in describe_reading(gain, answers, figures)
    wrong = describe_reading(gain, {**answers, "evidence": 0.854}, figures, questions)
    assert wrong.endswith("you gave: with nothing but computation 2.12x."), "6.85x is nobody's"


def test_a_prediction_is_held_against_the_most_that_a_check_can_measure():
    gain = QuestionSpec("gain", "ratio", "?", predicts_gain=True)
    figures = CaptureFigures({"largest_gain_ratio": 4.72, "busy_share": 0.21}, 1_000, lambda _: {})
    reading = describe_reading(gain, {"gain": 4.7}, figures, [gain], most=2.5)
    assert reading.startswith("The tool: 2.50x at most, from the 40% busy")
    assert reading.endswith("The diagnosed capture, 21% busy, would promise 4.72x.")
    figures = CaptureFigures({"largest_gain_ratio": 1.8, "busy_share": 0.5}, 1_000, lambda _: {})
    reading = describe_reading(gain, {"gain": 4.7}, figures, [gain], most=2.5)
    assert "about 1.80x from ending" in reading
    assert "at most" not in reading
