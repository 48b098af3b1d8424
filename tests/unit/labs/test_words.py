"""What learners read of every lab: labels of criteria, and the questions in diagnosis.toml."""

from __future__ import annotations

import re

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.commands.asking import NEVER_WRONG
from bottleneck_lab.commands.solution import COMMENT
from bottleneck_lab.grading.causes import MEANINGS
from bottleneck_lab.grading.diagnosis import stretch_rule
from bottleneck_lab.workspace.diagnosis_file import load_answers

LABS = list(load_labs().values())


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_every_criterion_has_a_label_for_people(lab):
    for device, spec in lab.spec.devices.items():
        labels = [criterion.label for criterion in spec.criteria]
        assert all(3 < len(label) <= 48 for label in labels), (device, labels)
        assert len({*labels}) == len(labels)
        assert not {*labels} & {criterion.id for criterion in spec.criteria if "-" in criterion.id}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_the_file_for_the_answers_asks_what_the_lab_asks(lab):
    text = (lab.path / "diagnosis.toml").read_text()
    for question in lab.spec.questions:
        assert f"# {question.ask}\n" in text, question.id
        assert not question.measure or f"#   {question.measure}\n" in text, question.id
        assert all(choice in text for choice in question.choices), question.id
        # `lab diagnose` gives the rule of the cause that was named: all of them would be a key.
        assert not any(rule in text for rule in question.rules.values()), question.id
        assert not question.predicts_gain or f"#   {NEVER_WRONG}\n" in text, question.id
        rule = f"#   {stretch_rule(question, None)}\n"
        assert not question.shows or rule in text, question.id


HELP_WORDS, HELP_SENTENCES = 65, 4
"""A learner reads the help of every question before answering one."""


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_the_help_of_a_question_is_short(lab):
    for question in lab.spec.questions:
        most = HELP_SENTENCES if question.type == "choice" else 3 if question.predicts_gain else 2
        for text in (question.measure, *question.rules.values()):
            assert len(text.split()) <= HELP_WORDS, (question.id, text)
            assert len(re.findall(r"[.?](?:\s|$)", text)) <= most, (question.id, text)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_a_question_about_a_choice_says_as_much_of_each(lab):
    choices = {question.id: question.choices for question in lab.spec.questions}
    for question in lab.spec.questions:
        if question.follows is None or not question.rules:
            continue
        assert list(question.rules) == choices[question.follows], question.id
        lengths = [len(rule.split()) for rule in question.rules.values()]
        assert max(lengths) <= 2 * min(lengths), dict(zip(question.rules, lengths, strict=True))
        assert len(question.measure.split()) <= 40, question.id


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_a_reply_to_a_wrong_choice_does_not_read_as_what_the_capture_shows(lab):
    for question in lab.spec.questions:
        for choice, rule in question.rules.items():
            first = re.split(r"(?<=[.?])\s", rule)[0]
            assert " would " not in first or first.startswith("If it were that, "), choice


NOT_INSTALLED = re.compile(
    r"\blab dev\b|\bmutants?\b|tests/|docs/\w|python benchmarks/(?!parse|sort)", re.IGNORECASE
)
"""What learners do not have: the project's own tests, pages and benchmarks. The two benchmarks are
an example's.
"""


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_briefs_and_write_ups_name_nothing_that_a_learner_lacks(lab):
    pages = [*lab.path.glob("*.md"), *lab.solution.glob("*.md")]
    for page in pages:
        text = COMMENT.sub("", page.read_text())
        assert not NOT_INSTALLED.search(text), (page, NOT_INSTALLED.search(text))
    spoken = [*(hint.text for hint in lab.spec.hints), *(each.ask for each in lab.spec.questions)]
    assert not NOT_INSTALLED.search(" ".join(spoken))


FIGURES = re.compile(r"<!-- figures: begin -->(.*?)<!-- figures: end -->", re.DOTALL)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_every_other_way_in_a_write_up_s_table_has_a_sentence(lab):
    text = (lab.solution / "README.md").read_text("utf-8")
    for table in FIGURES.findall(text):
        names = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[2:]
        for name in names:
            if name not in ("as shipped", "shipped", "solution"):
                called = name.replace(" ", "[ _]")
                assert re.search(rf"^- .*?{called}.{{20}}", text, re.MULTILINE), name


