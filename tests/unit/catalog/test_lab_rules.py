"""`lab dev check --static`: each slip of an author's pen is told, with its line and what would be
right.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bottleneck_lab.catalog import CourseSpec, LabSpec, find_lab, load_labs
from bottleneck_lab.declared import line_of, load_declared
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.lab_rules import check_files, spoilers
from bottleneck_lab.measure.lab_rules.course import add_to_course

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"
TOML, JUDGE = "labs/running-mean/lab.toml", "labs/running-mean/judge.py"


@pytest.fixture
def content(tmp_path, monkeypatch) -> Path:
    """A copy of the example, to be spoilt."""
    shutil.copytree(EXAMPLE, tmp_path / "content")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(tmp_path / "content"))
    load_labs.cache_clear()
    yield tmp_path / "content"
    load_labs.cache_clear()


def spoil(content: Path, file: str, old: str, new: str) -> None:
    text = (content / file).read_text()
    assert text.count(old) == 1, text.count(old)
    (content / file).write_text(text.replace(old, new))
    load_labs.cache_clear()


def problems() -> str:
    return "\n".join(check_files(find_lab("running-mean")))


def test_the_example_is_in_order(content):
    assert not problems()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "threads = 1",
            "threds = 1",
            r"lab.toml, line 30: there is no `threds` here\. Did you mean `threads`\?",
        ),
        ("max_s = 60", 'max_s = "60"', r"line 31: `max_s`: expected a number, got text"),
        (
            'measure = "speedup"',
            'measure = "spedup"',
            r"line 5: There is no kind .* Known kinds: .*speedup",
        ),
        (
            'id = "speedup"',
            'id = "speed"',
            r"line 40: `speedup` does not measure `speed`\. Did you mean `speedup`\?",
        ),
        ('id = "right-answers"', 'id = "p50-ms"', r"cpu lacks the criterion `right-answers`"),
        ('kind = "target"', 'kind = "mechanism"', r"`speedup` is a criterion of kind `target`"),
        ("target = 3.0\n", "", r"the criterion speedup has no target"),
        (
            'shipped code"\ntarget',
            'shipped code, {targte}"\ntarget',
            r"has `{targte}`.*Did you mean `target`\?",
        ),
        (
            "starter_fails = ",
            'taught = "nonsense"\nstarter_fails = ',
            r"line 9: no detector reports `nonsense`",
        ),
        (
            '[[hints]]\ntext = "How',
            '[[hints]]\nfinding = "python-overhead"\ntext = "How',
            r"does not show it",
        ),
        (
            '[[hints]]\ntext = "The',
            '[[hints]]\nfinding = "pyton"\ntext = "{evidence} The',
            r"no detector .* `pyton`",
        ),
        (
            '[[hints]]\ntext = "The',
            '[[hints]]\nuntil = ["predicted_gain"]\ntext = "The',
            r"no check judges `predicted_gain`",
        ),
        ("How many times does", "{evidence} How many times does", r"names no `finding`"),
        ("How many times does", "{n} How many times does", r"has `{n}`, which is not filled in"),
        ("judge = { samples", "judge = { sample = 1, samples", None),  # read: it is part of a name
        (
            "judge = { samples",
            "judge = { width_of_all = 1, samples",
            r"does not read the setting `width_of_all`",
        ),
        (
            'choices = ["python-overhead", "memory-bound", "input-bound"]',
            "",
            r"cause offers no choice",
        ),
        ("predicts_gain = true", 'ceiling_of = "share"', r"`ceiling_of` names no question"),
        (
            "predicts_gain = true",
            'from_capture = "bussy_share"',
            r"which no capture shows\. Did you mean `busy_share`",
        ),
        ('type = "ratio"', 'type = "text"', r"predicted_gain takes any text"),
        (
            'type = "ratio"',
            'type = "text"\naccept = ["("]',
            r"accepts '\(', which is not a regular expression",
        ),
        (
            "predicts_gain = true",
            'follows = "cause"\nrules = { "memory-bound" = "Count.", "input-bound" = "Wait." }',
            r"has no rule for 'python-overhead' of cause: give one for each choice",
        ),
        (
            "predicts_gain = true",
            'follows = "cause"\nrules = { "memory" = "Count." }',
            r"has a rule for 'memory', which is not a choice of cause",
        ),
        (
            "predicts_gain = true",
            'rules = { "memory-bound" = "Count." }',
            r"predicted_gain has a rule for 'memory-bound', which is not a wrong choice of it",
        ),
        (
            'title = "A running mean',
            'title = "A python-overhead',
            r"line 1 names the cause: 'python-overhead'",
        ),
        ("How many times does", "Python overhead: how many times does", r"names the cause"),
    ],
)
def test_a_slip_in_lab_toml_is_told(content, old, new, said):
    spoil(content, TOML, old, new)
    found = problems()
    assert not found if said is None else re.search(said, found, re.DOTALL), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "answers, close",
            "answers, clsoe",
            r"judge.py, line 3: ImportError: cannot import name 'clsoe'",
        ),
        (
            "def make_inputs(",
            "def inputs(",
            r"`make_inputs` is missing; it is called with 4 arguments",
        ),
        (
            "def cases(rng, settings)",
            "def cases(rng)",
            r"`cases` is called with 2 arguments, and takes \(rng\)",
        ),
        ("def cases(rng, settings):", "def cases(rng, settings)", r"judge.py, line 6: SyntaxError"),
    ],
)
def test_a_judge_that_cannot_be_called_is_told(content, old, new, said):
    spoil(content, JUDGE, old, new)
    assert re.search(said, problems()), problems()


def test_variants_that_say_the_same_are_told(content):
    folder = content / "tests" / "variants" / "running-mean"
    first, second = sorted(folder.iterdir())[:2]
    (second / "smooth.py").write_text(
        (first / "smooth.py").read_text().replace("\n", "\n\n") + "# and a comment\n"
    )
    assert f"{second.name} is the same as {first.name}" in problems()


def test_a_variant_that_is_the_solution_is_told(content):
    first = next((content / "tests" / "variants" / "running-mean").iterdir())
    shutil.copy(content / "solutions" / "running-mean" / "smooth.py", first / "smooth.py")
    assert f"{first.name} is the same as the solution" in problems()


def test_comments_docstrings_and_names_that_tell_the_cause_are_told(content):
    file = content / "labs" / "running-mean" / "smooth.py"
    file.write_text(
        file.read_text()
        + '\n\ndef python_overhead():\n    """Wasteful."""\n    return 1  # slow on purpose\n'
    )
    found = problems()
    assert all(
        f"tells the cause: '{name}'" in found
        for name in ("python-overhead", "wasteful", "on purpose")
    )


def test_words_within_words_tell_nothing():
    assert spoilers._says("an input-bound loop", "input-bound")
    assert spoilers._says("def input_bound():", "input-bound")
    assert not spoilers._says("uninput-bounded", "input-bound")


def test_lines_are_found_in_nested_tables_and_past_texts_of_many_lines():
    text = (
        'a = """\nb = 1\n"""\nb = 2\n[[t]]\nx = 1\n[t.u]\ny = 2\n[[t]]\nx = 3\n[[t.v]]\n"quoted'
        ' key" = 4\n'
    )
    assert [
        line_of(text, keys)
        for keys in (("a",), ("b",), ("t", 0, "x"), ("t", 0, "u", "y"), ("t", 1, "x"))
    ] == [
        1,
        4,
        6,
        8,
        10,
    ]
    assert line_of(text, ("t", 1, "v", 0, "quoted key")) == 12
    assert line_of(text, ("t", 1, "v", 0, "none")) == 11, "the nearest that is written"
    assert line_of(text, ("none",)) is None


def test_an_unknown_device_is_told_with_those_that_there_are(content):
    spoil(content, TOML, "[devices.cpu.settings]", "[devices.tpu.settings]")
    with pytest.raises(
        LabError, match=r"line 29: there is no `tpu` here.*Valid: cpu, cuda, virtual"
    ) as caught:
        load_declared(content / TOML, LabSpec)
    assert "docs/authors.md" in caught.value.remedy


COURSES = [
    ("", ["beginner"]),
    ('title = "T"\n\n[[stages]]\nname = "beginner"\nlabs = []\n', ["beginner"]),
    (
        'title = "T"\n\n[[stages]]\nname = "beginner"\nlabs = ["a", "b"]\n\n'
        '[[stages]]\nname = "z"\nlabs = []\n',
        ["beginner", "z"],
    ),
    ('title = "T"\n\n[[stages]]\nname = "z"\nlabs = ["a"]\n', ["z", "beginner"]),
]


@pytest.mark.parametrize(("before", "stages"), COURSES)
def test_a_lab_is_put_into_a_course(tmp_path, before, stages):
    file = tmp_path / "labs" / "course.toml"
    if before:
        file.parent.mkdir()
        file.write_text(before)
    add_to_course(file, "beginner", "mine")
    course = load_declared(file, CourseSpec)
    assert [stage.name for stage in course.stages] == stages
    labs = next(stage.labs for stage in course.stages if stage.name == "beginner")
    assert labs == [*(["a", "b"] if '"a", "b"' in before else []), "mine"]


def test_a_course_that_cannot_be_added_to_is_left_as_it_was(tmp_path):
    file = tmp_path / "course.toml"
    file.write_text('title = "T"\nstages = [{ name = "beginner", labs = ["a"] }]\n')
    before = file.read_text()
    with pytest.raises(UsageError, match="cannot extend"):
        add_to_course(file, "beginner", "mine")
    assert file.read_text() == before
