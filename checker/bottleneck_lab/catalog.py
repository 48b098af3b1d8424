"""The labs and the course, as typed and validated data read from `lab.toml` and `course.toml`."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from bottleneck_lab.declared import load_declared
from bottleneck_lab.errors import LabError, UsageError

PACKS = "bottleneck_lab.labs"
"""The group of entry points by which a distribution brings labs; each names a package whose folder
holds `labs/` and `solutions/`.
"""

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
    (0.97 for "as fast as").
    """

    id: str
    kind: CriterionKind
    text: str
    target: float | None = None
    direction: Literal["at_least", "at_most"] = "at_least"
    unit: str = ""
    margin: float = 1.0


class DeviceSpec(_Spec, frozen=True):
    """How a lab is measured on one kind of device. `settings` is read by the lab's kind of
    measurement.

    `gpus` is the smallest number of CUDA devices needed; it only matters on `cuda`.
    """

    criteria: list[CriterionSpec]
    settings: dict[str, Any] = {}
    gpus: int = 1


class HintSpec(_Spec, frozen=True):
    """A staged hint. With `finding`, it quotes that finding's evidence from the learner's own
    capture as `{evidence}`, once a diagnosis is committed.
    """

    text: str
    finding: str | None = None


class QuestionSpec(_Spec, frozen=True):
    """One question of `diagnosis.toml`. `measure` explains in one sentence how to find the answer.

    `choice`: one of `choices`; the right one stands in the solution's `diagnosis.toml`. `rules`
    gives for each wrong choice what a capture would have to show for it, never which one is right.
    `share` (0-1) and `ratio` (a speed-up, at least 1): with `from_capture`, compared with that
    figure of the learner's capture, within `tolerance` (absolute for a share, relative for a
    ratio). A prediction is checked against Amdahl's law for the share answered to `ceiling_of`;
    with `to_reference` it is how many times as fast as the shipped code the reference is. With
    `by_solution`, compared with the solution's number instead: for what can be worked out.
    `number`: any positive number, otherwise as a `ratio`.
    `interval`: a stretch of the learner's capture in which the figure `shows` is at least `least`.
    `text`: words that match one of the regular expressions `accept`, whatever their case.
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
    accept: list[str] = []

    def accepts(self, words: str) -> bool:
        """Whether a text matches one of the patterns; without patterns, any does."""
        return not self.accept or any(
            re.search(pattern, words, re.IGNORECASE) for pattern in self.accept
        )


class SiblingSpec(_Spec, frozen=True):
    """An unseen case to diagnose at the end of a lab, given only as a capture.

    `program` names a generator of `datasets/siblings.py`, `story` is all that the learner is told,
    `cause` the truth, and `gain_from` the figure of the capture (`grading.diagnosis.figures_of`)
    whose removal bounds the gain.
    """

    program: str
    story: str
    cause: str
    gain_from: str


class LabSpec(_Spec, frozen=True):
    """A lab as its author declares it. `measure` names the kind of measurement, `judge` the trusted
    file that knows what is right.

    `aliases` are its older names, which are accepted and never printed. `evidence` is the command
    that shows what a lab is about: a capture, or what the workload prints. `taught` is the finding
    that costs a capture of the shipped workload most; empty if a capture shows none. The lab works
    without its `optional_datasets`.
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
    siblings: list[SiblingSpec] = []
    aliases: list[str] = []
    evidence: Literal["profile", "run"] = "profile"
    version: int = 1


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


def translate(spec: LabSpec, text: TextSpec) -> LabSpec:
    """The lab with the words of another language."""
    replace = msgspec.structs.replace
    questions = [
        (question, text.questions.get(question.id, QuestionText())) for question in spec.questions
    ]
    return replace(
        spec,
        title=text.title or spec.title,
        symptom=text.symptom or spec.symptom,
        hints=(
            [replace(hint, text=words) for hint, words in zip(spec.hints, text.hints, strict=True)]
            if text.hints
            else spec.hints
        ),
        questions=[
            replace(one, ask=said.ask or one.ask, measure=said.measure or one.measure)
            for one, said in questions
        ],
        devices={
            device: replace(
                found,
                criteria=[
                    replace(one, text=text.criteria.get(one.id, one.text)) for one in found.criteria
                ],
            )
            for device, found in spec.devices.items()
        },
    )


def language() -> str:
    """The language that learners read, as in `README.de.md`: `BOTTLENECK_LAB_LANGUAGE`, empty for
    the originals'.
    """
    asked = os.environ.get("BOTTLENECK_LAB_LANGUAGE", "")
    return asked if re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?", asked) else ""


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


class Lab(msgspec.Struct, frozen=True):
    """A lab's specification and the location of its files."""

    slug: str
    stage: str
    path: Path
    solution: Path
    spec: LabSpec

    @property
    def root(self) -> Path:
        """The content that the lab is part of: this project's own, or a pack's."""
        return self.path.parent.parent

    def brief(self) -> Path:
        """README.md in the learner's language, if there is one."""
        translated = self.path / f"README.{language()}.md"
        return translated if translated.is_file() else self.path / "README.md"

    def content_hash(self) -> str:
        """SHA-256 over the lab's and the solution's files: names and bytes, in sorted order."""
        return hash_files(
            {
                f"{root.parent.name}/{file.relative_to(root)}": file
                for root in (self.path, self.solution)
                for file in files_below(root)
            }
        )

    def sources(self, device: Device) -> list[str]:
        """The editable files that are used on `device`."""
        return list(self.spec.devices[device].settings.get("sources", self.spec.editable))

    def code_hash(self, folder: Path) -> str:
        """SHA-256 over the editable files in `folder`; missing ones are skipped."""
        return hash_files(
            {name: folder / name for name in self.spec.editable if (folder / name).is_file()}
        )