ASKED = [
    pytest.param(lab, question, id=f"{lab.slug}-{question.id}")
    for lab in LABS
    for question in lab.spec.questions
    if question.type == "choice"
]


IN_WORDS = [
    param
    for param in ASKED
    if not any(
        choice in MEANINGS or f"`{choice}`" in param.values[1].measure
        for choice in param.values[1].choices
    )
]
"""Without those whose choices are usual names, with their meanings beside them."""


@pytest.mark.parametrize(("lab", "question"), IN_WORDS)
def test_no_choice_stands_out_by_its_length(lab, question):
    lengths = [len(choice) for choice in question.choices]
    assert max(lengths) <= 1.2 * min(lengths), dict(zip(question.choices, lengths, strict=True))


def test_the_longest_choice_is_right_no_more_often_than_any_other():
    right = [
        (load_answers(lab.solution)[question.id], question.choices)
        for lab, question in (param.values for param in IN_WORDS)
    ]
    longest = sum(answer == max(choices, key=len) for answer, choices in right)
    assert longest <= sum(1 / len(choices) for _, choices in right) + 1


def sized(slug: str) -> dict[str, str]:
    """What the brief says of a lab's sizes, with figures from lab.toml, or from the recipe."""
    lab = next(lab for lab in LABS if lab.slug == slug)
    text = (lab.path / "recipe.py").read_text() if (lab.path / "recipe.py").exists() else ""
    settings = {name: device.settings for name, device in lab.spec.devices.items()}
    judges = {name: each.get("judge", {}) for name, each in settings.items()}
    if slug == "stuttering-tagger":
        small = re.search(r"LONGEST, WIDTH, LAYERS = (\d+), (\d+), ", text)
        batches = re.search(r"BATCH, STEPS, LOG_EVERY = (\d+), (\d+), ", text)
        large = re.search(r"LONGEST, WIDTH, BATCH, STEPS = (\d+), (\d+), (\d+), (\d+)", text)
        assert small, batches
        assert large
        longest, width, batch, steps = large.groups()
        return {
            "cuda": f"{width} wide and trains {steps} batches of {batch} sequences of up to"
            f" {longest} tokens",
            "virtual": f"{small[2]} wide and trains {batches[2]} batches of {batches[1]} sequences"
            f" of up to {small[1]} tokens",
        }
    if slug == "roofline":
        return {
            name: "{:,} to {:,} parameters, {} to {} gradients a call, {} times over".format(
                *judge["parameters"], *judge["pushed"], judge["rounds"]
            )
            for name, judge in judges.items()
        }
    if slug == "timing-pitfalls":
        return {
            "virtual": "| steady and varying functions | {quiet} and {noisy} |".format(
                **judges["virtual"]
            ),
            **{
                device: "| {quiet} and {noisy} | | **Estimates**".format(**judges[device])
                for device in ("cpu", "cuda")
            },
        }
    if slug == "perf-gate":
        looks = {name: judge["looks"] for name, judge in judges.items()}
        most = looks["virtual"][-1][0]
        return {
            "virtual": f"in between the check goes on, up to {most:,} jobs",
            "cpu": f"On `cpu` and `cuda`, a check ends after {looks['cpu'][0][0]} jobs",
            "cuda": f"a check ends after {looks['cuda'][0][0]} jobs",
        }
    share = {name: each["device_share"] for name, each in settings.items()}
    what = {
        "idle-gpu": "Batches have {batch} images on every device. The length of a step follows from"
        " this machine's speed, with the factor {share}: on `virtual` by a clock",
        "past-the-plateau": "up to {batch} in a batch. The model's speed follows from this"
        " machine's, with the factor {share}: on `virtual` by a clock",
    }[slug]
    return {
        name: what.format(batch=each["batch"], share=share[name]) for name, each in settings.items()
    }


@pytest.mark.parametrize(
    "slug",
    [
        "stuttering-tagger",
        "timing-pitfalls",
        "perf-gate",
        "idle-gpu",
        "past-the-plateau",
        "roofline",
    ],
)
def test_a_brief_says_which_size_runs_where(slug):
    lab = next(lab for lab in LABS if lab.slug == slug)
    pages = [lab.path / "README.md", *lab.path.glob("RULES.md")]
    brief = " ".join(" ".join(page.read_text() for page in pages).split())
    stated = sized(slug)
    assert {*stated} == {*lab.spec.devices}
    for device, sentence in stated.items():
        assert sentence in brief, (device, sentence)
