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
    figure of the learner's capture, within `tolerance`, a part of the figure. A prediction is
    compared with Amdahl's law for the share answered to `ceiling_of`, and never fails by it; with
    `to_reference` it is how many times as fast as the shipped code the reference is. With
    `by_solution`, compared with the solution's number instead: for what can be worked out.
    `number`: any positive number, otherwise as a `ratio`.
    `interval`: a stretch of the learner's capture in which the figure `shows` is at least `least`.
    `text`: words that match one of the regular expressions `accept`, whatever their case.

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

    def accepts(self, words: str) -> bool:
        """Return True if a text matches one of the patterns; without patterns, any does."""
        return not self.accept or any(
            re.search(pattern, words, re.IGNORECASE) for pattern in self.accept
        )


class SiblingSpec(_Spec, frozen=True):
    """An unseen case to diagnose at the end of a lab, given only as a capture.

    `case` names one of the library of cases: `story`, `cause` and `gain` are then the case's.
    Otherwise `program` names a generator of `datasets/siblings.py`, `story` is all that the learner
    is told, `cause` the truth, and `gain_from` the figure of the capture
    (`grading.diagnosis.figures_of`) whose removal bounds the gain.
    """

    program: str = ""
    story: str = ""
    cause: str = ""
    gain_from: str = ""
    case: str = ""
    gain: float = 0.0


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
    """Return the lab with the words of another language; what `text` leaves out stays."""
    replace = msgspec.structs.replace
    hints = spec.hints
    if text.hints:
        hints = [replace(hint, text=words) for hint, words in zip(hints, text.hints, strict=True)]
    questions = []
    for question in spec.questions:
        words = text.questions.get(question.id, QuestionText())
        ask, measure = words.ask or question.ask, words.measure or question.measure
        questions.append(replace(question, ask=ask, measure=measure))
    devices = {}
    for name, device in spec.devices.items():
        criteria = [
            replace(criterion, text=text.criteria.get(criterion.id, criterion.text))
            for criterion in device.criteria
        ]
        devices[name] = replace(device, criteria=criteria)
    return replace(
        spec,
        title=text.title or spec.title,
        symptom=text.symptom or spec.symptom,
        hints=hints,
        questions=questions,
        devices=devices,
    )


def language() -> str:
    """Return the language that learners read, as in `README.de.md`: `BOTTLENECK_LAB_LANGUAGE`.

    Empty for the originals' language, and for a value that is no language code: the value becomes
    part of a file name.
    """
    wanted = os.environ.get("BOTTLENECK_LAB_LANGUAGE", "")
    return wanted if re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?", wanted) else ""


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
        """Return the content that the lab is part of: this project's own, or a pack's."""
        return self.path.parent.parent

    def brief(self) -> Path:
        """Return README.md in the learner's language, if there is one."""
        translated = self.path / f"README.{language()}.md"
        return translated if translated.is_file() else self.path / "README.md"

    def content_hash(self) -> str:
        """Return the SHA-256 over the lab's and the solution's files: names and bytes, sorted."""
        files = {}
        for root in (self.path, self.solution):
            # `labs/train.py` and `solutions/train.py`: the slug is left out, so that renaming a
            # folder does not change what it holds.
            for file in files_below(root):
                files[f"{root.parent.name}/{file.relative_to(root)}"] = file
        return hash_files(files)

    def sources(self, device: Device) -> list[str]:
        """Return the editable files that are used on `device`."""
        return list(self.spec.devices[device].settings.get("sources", self.spec.editable))

    def predicts_memory(self, device: Device) -> bool:
        """Return True if the predicted gain is a factor in peak memory, not in time."""
        spec = self.spec.devices.get(device)
        return spec is not None and spec.settings.get("gain") == "memory"

    def code_files(self, folder: Path) -> dict[str, Path]:
        """Return the editable files in `folder`, by name; missing ones are skipped."""
        files = {name: folder / name for name in self.spec.editable}
        return {name: file for name, file in files.items() if file.is_file()}

    def code_hash(self, folder: Path) -> str:
        """Return the SHA-256 over the editable files in `folder`."""
        return hash_files(self.code_files(folder))

    def code_of(self, folder: Path) -> dict[str, bytes]:
        """Return what the editable files in `folder` hold, by name."""
        return {name: file.read_bytes() for name, file in self.code_files(folder).items()}


def files_below(root: Path) -> list[Path]:
    """Return the regular files below `root`, sorted, without caches and hidden files.

    A missing folder has none.
    """
    files = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden:
            files.append(path)
    return files


def hash_files(files: dict[str, Path]) -> str:
    """Return the SHA-256 over names and contents, whatever order the files are given in."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        data = path.read_bytes()
        # The length keeps two files apart: without it, bytes could move from one to the next.
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def content_root() -> Path:
    """Return the folder of this project's own `labs/`, `solutions/` and `datasets/`.

    That is `BOTTLENECK_LAB_CONTENT`, the wheel's copy, or the checkout. Raises LabError if none of
    them exists.
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
    """Return the folders of all content, each once.

    This project's own comes first, then the folders that `BOTTLENECK_LAB_PACKS` names, then those
    of the packages that entry points of the group `PACKS` name. Raises UsageError for a folder
    without a course, LabError for an entry point that names no package.
    """
    named = os.environ.get("BOTTLENECK_LAB_PACKS", "").split(os.pathsep)
    roots = [content_root(), *(Path(part).absolute() for part in named if part)]
    for entry in sorted(entry_points(group=PACKS), key=lambda entry: entry.name):
        # `find_spec` runs no code of the pack except that of a parent package.
        spec = find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise LabError(
                f"The lab pack '{entry.name}' names {entry.value}, which is not a package.",
                f"Correct its entry point in the group {PACKS}, or uninstall the pack.",
            )
        roots.append(Path(spec.submodule_search_locations[0]))
    for root in roots:
        if not (root / "labs" / "course.toml").is_file():
            raise UsageError(
                f"{root} holds no labs/course.toml.",
                "See docs/authors.md for what a lab pack consists of.",
            )
    return list(dict.fromkeys(roots))