def files_below(root: Path) -> list[Path]:
    """Regular files below `root`, sorted; caches and hidden files left out. A missing folder has
    none.
    """
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
        )
    )


def hash_files(files: dict[str, Path]) -> str:
    """SHA-256 over names and contents, independent of the order in which they were found."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def content_root() -> Path:
    """Where this project's own `labs/`, `solutions/` and `datasets/` are: `BOTTLENECK_LAB_CONTENT`,
    the wheel's copy, or the checkout.

    Raises LabError if none of them exists.
    """
    package = Path(__file__).resolve().parent
    override = os.environ.get("BOTTLENECK_LAB_CONTENT")
    for root in [Path(override)] if override else [package / "content", package.parent.parent]:
        if (root / "labs" / "course.toml").is_file():
            return root
    raise LabError(
        "The labs are missing from this installation.",
        "Reinstall bottleneck-lab, or run it from a complete checkout.",
    )


def content_roots() -> list[Path]:
    """All content: this project's own first, then the folders that `BOTTLENECK_LAB_PACKS` names,
    then what installed packs bring.

    Raises UsageError for a folder without a course.
    """
    named = [
        Path(part).absolute()
        for part in os.environ.get("BOTTLENECK_LAB_PACKS", "").split(os.pathsep)
        if part
    ]
    roots = [content_root(), *named, *_installed_packs()]
    for root in roots:
        if not (root / "labs" / "course.toml").is_file():
            raise UsageError(
                f"{root} holds no labs/course.toml.",
                "See docs/authors.md for what a lab pack consists of.",
            )
    return list(dict.fromkeys(roots))


def _installed_packs() -> list[Path]:
    """The folders of the packages that entry points of the group name, found without running any
    code of theirs but a parent package's.
    """
    found = []
    for entry in sorted(entry_points(group=PACKS), key=lambda entry: entry.name):
        spec = find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise LabError(
                f"The lab pack '{entry.name}' names {entry.value}, which is not a package.",
                f"Correct its entry point in the group {PACKS}, or uninstall the pack.",
            )
        found.append(Path(spec.submodule_search_locations[0]))
    return found


def find_dataset(name: str) -> Path | None:
    """The generator of a data set, in whichever content there is; packs can use each other's. None
    if nobody brings one.
    """
    files = (root / "datasets" / f"{name}.py" for root in content_roots())
    return next((file for file in files if file.is_file()), None)


def load_course() -> CourseSpec:
    """The course of this installation: the packs' stages of a name join its own, others follow."""
    return _joined(_courses())


def _courses() -> dict[Path, CourseSpec]:
    """The course of each content, this project's own first: what finding it costs is paid once."""
    return {
        root: load_declared(root / "labs" / "course.toml", CourseSpec) for root in content_roots()
    }


def _joined(courses: dict[Path, CourseSpec]) -> CourseSpec:
    first, *others = courses.values()
    stages = {stage.name: stage for stage in first.stages}
    for stage in [stage for course in others for stage in course.stages]:
        known = stages.get(stage.name)
        stages[stage.name] = (
            msgspec.structs.replace(known, labs=[*known.labs, *stage.labs]) if known else stage
        )
    return CourseSpec(first.title, list(stages.values()))


@cache
def load_labs() -> dict[str, Lab]:
    """Every lab of the course by its slug, in the course's order. Raises LabError if two packs have
    a lab of one name.
    """
    homes: dict[str, Path] = {}
    courses = _courses()
    for root, slug in [
        (root, slug)
        for root, course in courses.items()
        for stage in course.stages
        for slug in stage.labs
    ]:
        if slug in homes:
            raise LabError(
                f"Both {homes[slug]} and {root} have a lab called '{slug}'.",
                "Remove one of them from BOTTLENECK_LAB_PACKS, or uninstall that pack.",
            )
        homes[slug] = root
    return {
        slug: _load_lab(homes[slug], stage.name, slug)
        for stage in _joined(courses).stages
        for slug in stage.labs
    }


def _load_lab(root: Path, stage: str, slug: str) -> Lab:
    folder = root / "labs" / slug
    spec, words = load_declared(folder / "lab.toml", LabSpec), folder / f"lab.{language()}.toml"
    if words.is_file():
        spec = _translated(spec, words)
    return Lab(slug, stage, folder, root / "solutions" / slug, spec)


def _translated(spec: LabSpec, words: Path) -> LabSpec:
    text = load_declared(words, TextSpec)
    if text.hints and len(text.hints) != len(spec.hints):
        raise LabError(
            f"{words} translates {len(text.hints)} of the lab's {len(spec.hints)} hints.",
            "The lab's author must translate all of them, in order, or none.",
        )
    return translate(spec, text)


def find_lab(name: str) -> Lab:
    """Return the lab called `name`, now or in an earlier version. Raises UsageError that suggests
    the nearest name.
    """
    labs = load_labs()
    if name in labs:
        return labs[name]
    for lab in labs.values():
        if name in lab.spec.aliases:
            return lab
    near = difflib.get_close_matches(name, labs, n=1, cutoff=0.4)
    raise UsageError(
        f"There is no lab called '{name}'.",
        f"Did you mean '{near[0]}'?" if near else "`lab list` shows them all.",
    )
