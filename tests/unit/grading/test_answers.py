import pytest

from bottleneck_lab.catalog import QuestionSpec, find_lab
from bottleneck_lab.grading.answers import (
    describe_choices,
    form_problem,
    parse_answers,
    read_answer,
)
from bottleneck_lab.grading.cases import QUESTIONS


def test_every_usual_cause_is_explained_where_it_is_offered():
    cause, *_ = QUESTIONS
    lines = describe_choices(cause)
    assert [line.split("  ")[1].partition(": ")[0] for line in lines] == cause.choices
    assert all(": " in line for line in lines)


def test_a_choice_that_the_question_explains_itself_stands_alone():
    question = QuestionSpec(
        "bound",
        "choice",
        "What limits it?",
        measure="`memory-bound`: on the slant.",
        choices=["memory-bound", "far below"],
    )
    assert describe_choices(question) == ["1  memory-bound", "2  far below"]


@pytest.mark.parametrize("text", ["23.2%", "0.232", "23,2 %", "0,232"])
def test_a_share_is_the_same_number_however_it_is_typed(text):
    question = QuestionSpec("evidence", "share", "For what share of the time?")
    assert read_answer(question, text) == 0.232


@pytest.mark.parametrize(
    ("lab", "answer", "right"),
    [
        ("resnet-top-ops", "bounds=compute, compute, memory", False),
        ("resnet-top-ops", "bounds=Compute-bound , memory-bound,far below both", True),
        ("resnet-top-ops", "third=batch norm and pooling", False),
        ("resnet-top-ops", "third=native_batch_norm", True),
        ("perf-gate", "always=foo", False),
        ("perf-gate", "always= Sort", True),
    ],
)
def test_words_in_another_form_are_refused_when_they_are_given(lab, answer, right):
    questions = find_lab(lab).spec.questions
    answers, wrong = parse_answers(questions, [answer])
    assert bool(answers) == right
    assert right or "is not in the form of an answer here. " in wrong[0], "its help is not at hand"
    bounds = next((each for each in questions if each.id == "bounds"), None)
    fault = form_problem(bounds, "foo") if bounds else "of an answer here."
    assert (fault or "").endswith("of an answer here."), "a verdict repeats no help"


def test_the_beginning_of_two_choices_names_both():
    question = QuestionSpec("cause", "choice", "Which?", choices=["memory-bound", "memory-growth"])
    assert parse_answers([question], ["cause=mem"]) == (
        {},
        ["cause: 'mem' fits memory-bound and memory-growth."],
    )


def test_a_share_that_is_typed_may_be_a_percentage_whatever_the_command():
    question = QuestionSpec("evidence", "share", "For what share of the time?")
    _, (wrong,) = parse_answers([question], ["evidence=60 percent"])
    assert wrong == "evidence: Write 60% or 0.6, not '60 percent'."
    _, (wrong,) = parse_answers([question], ["evidence=28"])
    assert wrong == "evidence: A share runs from 0 to 1: write 28% or 0.28, not 28."
    _, (wrong,) = parse_answers([question], ["evidence=280"])
    assert wrong == "evidence: A share runs from 0 to 1: write 60% or 0.6, not 280."
    file = form_problem(question, 28)
    assert "write 0.28 for 28% (`lab diagnose` takes both), not 28." in file, "in diagnosis.toml"
