"""The declarations of `lab.toml` and `course.toml`, as types that validate them."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

Device = Literal["cuda", "cpu", "virtual"]
"""`virtual` is an emulated accelerator: real host work, modelled device time."""

CriterionKind = Literal["correctness", "target", "mechanism", "diagnosis"]
FailReason = Literal[
    "wrong output",
    "correct but slow",
    "wrong diagnosis",
    "the mechanism is still there",
    "crashed",
    "timed out",
    "tampered",
    "forbidden call",
    "does not compile",
]


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything read from TOML: an unknown key is an error, not ignored."""


class CriterionSpec(_Spec, frozen=True):
    """One thing that a check decides. `target` is defined here and nowhere else; `text` may use
    `{target}`.

    `margin` below 1 asks for non-inferiority: the bound only has to reach that share of the target
    (0.97 for "as fast as"). `label` names it in a few words, next to its figure. `shipped` is the
    shipped code's figure, if it is the same on every machine: partial credit begins there.
    `names_cause`: it judges answers of the diagnosis that name something, not figures.
    """

    id: str
    kind: CriterionKind
    text: str
    target: float | None = None
    direction: Literal["at_least", "at_most"] = "at_least"
    unit: str = ""
    margin: float = 1.0
    label: str = ""
    shipped: float | None = None
    names_cause: bool = False


class DeviceSpec(_Spec, frozen=True):
    """How a lab is measured on one kind of device. `settings` is read by the lab's kind of
    measurement.

    `gpus` is the smallest number of CUDA devices needed; it only matters on `cuda`.
    """

    criteria: list[CriterionSpec]
    settings: dict[str, Any] = {}
    gpus: int = 1

    @property
    def judges_diagnosis(self) -> bool:
        """True if a check judges the answers itself, against what it has recorded."""
        return any(criterion.kind == "diagnosis" for criterion in self.criteria)


class HintSpec(_Spec, frozen=True):
    """A staged hint. With `finding`, it quotes that finding's evidence from the learner's own
    capture as `{evidence}`, once a diagnosis is committed.

    `until` names the criteria and questions that the hint leads to: once the last check found them
    all right, the hint is skipped.
    """

    text: str
    finding: str | None = None
    until: list[str] = []


class QuestionSpec(_Spec, frozen=True):
    """One question of `diagnosis.toml`. `measure` explains in one sentence how to find the answer.

    `choice`: one of `choices`; the right one stands in the solution's `diagnosis.toml`. `rules`
    gives for each wrong choice what a capture would have to show for it, never which one is right.
    `share` (0-1) and `ratio` (a speed-up, at least 1): with `from_capture`, compared with that
    figure of the learner's capture, within `tolerance`, a part of the figure. It is compared with
    Amdahl's law for the share answered to `ceiling_of`, and never fails by it; a prediction with
    `to_reference` it is how many times as fast as the shipped code the reference is. With
    `by_solution`, compared with the solution's number instead: for what can be worked out.
    `number`: any positive number, otherwise as a `ratio`.
    `interval`: a stretch of the learner's capture in which the figure `shows` is at least `least`.
    `text`: words that match one of the regular expressions `accept`, whatever their case. Words
    that `form` does not match are refused before anything is committed.

    `follows` names the choice before it that the question is about: where that is wrong, so is
    this, and nothing more is said of it.
    """

    id: str
    type: Literal["choice", "share", "ratio", "number", "text", "interval"]
    ask: str
    choices: list[str] = []
    rules: dict[str, str] = {}
    measure: str = ""
    from_capture: str | None = None
    by_solution: bool = False
    tolerance: float = 0.1
    shows: str | None = None
    least: float = 0.8
    predicts_gain: bool = False
    to_reference: bool = False
    ceiling_of: str | None = None
    follows: str | None = None
    accept: list[str] = []
    form: str = ""

    @property
    def reads_capture(self) -> bool:
        """True if the answer is checked against the learner's own capture."""
        return bool(self.from_capture or self.shows)

    def accepts(self, words: str) -> bool:
        """Return True if a text matches one of the patterns; without patterns, any does."""
        return not self.accept or any(
            re.search(pattern, words, re.IGNORECASE) for pattern in self.accept
        )


class LabSpec(_Spec, frozen=True):
    """A lab as its author declares it. `measure` names the kind of measurement, `judge` the trusted
    file that knows what is right.

    `aliases` are its older names, which are accepted and never printed. `evidence` is the command
    that shows what a lab is about: a capture, or what the workload prints. `taught` is the finding
    that costs a capture of the shipped workload most; empty if a capture shows none. `cases` of the
    library practise on other programs what the lab teaches. The lab works without its
    `optional_datasets`.
    """

    title: str
    symptom: str
    minutes: int
    skills: list[str]
    measure: str
    entry: str
    files: list[str]
    editable: list[str]
    starter_fails: FailReason
    devices: dict[Device, DeviceSpec]
    taught: str = ""
    datasets: list[str] = []
    optional_datasets: list[str] = []
    hints: list[HintSpec] = []
    questions: list[QuestionSpec] = []
    cases: list[str] = []
    aliases: list[str] = []
    evidence: Literal["profile", "run"] = "profile"
    version: int = 1

    @property
    def asks_for_cause(self) -> bool:
        """True if one of the questions asks for the cause."""
        return any(question.id == "cause" for question in self.questions)


class QuestionText(_Spec, frozen=True):
    """A question's text in another language. Choices are not translated: they are the answers."""

    ask: str = ""
    measure: str = ""


class TextSpec(_Spec, frozen=True):
    """A lab's texts for learners in another language (`lab.de.toml`); what is left out stays in the
    original's.

    `hints` are all of them, in order; `criteria` holds texts by the criteria's ids.
    """

    title: str = ""
    symptom: str = ""
    hints: list[str] = []
    questions: dict[str, QuestionText] = {}
    criteria: dict[str, str] = {}


class StageSpec(_Spec, frozen=True):
    """A stage of the course and the labs in it, in order. `able`: what a learner can do afterwards,
    completing "you can …".
    """

    name: str
    labs: list[str]
    able: str = ""


class CourseSpec(_Spec, frozen=True):
    """The order of the labs."""

    title: str
    stages: list[StageSpec]
