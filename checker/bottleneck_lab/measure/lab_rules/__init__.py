"""Check that a lab is complete, consistent, and without unused files before it is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bottleneck_lab.catalog import Lab, files_below, find_dataset
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.lab_rules import code, declarations, spoilers
from bottleneck_lab.measure.lab_rules.mutants import misdeclared
from bottleneck_lab.measure.measured_key import KEY

_TRANSLATION = re.compile(r"(README|lab)\.[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?\.(md|toml)")


def check_files(lab: Lab) -> list[str]:
    """Return everything wrong with the lab's files, one sentence each."""
    rules = (
        _missing,
        _inconsistent,
        _of_its_kind,
        declarations.criteria,
        declarations.hints,
        declarations.taught,
        declarations.questions,
        declarations.cases,
        declarations.translations,
        spoilers.spoilers,
        _stray,
        code.workloads,
        code.judge,
        code.distinct,
        misdeclared,
    )
    return [sentence for rule in rules for sentence in rule(lab)]


def _missing(lab: Lab) -> Iterator[str]:
    wanted = [lab.path / name for name in ("README.md", *_trusted(lab), *lab.spec.files)]
    wanted += [lab.solution / name for name in ("README.md", *lab.spec.editable)]
    if lab.spec.questions:
        wanted += [lab.path / "diagnosis.toml", lab.solution / "diagnosis.toml"]
    for path in wanted:
        if not path.is_file():
            yield f"{path.relative_to(lab.root)} is missing."
        elif not path.read_bytes().strip():
            yield f"{path.relative_to(lab.root)} is empty."
    for name in (*lab.spec.datasets, *lab.spec.optional_datasets):
        if find_dataset(name) is None:
            yield f"{declarations.at(lab, 'datasets')}: no datasets/{name}.py makes the data set."


def _inconsistent(lab: Lab) -> Iterator[str]:
    spec = lab.spec
    yield from (
        f"{declarations.at(lab, 'editable')}: {name} is editable but not among the files."
        for name in spec.editable
        if name not in spec.files
    )
    if spec.entry not in spec.files:
        yield f"{declarations.at(lab, 'entry')}: {spec.entry} is not among the files."


def _of_its_kind(lab: Lab) -> Iterator[str]:
    try:
        yield from kind_of(lab).problems(lab)
    except LabError as error:
        yield f"{declarations.at(lab, 'measure')}: {error.message} {error.remedy}"


def _trusted(lab: Lab) -> list[str]:
    """Return the lab's trusted files; none of an unknown kind, which another rule reports."""
    try:
        return kind_of(lab).trusted_files(lab)
    except LabError:
        return []


def _stray(lab: Lab) -> Iterator[str]:
    """Find files that neither the lab nor its judge names."""
    named = {
        "README.md",
        "lab.toml",
        "judge.py",
        "reference.py",
        KEY,
        "diagnosis.toml",
        *_trusted(lab),
        *lab.spec.files,
    }
    texts = [
        path.read_text(encoding="utf-8")
        for path in (lab.path / "lab.toml", lab.path / "judge.py")
        if path.is_file()
    ]
    for path in files_below(lab.path):
        name = str(path.relative_to(lab.path))
        if (
            name not in named
            and not _TRANSLATION.fullmatch(name)
            and not any(path.stem in text for text in texts)
        ):
            yield f"labs/{lab.slug}/{name} is named neither in lab.toml nor in judge.py."
    for path in files_below(lab.solution):
        name = str(path.relative_to(lab.solution))
        if name not in {"README.md", "diagnosis.toml", *lab.spec.editable}:
            yield f"solutions/{lab.slug}/{name} is not an editable file of the lab."
