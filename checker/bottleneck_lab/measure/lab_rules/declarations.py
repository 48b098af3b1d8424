"""Rules for lab.toml: every name in it must be known, and every placeholder one that gets
filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bottleneck_lab.analysis.findings import FINDING_IDS
from bottleneck_lab.catalog import HintSpec, Lab, QuestionSpec, TextSpec
from bottleneck_lab.declared import Keys, load_declared, position, unknown
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.answers import form_problem
from bottleneck_lab.grading.figures import FIGURES
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.workspace.cases import load_library
from bottleneck_lab.workspace.diagnosis_file import load_answers

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


def at(lab: Lab, *keys: str | int) -> str:
    """Return the position in the lab's lab.toml where the keys are written: `…/lab.toml, line
    12`.
    """
    return position(lab.path / "lab.toml", keys)


def criteria(lab: Lab) -> Iterator[str]:
    """Yield targets without a figure, and texts with an unknown placeholder."""
    for device, spec in lab.spec.devices.items():
        for number, criterion in enumerate(spec.criteria):
            where = at(lab, "devices", device, "criteria", number)
            has_target = criterion.target is not None
            if criterion.kind == "target" and not has_target:
                yield f"{where}: the criterion {criterion.id} has no target."
            for sentence in _placeholders(criterion.text, ["target"] if has_target else []):
                yield f"{where}: {sentence}"


def _placeholders(text: str, filled: list[str]) -> Iterator[str]:
    """Yield every placeholder of the text that is not among those filled in."""
    for name in _PLACEHOLDER.findall(text):
        if name not in filled:
            problem_ = f"the text has `{{{name}}}`, which is not filled in here"
            yield unknown(problem_, name, filled) if filled else f"{problem_}."


def hints(lab: Lab) -> Iterator[str]:
    """Yield hints that name a finding without showing its evidence, or the other way round, and
    those that lead to what no check judges.
    """
    if not lab.spec.hints:
        yield "The lab has no hints."
    for number, hint in enumerate(lab.spec.hints):
        yield from (f"{at(lab, 'hints', number, 'text')}: {problem}" for problem in _hint(hint))
        judged = [
            *(each.id for device in lab.spec.devices.values() for each in device.criteria),
            *(each.id for each in lab.spec.questions if not each.predicts_gain),
        ]
        for id_ in hint.until:
            if id_ not in judged:
                yield (
                    f"{at(lab, 'hints', number, 'until')}:"
                    f" {unknown(f'no check judges `{id_}`', id_, judged)}"
                )


def _hint(hint: HintSpec) -> Iterator[str]:
    if hint.finding is not None and hint.finding not in FINDING_IDS:
        yield unknown(
            f"no detector reports the finding `{hint.finding}`", hint.finding, FINDING_IDS
        )
    if hint.finding is not None and "{evidence}" not in hint.text:
        yield (
            f"the hint names the finding `{hint.finding}` but does not show it: its text has no"
            " `{evidence}`."
        )
    if hint.finding is None and "{evidence}" in hint.text:
        yield "the hint has `{evidence}` but names no `finding` to fill it."
    yield from _placeholders(
        hint.text.replace("{evidence}", ""), ["evidence"] if hint.finding else []
    )


def translations(lab: Lab) -> Iterator[str]:
    """Yield where a lab.<language>.toml does not fit the lab: it needs as many hints, the same
    placeholders, and only questions and criteria that there are.
    """
    for path in sorted(lab.path.glob("lab.*.toml")):
        try:
            text = load_declared(path, TextSpec)
        except LabError as error:
            yield error.message
            continue
        yield from (
            f"{position(path, keys)}: {problem}" for keys, problem in _mistranslated(lab, text)
        )


def _mistranslated(lab: Lab, text: TextSpec) -> Iterator[tuple[Keys, str]]:
    ids = [question.id for question in lab.spec.questions]
    decided = {one.id: one.text for device in lab.spec.devices.values() for one in device.criteria}
    if text.hints and len(text.hints) != len(lab.spec.hints):
        yield (
            ("hints",),
            (
                f"{len(text.hints)} of the lab's {len(lab.spec.hints)} hints are translated: give"
                " all of them, in order, or none."
            ),
        )
    for hint, words in zip(lab.spec.hints, text.hints, strict=False):
        if _PLACEHOLDER.findall(hint.text) != _PLACEHOLDER.findall(words):
            yield ("hints",), f"a hint has other placeholders than its original: '{words[:40]}…'"
    for id_ in text.questions:
        if id_ not in ids:
            yield ("questions", id_), unknown(f"`{id_}` is not asked", id_, ids)
    for id_, words in text.criteria.items():
        if id_ not in decided:
            yield ("criteria", id_), unknown(f"`{id_}` is no criterion", id_, decided)
        elif _PLACEHOLDER.findall(decided[id_]) != _PLACEHOLDER.findall(words):
            yield ("criteria", id_), f"`{id_}` has other placeholders than its original."


def taught(lab: Lab) -> Iterator[str]:
    """Yield that no detector reports what the lab teaches."""
    if lab.spec.taught not in ("", *FINDING_IDS):
        problem = unknown(f"no detector reports `{lab.spec.taught}`", lab.spec.taught, FINDING_IDS)
        yield f"{at(lab, 'taught')}: {problem}"


def asked_by_kind(lab: Lab) -> frozenset[str]:
    """Return the questions that the lab's kind judges itself; none of an unknown kind."""
    try:
        return frozenset(kind_of(lab).answered_questions)
    except LabError:
        return frozenset()


def cases(lab: Lab) -> Iterator[str]:
    """Yield cases that the library does not have."""
    if not lab.spec.cases:
        return
    known = [case.name for case in load_library().cases]
    for number, name in enumerate(lab.spec.cases):
        if name not in known:
            problem = unknown(f"there is no case `{name}`", name, known)
            yield f"{at(lab, 'cases', number)}: {problem}"


def questions(lab: Lab) -> Iterator[str]:
    """Yield questions that cannot be graded, that the solution does not answer, or that the shipped
    diagnosis does answer.
    """
    try:
        shipped, solved = load_answers(lab.path), load_answers(lab.solution)
    except LabError as error:
        yield error.message
        return
    ids = [question.id for question in lab.spec.questions]
    for folder, answers in ((lab.path, shipped), (lab.solution, solved)):
        yield from (
            f"{position(folder / 'diagnosis.toml', (key,))}:"
            f" {unknown(f'`{key}` is not asked', key, ids)}"
            for key in answers
            if key not in ids
        )
    for number, question in enumerate(lab.spec.questions):
        problems = _question(lab, question, shipped.get(question.id), solved.get(question.id))
        yield from (f"{at(lab, 'questions', number)}: {problem}" for problem in problems)


def _question(lab: Lab, question: QuestionSpec, shipped: object, solved: object) -> Iterator[str]:
    ids = [other.id for other in lab.spec.questions]
    yield from (f"{question.id} {problem}" for problem in _ungradable(lab, question))
    yield from (f"{question.id} {problem}" for problem in _rules(lab, question, solved))
    for field, named in (("ceiling_of", question.ceiling_of), ("follows", question.follows)):
        if named is not None and named not in ids:
            yield unknown(f"{question.id}: `{field}` names no question", named, ids)
    wrong = form_problem(question, solved)
    has_patterns = question.type == "text" and question.accept
    if not wrong and has_patterns and not question.accepts(str(solved)):
        wrong = "it matches none of the patterns in `accept`."
    if wrong and question.type != "interval":  # a stretch is of the learner's own capture
        yield f"the solution's answer to {question.id}: {wrong}"
    if form_problem(question, shipped) is None and question.type == "choice":
        yield f"the shipped diagnosis.toml already answers {question.id}."


def _rules(lab: Lab, question: QuestionSpec, solved: object) -> Iterator[str]:
    """Yield rules that no answer leads to, and choices of another question that lack one."""
    if question.type == "choice" or question.follows is None:
        for choice in question.rules:
            if choice not in question.choices or choice == solved:
                yield f"has a rule for '{choice}', which is not a wrong choice of it."
        return
    choices = [
        choice
        for other in lab.spec.questions
        if other.id == question.follows
        for choice in other.choices
    ]
    for choice in question.rules:
        if choice not in choices:
            yield f"has a rule for '{choice}', which is not a choice of {question.follows}."
    for choice in choices if question.rules else []:
        # One that lacks it would tell that nobody is expected to name it.
        if choice not in question.rules:
            yield f"has no rule for '{choice}' of {question.follows}: give one for each choice."


def _ungradable(lab: Lab, question: QuestionSpec) -> Iterator[str]:
    if question.type == "choice" and len(question.choices) < 2:
        yield "offers no choice: `choices` needs two or more."
    if question.type == "interval" and not question.shows:
        yield "does not say what its stretch must show (`shows`)."
    if question.type == "text" and not question.accept and question.id not in asked_by_kind(lab):
        yield (
            "takes any text: list patterns in `accept`, one of which an answer must match, or ask"
            " for a choice or a number."
        )
    for pattern in filter(None, [*question.accept, question.form]):
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"accepts '{pattern}', which is not a regular expression ({error})."
    for figure in filter(None, (question.from_capture, question.shows)):
        if figure not in FIGURES and not _marks(lab, figure.removesuffix("_share")):
            yield (
                unknown(f"is checked against `{figure}`, which no capture shows", figure, FIGURES)[
                    :-1
                ]
                + ", or `<range>_share` of a range that a file of the lab marks."
            )


def _marks(lab: Lab, range_: str) -> bool:
    """Return True if some file that learners get has the name of the range as a text."""
    texts = [
        (lab.path / name).read_text("utf-8", "replace")
        for name in lab.spec.files
        if (lab.path / name).is_file()
    ]
    return any(f'"{range_}"' in text or f"'{range_}'" in text for text in texts)
