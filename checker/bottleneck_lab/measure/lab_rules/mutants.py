"""A lab's wrong fixes: each is the solution with one property of the brief broken, for which a
check must fail it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from bottleneck_lab.catalog import Device, FailReason, Lab
from bottleneck_lab.declared import load_declared
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.conclusion import NOT_YOURS
from bottleneck_lab.grading.verdict import Verdict


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change to a file of the solution: `old`, which must occur exactly once, becomes `new`."""

    file: str
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wrong fix: the property it breaks, and how a check must fail it.

    `base` is what it changes: the solution, or the shipped starter where a wrong fix leaves most of
    that as it is. `files` maps a file of the lab to the one beside `mutants.toml` that replaces it;
    then the `edits` are made; then the code in `append` is put at a file's end. `judged_by` says in
    the documentation what judges the property, where the criterion's text does not. `devices` is
    needed only where they are fewer than those that use a changed file.
    """

    id: str
    breaks: str
    fails_with: FailReason
    criterion: str | None = None
    base: Literal["solution", "starter"] = "solution"
    judged_by: str = ""
    files: dict[str, str] = {}
    edits: list[Edit] = []
    append: dict[str, str] = {}
    devices: list[Device] = []

    @property
    def changed(self) -> list[str]:
        """Return the lab's files that differ from those of its base."""
        return list(dict.fromkeys([*self.files, *(edit.file for edit in self.edits), *self.append]))


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: list[Mutant]


def mutants_folder(lab: Lab) -> Path:
    """Return the folder that declares the lab's mutants; an installed wheel does not have it."""
    return lab.root / "tests" / "mutants" / lab.slug


def load_mutants(lab: Lab, device: Device | None = None) -> list[Mutant]:
    """Return the lab's mutants, or those that apply to `device`; none if no file declares any.

    Raises LabError for a file that is not as docs/authors.md describes it.
    """
    path = mutants_folder(lab) / "mutants.toml"
    if not path.is_file():
        return []
    mutants = load_declared(path, _Declared).mutant
    return [mutant for mutant in mutants if device is None or device in measured_on(lab, mutant)]


def measured_on(lab: Lab, mutant: Mutant) -> list[Device]:
    """Return the devices on which a check must fail the mutant.

    Those are the ones it names, or all that use a file it changes.
    """
    if mutant.devices:
        return mutant.devices
    return [
        device
        for device in lab.spec.devices
        if {*lab.sources(device), "diagnosis.toml"} & {*mutant.changed}
    ]


def write_mutant(lab: Lab, mutant: Mutant, folder: Path) -> None:
    """Write the files that the mutant changes to `folder`.

    Raises LabError for an edit that does not apply.
    """
    # Whole files first, then edits of what the base has, then what is appended.
    beside = mutants_folder(lab)
    base = lab.path if mutant.base == "starter" else lab.solution
    texts = {name: _read(base / name) for name in mutant.changed if name not in mutant.files}
    texts |= {name: _read(beside / source) for name, source in mutant.files.items()}
    for edit in mutant.edits:
        # Once, or the mutant might break another line than its author meant.
        count = texts[edit.file].count(edit.old)
        if count != 1:
            raise LabError(
                f"Mutant {mutant.id}: this text occurs {count} times in {edit.file}, not once:"
                f" {edit.old.strip()!r}",
                f"Correct the edit in {beside / 'mutants.toml'}.",
            )
        texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
    for name, code in mutant.append.items():
        texts[name] += f"\n\n{code}"
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LabError(
            f"{path} cannot be read: {error.strerror}.", "Correct the mutant that needs it."
        ) from error


def mutant_problems(mutant: Mutant, verdict: Verdict) -> list[str]:
    """Return the faults of the judge, given its verdict on the mutant."""
    # Failing is not enough: for another reason, the judge would have missed what the mutant breaks.
    reason = f" ({verdict.reason})" if verdict.reason else ""
    outcome = f"but: {verdict.outcome}{reason}: {verdict.summary.removeprefix(NOT_YOURS)}"
    if verdict.outcome != "FAIL" or verdict.reason != mutant.fails_with:
        return [f"It should FAIL ({mutant.fails_with}), {outcome}"]
    failed = {result.id for result in verdict.criteria if result.holds is False}
    if mutant.criterion and mutant.criterion not in failed:
        return [f"It should fail {mutant.criterion}, {outcome}"]
    return []


def misdeclared(lab: Lab) -> Iterator[str]:
    """Yield the faults of the lab's mutants, before any is measured."""
    try:
        mutants = load_mutants(lab)
    except LabError as error:
        yield error.message
        return
    for name, count in Counter(mutant.id for mutant in mutants).items():
        if count > 1:
            yield f"Two mutants are called {name}."
    for mutant in mutants:
        yield from (f"Mutant {mutant.id} {problem}" for problem in _misdeclared(lab, mutant))
        with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
            try:
                write_mutant(lab, mutant, Path(scratch))
            except LabError as error:
                yield error.message


def _misdeclared(lab: Lab, mutant: Mutant) -> Iterator[str]:
    if not mutant.changed:
        yield "changes nothing."
    for name in sorted({*mutant.changed} - {*lab.spec.editable, "diagnosis.toml"}):
        yield f"changes {name}, which is not an editable file of the lab."
    for name in sorted({*mutant.devices} - {*lab.spec.devices}):
        yield f"names {name}, which is not a device of the lab."
    criteria = {question.id for question in lab.spec.questions}
    for device in lab.spec.devices.values():
        criteria |= {criterion.id for criterion in device.criteria}
    if mutant.criterion and mutant.criterion not in criteria:
        yield f"names {mutant.criterion}, which is not a criterion of the lab."
