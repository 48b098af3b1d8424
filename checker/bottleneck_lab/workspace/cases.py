"""The library of cases, which of them this learner has drawn, and the answers."""

from __future__ import annotations

import hashlib
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab, content_root
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import Case, PastCase
from bottleneck_lab.workspace.atomic import TEMPORARY, clear, explained, write_bytes
from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import now, read_json, to_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked

PROGRAM = "program.py"
ANSWER = "lab case -a cause=… -a evidence=… -a line=… -a gain=…"
"""The command that answers a case."""
SET_SIZE = 5


class Library(msgspec.Struct, frozen=True):
    """All cases, as `datasets/cases/manifest.json` lists them."""

    version: int
    cases: list[Case]


class DrawnCase(msgspec.Struct, frozen=True):
    """One case that a learner has drawn. Times are ISO 8601 in UTC.

    `past` is None until the case is answered: once, and for good; it stays None where the case was
    put away. `right` lacks the answers that are not judged. `lab` is the one whose cases it was
    drawn from, if any. `limit_s` is 0 without a limit.
    """

    name: str
    folder: str
    at: str
    drawn_s: float
    set: str = ""
    lab: str = ""
    limit_s: float = 0.0
    answers: dict[str, Answer] = {}
    right: dict[str, bool] = {}
    past: PastCase | None = None
    skipped: bool = False


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


def load_counted(set_name: str = "") -> list[DrawnCase]:
    """Return the cases of a set, or all, that were answered in time, oldest first: a late answer
    does not count.
    """
    return [
        case
        for case in load_drawn()
        if case.past and not case.past.late and set_name in ("", case.set)
    ]


def open_case() -> DrawnCase | None:
    """Return the case that waits for an answer; None when there is none."""
    drawn = load_drawn()
    last = drawn[-1] if drawn else None
    return last if last and last.past is None and not last.skipped else None


def case_at(path: Path) -> DrawnCase | None:
    """Return the case whose folder `path` is, or is in; None if it is no case's."""
    path = path.absolute()
    for case in load_drawn():
        if Path(case.folder) in (path, *path.parents):
            return case
    return None


def is_hidden_at(path: Path) -> bool:
    """Return True if `path` belongs to a case that was not answered: its causes are hidden. Those
    of a case that was put away stay so, since it may be drawn again.
    """
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
    lab: Lab | None = None,
    taught: str = "",
    set_name: str = "",
    limit_s: float = 0.0,
) -> DrawnCase:
    """Draw a case that this learner has answered least often, and of these met least often, and
    copy it to `parent`/cases/<number>.

    The first one is of the easiest level, unless another is asked for. With `lab`, it is one of
    that lab's cases; the first has the cause that is `taught` there, if one of them does.

    Raises UsageError if lab or level has no cases, or if every case of the set has been drawn.
    """
    library = load_library()
    if lab and not lab.spec.cases:
        raise UsageError(f"{lab.slug} has no cases.", "`lab case` draws one of the whole library.")
    of_lab = [case for case in library.cases if lab is None or case.name in lab.spec.cases]
    cases = [case for case in of_lab if level in (None, case.level)]
    if not cases:
        levels = sorted({case.level for case in of_lab})
        raise UsageError(
            f"There are no cases of level {level}.",
            f"The levels are {', '.join(map(str, levels))}.",
        )

    def change(drawn: list[DrawnCase]) -> list[DrawnCase]:
        if set_name:
            case = _next_of_set(set_name, set_members(set_name, cases, library.version), drawn)
        else:
            fitting = _least_met(cases, drawn)
            if lab and not any(case.lab == lab.slug for case in drawn):
                fitting = [case for case in fitting if case.cause == taught] or fitting
            if not drawn and level is None:  # nobody begins with the hardest
                easiest = min(case.level for case in fitting)
                fitting = [case for case in fitting if case.level == easiest]
            case = rng.choice(fitting)
        folder = _unused_folder(parent / "cases", len(drawn) + 1)
        one = DrawnCase(
            case.name,
            str(folder),
            now(),
            time.time(),
            set=set_name,
            lab=lab.slug if lab else "",
            limit_s=limit_s,
        )
        return [*drawn, one]

    # Recorded first: files of a case that no record names would show its causes.
    drawn = _update(change)[-1]
    copy_files(drawn)
    return drawn


def _unused_folder(parent: Path, number: int) -> Path:
    """Return the first folder from this number on that does not exist: whatever stands in one that
    does is another case's, or the learner's.
    """
    while (parent / f"{number:04}").exists():
        number += 1
    return parent / f"{number:04}"


def _next_of_set(name: str, members: list[Case], drawn: list[DrawnCase]) -> Case:
    """Return the first member that was not drawn yet, then the first that was put away. Raises
    UsageError if all of them were answered.
    """
    of_set = [case for case in drawn if case.set == name]
    met, answered = {case.name for case in of_set}, {case.name for case in of_set if case.past}
    for done in (met, answered):
        for case in members:
            if case.name not in done:
                return case
    raise UsageError(
        f"You have answered every case of the set '{name}'.",
        f"`lab case --progress --set {shlex.quote(name)}` shows how you did.",
    )


def _least_met(cases: list[Case], drawn: list[DrawnCase]) -> list[Case]:
    """Return the cases that were answered least often, and of these were drawn least often."""
    times = Counter(case.name for case in drawn)
    answers = Counter(case.name for case in drawn if case.past)
    fewest = min((answers[case.name], times[case.name]) for case in cases)
    return [case for case in cases if (answers[case.name], times[case.name]) == fewest]


def copy_files(drawn: DrawnCase) -> None:
    """Copy program and capture of a case to its folder, each whole, unless they are there already.

    Raises UsageError if the folder holds other files under their names: an answer would be about
    another program than the one that was read.
    """
    case, folder = find_case(drawn.name), Path(drawn.folder)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(home() / "cases.lock", "lab case"):
            clear(folder, TEMPORARY)
            traces = traces_of(case)
            for source in (traces[0].with_name(PROGRAM), *traces):
                target = folder / source.name
                if not target.exists():
                    write_bytes(target, source.read_bytes())
                elif hashlib.sha256(target.read_bytes()).hexdigest() != case.sha256[source.name]:
                    raise UsageError(
                        f"{target} is not the file of the case '{case.title}': it was changed, or"
                        " belongs to another case.",
                        f"Move {folder} away; `lab case` then copies the case's own files there.",
                    )


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
    """Put the open case away: it was met, its causes stay hidden, and it is drawn again last."""

    def change(drawn: list[DrawnCase]) -> list[DrawnCase]:
        *before, case = drawn
        return [*before, msgspec.structs.replace(case, skipped=True)]

    _update(change)


def _update(change: Callable[[list[DrawnCase]], list[DrawnCase]]) -> list[DrawnCase]:
    folder = home()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "cases.lock", "lab case"):
        clear(folder, TEMPORARY)
        drawn = change(load_drawn())
        write_bytes(folder / "cases.json", to_json(drawn))
    return drawn
