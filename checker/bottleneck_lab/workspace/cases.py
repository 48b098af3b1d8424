"""The library of cases, which of them this learner has drawn, and the answers."""

from __future__ import annotations

import random
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import content_root
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import Case, PastCase
from bottleneck_lab.workspace.atomic import (
    TEMPORARY,
    clear,
    explained,
    publish,
    remove,
    write_bytes,
)
from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import now, read_json, to_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked

PROGRAM = "program.py"
SET_SIZE = 5


class Library(msgspec.Struct, frozen=True):
    """All cases, as `datasets/cases/manifest.json` lists them."""

    version: int
    cases: list[Case]


class DrawnCase(msgspec.Struct, frozen=True):
    """One case that a learner has drawn. Times are ISO 8601 in UTC.

    `past` is None until the case is answered: once, and for good. `limit_s` is 0 without a limit.
    """

    name: str
    folder: str
    at: str
    drawn_s: float
    set: str = ""
    limit_s: float = 0.0
    answers: dict[str, Answer] = {}
    right: dict[str, bool] = {}
    past: PastCase | None = None


def load_library() -> Library:
    """Return the library of the course. Raises UsageError if it has none."""
    manifest = content_root() / "datasets" / "cases" / "manifest.json"
    if not manifest.is_file():
        raise UsageError("This course has no cases.", "`lab list` shows its labs.")
    return read_json(manifest, Library)


def find_case(name: str) -> Case:
    """Return the case called `name`. Raises UsageError if this edition does not have it."""
    for case in load_library().cases:
        if case.name == name:
            return case
    raise UsageError(
        f"This edition has no case '{name}' any more.", "`lab case --skip` draws another."
    )


def traces_of(case: Case) -> list[Path]:
    """Return the files of a case's capture, one a rank."""
    return [content_root() / "datasets" / "cases" / case.name / name for name in case.traces]


def load_drawn() -> list[DrawnCase]:
    """Return the cases that this learner has drawn, oldest first."""
    file = home() / "cases.json"
    return read_json(file, list[DrawnCase]) if file.exists() else []


def open_case() -> DrawnCase | None:
    """Return the case that waits for an answer; None when there is none."""
    drawn = load_drawn()
    return drawn[-1] if drawn and drawn[-1].past is None else None


def case_at(path: Path) -> DrawnCase | None:
    """Return the case whose folder `path` is, or is in; None if it is no case's."""
    path = path.absolute()
    for case in load_drawn():
        if Path(case.folder) in (path, *path.parents):
            return case
    return None


def is_open_at(path: Path) -> bool:
    """Return True if `path` belongs to the open case: its causes are still hidden."""
    case = case_at(path)
    return case is not None and case.past is None


def set_members(name: str, cases: Sequence[Case], version: int) -> list[Case]:
    """Return the cases of a set, in its order: the same for everybody with this edition.

    `name` is a file with one case a line, or a word, which seeds the draw, with the number of
    cases after a colon. Raises UsageError for a file that names an unknown case, or a set that is
    larger than the library.
    """
    by_name = {case.name: case for case in cases}
    file = Path(name).expanduser()
    if file.is_file():
        names = file.read_text(encoding="utf-8").split()
        unknown = [each for each in names if each not in by_name]
        if unknown or not names:
            raise UsageError(
                f"{file} names no case of this library: {', '.join(unknown) or 'it is empty'}.",
                f"The cases are: {', '.join(sorted(by_name))}.",
            )
        return [by_name[each] for each in names]
    if file.suffix or "/" in name:
        raise UsageError(
            f"There is no file {file}.",
            "Name a file with one case a line, or write a word, such as `--set friday`.",
        )
    word, _, number = name.partition(":")
    size = SET_SIZE
    if number:
        size = int(number) if number.isdecimal() else 0
    if not 1 <= size <= len(cases):
        raise UsageError(
            f"'{name}' is not a set: the library has {len(cases)} cases of that level.",
            f"Write a word and how many, such as `--set friday:{min(SET_SIZE, len(cases))}`.",
        )
    ordered = sorted(cases, key=lambda case: case.name)
    return random.Random(f"{word}/{version}").sample(ordered, size)


def draw(
    parent: Path,
    rng: random.Random,
    *,
    level: int | None = None,
    set_name: str = "",
    limit_s: float = 0.0,
) -> DrawnCase:
    """Draw a case that this learner has met least often, and copy it to `parent`/cases/<number>.

    The first one is of the easiest level, unless another is asked for.

    Raises UsageError if the level has no cases, or if every case of the set has been drawn.
    """
    library = load_library()
    cases = [case for case in library.cases if level in (None, case.level)]
    if not cases:
        levels = sorted({case.level for case in library.cases})
        raise UsageError(
            f"There are no cases of level {level}.",
            f"The levels are {', '.join(map(str, levels))}.",
        )

    def change(drawn: list[DrawnCase]) -> list[DrawnCase]:
        if set_name:
            case = _next_of_set(set_name, set_members(set_name, cases, library.version), drawn)
        elif not drawn and level is None:  # nobody begins with the hardest
            easiest = min(case.level for case in cases)
            case = rng.choice([case for case in cases if case.level == easiest])
        else:
            case = rng.choice(_least_met(cases, drawn))
        folder = parent / "cases" / f"{len(drawn) + 1:04}"
        copy_case(case, folder)
        return [
            *drawn,
            DrawnCase(case.name, str(folder), now(), time.time(), set=set_name, limit_s=limit_s),
        ]

    return _update(change)[-1]


def _next_of_set(name: str, members: list[Case], drawn: list[DrawnCase]) -> Case:
    """Return the first member that was not drawn yet. Raises UsageError if all of them were."""
    done = {case.name for case in drawn if case.set == name}
    for case in members:
        if case.name not in done:
            return case
    raise UsageError(
        f"You have drawn every case of the set '{name}'.",
        f"`lab case --progress --set {shlex.quote(name)}` shows how you did.",
    )


def _least_met(cases: list[Case], drawn: list[DrawnCase]) -> list[Case]:
    """Return the cases that were drawn least often."""
    times = Counter(case.name for case in drawn)
    fewest = min(times[case.name] for case in cases)
    return [case for case in cases if times[case.name] == fewest]


def copy_case(case: Case, folder: Path) -> None:
    """Copy program and capture of a case to `folder`, whole, unless it is there already."""
    if folder.is_dir():
        return
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = folder.with_name(f"{TEMPORARY}{folder.name}")
        remove(making)
        making.mkdir()
        traces = traces_of(case)
        for source in (traces[0].with_name(PROGRAM), *traces):
            shutil.copyfile(source, making / source.name)
    publish(making, folder)


def answer(answers: dict[str, Answer], right: dict[str, bool], past: PastCase) -> list[DrawnCase]:
    """Record the answers to the open case; return all that were drawn."""

    def change(drawn: list[DrawnCase]) -> list[DrawnCase]:
        *before, case = drawn
        return [
            *before,
            msgspec.structs.replace(case, answers=answers, right=right, past=past),
        ]

    return _update(change)


def skip() -> None:
    """Put the open case away, as one that was never drawn."""
    _update(lambda drawn: [case for case in drawn if case.past is not None])


def _update(change: Callable[[list[DrawnCase]], list[DrawnCase]]) -> list[DrawnCase]:
    folder = home()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "cases.lock", "lab case"):
        clear(folder, TEMPORARY)
        drawn = change(load_drawn())
        write_bytes(folder / "cases.json", to_json(drawn))
    return drawn
