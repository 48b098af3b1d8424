"""The labs of the course: found, loaded and called by their names."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

import msgspec

from bottleneck_lab.catalog.content import content_roots, files_below, hash_files
from bottleneck_lab.catalog.spec import CourseSpec, Device, LabSpec, TextSpec
from bottleneck_lab.catalog.translation import language, translate
from bottleneck_lab.declared import load_declared
from bottleneck_lab.errors import LabError, UsageError


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
    lab = recorded_lab(name)
    return lab.slug if lab else name


def recorded_lab(name: str) -> Lab | None:
    """Return the lab that a record is about; None if it is not here, or cannot be read."""
    try:
        return known_lab(name)
    except LabError:  # a recorded verdict can be shown even if a lab pack is broken
        return None


def criterion_label(lab: str, device: Device, id_: str) -> str:
    """Return a criterion's name for people; its id where the lab gives none, or is not here."""
    declared = recorded_lab(lab)
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