def find_dataset(name: str) -> Path | None:
    """Return the generator of a data set; None if no content brings one.

    Packs can use each other's.
    """
    files = (root / "datasets" / f"{name}.py" for root in content_roots())
    return next((file for file in files if file.is_file()), None)


def load_course() -> CourseSpec:
    """Return the course of this installation.

    A pack's stage joins the stage of the same name; others follow.
    """
    return _join_courses(_read_courses())


def _read_courses() -> dict[Path, CourseSpec]:
    return {
        root: load_declared(root / "labs" / "course.toml", CourseSpec) for root in content_roots()
    }


def _join_courses(courses: dict[Path, CourseSpec]) -> CourseSpec:
    first, *others = courses.values()
    stages = {stage.name: stage for stage in first.stages}
    for course in others:
        for stage in course.stages:
            if stage.name in stages:
                known = stages[stage.name]
                stages[stage.name] = msgspec.structs.replace(known, labs=[*known.labs, *stage.labs])
            else:
                stages[stage.name] = stage
    return CourseSpec(first.title, list(stages.values()))


@cache
def load_labs() -> dict[str, Lab]:
    """Return every lab of the course by its slug, in the course's order.

    Raises LabError if two labs share a name: the present one or an older one.
    """
    courses = _read_courses()
    homes: dict[str, Path] = {}
    for root, course in courses.items():
        for stage in course.stages:
            for slug in stage.labs:
                if slug in homes:
                    raise LabError(
                        f"Both {homes[slug]} and {root} have a lab called '{slug}'.",
                        "Remove one of them from BOTTLENECK_LAB_PACKS, or uninstall that pack.",
                    )
                homes[slug] = root
    labs = {
        slug: _load_lab(homes[slug], stage.name, slug)
        for stage in _join_courses(courses).stages
        for slug in stage.labs
    }
    _require_distinct_aliases(labs)
    return labs


def _load_lab(root: Path, stage: str, slug: str) -> Lab:
    folder = root / "labs" / slug
    spec = load_declared(folder / "lab.toml", LabSpec)
    words = folder / f"lab.{language()}.toml"
    if words.is_file():
        text = load_declared(words, TextSpec)
        if text.hints and len(text.hints) != len(spec.hints):
            raise LabError(
                f"{words} translates {len(text.hints)} of the lab's {len(spec.hints)} hints.",
                "The lab's author must translate all of them, in order, or none.",
            )
        spec = translate(spec, text)
    return Lab(slug, stage, folder, root / "solutions" / slug, spec)


def _require_distinct_aliases(labs: dict[str, Lab]) -> None:
    """Raise LabError if an older name of one lab is also a name of another.

    Whatever was recorded under that name would go to whichever of the two is loaded first.
    """
    owners = dict(labs)
    for lab in labs.values():
        for alias in lab.spec.aliases:
            other = owners.setdefault(alias, lab)
            if other is not lab:
                raise LabError(
                    f"{lab.path / 'lab.toml'} has the alias '{alias}', which also names the lab in"
                    f" {other.path}.",
                    "Remove the alias from one of them; if one is a pack's, uninstall that pack.",
                )


def known_lab(name: str) -> Lab | None:
    """Return the lab called `name`, now or in an earlier version; None if there is none."""
    labs = load_labs()
    if name in labs:
        return labs[name]
    return next((lab for lab in labs.values() if name in lab.spec.aliases), None)


def current_name(name: str) -> str:
    """Return the present name of a lab that was recorded as `name`.

    A lab that this installation does not have keeps the name it was recorded under.
    """
    try:
        lab = known_lab(name)
    except LabError:  # a recorded verdict can be shown even if a lab pack is broken
        return name
    return lab.slug if lab else name


def criterion_label(lab: str, device: Device, id_: str) -> str:
    """Return a criterion's name for people; its id where the lab gives none, or is not here."""
    try:
        declared = known_lab(lab)
    except LabError:
        declared = None
    spec = declared.spec.devices.get(device) if declared else None
    criteria = spec.criteria if spec else []
    return next((each.label for each in criteria if each.id == id_ and each.label), id_)


def find_lab(name: str) -> Lab:
    """Return the lab called `name`, now or in an earlier version.

    Raises UsageError that suggests the nearest present name.
    """
    lab = known_lab(name)
    if lab:
        return lab
    near = difflib.get_close_matches(name, load_labs(), n=1, cutoff=0.4)
    raise UsageError(
        f"There is no lab called '{name}'.",
        f"Did you mean '{near[0]}'?" if near else "`lab list` shows them all.",
    )
