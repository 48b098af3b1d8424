"""A course.toml: which labs it names, which it forgets, and a new lab written into it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from bottleneck_lab.catalog import CourseSpec, content_roots, load_labs
from bottleneck_lab.declared import load_declared
from bottleneck_lab.errors import LabError, UsageError


def check_course() -> list[str]:
    """Return a sentence for each folder of labs or solutions that the course does not name."""
    known = load_labs()
    return [
        f"{root / parent / folder.name} is not in any stage of labs/course.toml."
        for root in content_roots()
        for parent in ("labs", "solutions")
        for folder in sorted((root / parent).iterdir())
        if folder.is_dir() and folder.name not in known and not folder.name.startswith((".", "_"))
    ]


def course_names(root: Path, slug: str) -> bool:
    """Return True if `root`'s course names the lab `slug`. Raises no error for a course that cannot
    be read: it names nothing.
    """
    try:
        course = tomllib.loads((root / "labs" / "course.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return False
    return any(slug in stage.get("labs", []) for stage in course.get("stages", []))


def add_to_course(file: Path, stage: str, slug: str) -> None:
    """Write `slug` as the last lab of a stage into a course.toml; the file, or the stage, is made
    where there is none.

    Raises UsageError if the file is written in a way that a name cannot be put into; it is then as
    it was.
    """
    # The text is changed, not written anew from its tables: an author's comments stay.
    before = file.read_text(encoding="utf-8") if file.is_file() else 'title = "Labs"\n'
    listed = re.compile(
        rf'(\[\[stages\]\]\s*\nname = "{re.escape(stage)}"\s*\nlabs = \[)([^\]]*?)(,?\s*\])'
    )
    if listed.search(before):
        text = listed.sub(
            lambda match: f'{match[1]}{match[2]}{", " if match[2].strip() else ""}"{slug}"]',
            before,
            count=1,
        )
    else:
        text = f'{before.rstrip()}\n\n[[stages]]\nname = "{stage}"\nlabs = ["{slug}"]\n'
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    try:
        stages = load_declared(file, CourseSpec).stages
    except LabError:
        stages = []
    if [one.name for one in stages if slug in one.labs] != [stage]:
        file.write_text(before, encoding="utf-8")
        raise UsageError(
            f"{file} is written in a way that `lab dev new` cannot extend.",
            f"Add '{slug}' to the stage by hand.",
        )
