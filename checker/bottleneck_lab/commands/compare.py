"""`lab compare`: two versions side by side, each in one capture or in several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bottleneck_lab.analysis.comparing.compare import compare
from bottleneck_lab.analysis.comparing.comparison import Comparison, without_judgement
from bottleneck_lab.analysis.comparing.observation import Observation, observe
from bottleneck_lab.analysis.summary import Analysis, analyse
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.commands.where import say_next_step
from bottleneck_lab.course.captures import (
    circumstances,
    code_of,
    is_of_memory,
    lines_named,
    measures_others,
    outdated,
    read_timeline,
)
from bottleneck_lab.course.limits import missed_limits
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.comparison_words import describe_headline
from bottleneck_lab.report.console.comparison import render_comparison
from bottleneck_lab.report.page.html import render_comparison_html
from bottleneck_lab.trace import Timeline, load
from bottleneck_lab.trace.fast.allocator import keep_freed
from bottleneck_lab.workspace.atomic import explained, write_bytes
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import (
    capture_number,
    captures_called,
    code_captured,
    find_capture,
    readable,
    with_timeline,
)
from bottleneck_lab.workspace.cases import case_at
from bottleneck_lab.workspace.commitments import is_blind_at, load_record
from bottleneck_lab.workspace.folder import workspace_above

EXAMPLE = "lab compare before.json.gz after.json.gz --html changes.html"
DEFAULT_PAGE = "comparison.html"


def command(
    before: Annotated[
        str | None,
        typer.Argument(
            help=(
                "The old version: a capture's number, a trace, a capture folder, or a folder of"
                " repeated captures (default: the latest from before the last edit)."
            ),
            autocompletion=completion.capture_numbers,
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Argument(
            help="The new version, in the same forms (default: the latest here).",
            autocompletion=completion.capture_numbers,
        ),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(
            "--control",
            metavar="FOLDER",
            help="A folder of repeat captures of the old version, recorded in the same rounds.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help=(
                "Write an HTML page with both timelines, aligned, to this file or to"
                f" {DEFAULT_PAGE}."
            ),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare two versions: better, worse, the same or cannot tell, for the whole step and for each
    part of it.

    With one capture of each, the steps are compared. Repeated captures, recorded alternately, also
    show run-to-run variation. With --control, a difference that the old version also shows against
    itself is not counted as a change.
    """
    keep_freed()
    sides = _sides(before, after)
    again = _control(control, sides)
    if html:
        target = html.expanduser().absolute()
        headline, _ = describe_headline(_write(sides, again, target))
        for line in headline:
            say(f"{line}.", style="bold")
        say(f"The comparison is in {target}")
        return
    observed = [[*map(_observed, side)] for side in (*sides, again)]
    comparison = _compared(sides, *observed)
    if json:
        print_json({"before": _name(sides[0]), "after": _name(sides[1]), "comparison": comparison})
        return
    pair = "; ".join(f"{when} {_made(side)}" for when, side in zip(_WHEN, sides, strict=True))
    say(f"{pair}.{_why_these(sides) if before is None else ''}", hang=2)
    stale = outdated(sides[1][0]) if after is None else ""
    if stale:
        say(stale, style="yellow", hang=2)
    render_comparison(comparison, console())
    say("\n`--html` draws both timelines on a page, and lists every change.")
    workspace = workspace_above(sides[1][0].absolute())
    if workspace:
        missed = [] if stale else missed_limits(workspace, observed[1][0].summary)
        say_next_step(workspace, load_attempts(workspace), load_record(workspace), missed)


_WHEN = ("Before:", "after:")

Side = list[Path]
"""The captures of one version: files or folders, in the order they were made."""


def _sides(before: str | None, after: str | None) -> tuple[Side, Side]:
    """Return the versions to compare.

    Raises UsageError if a side does not exist, both are the same, or they have different numbers of
    captures.
    """
    new = _find(after)
    old = _find(before) if before else [_previous(new[0])]
    sides = old, new
    if sides[0] == sides[1]:
        message = "These are the same capture."
        if before is None:
            message = f"{_name(sides[0])} is the only capture with a timeline here."
        remedy = "Once the code is changed, `lab profile` makes another."
        if before is None and after is None and outdated(new[0]):
            remedy = "The code has changed since: run `lab profile`."
        raise UsageError(message, remedy)
    cases = [case_at(side[0]) for side in sides]
    if all(cases) and cases[0] != cases[1]:
        raise UsageError(
            f"{_name(old)} and {_name(new)} are cases, and different programs: neither is a version"
            " of the other.",
            "`lab report` reads one of them.",
        )
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{len(side)} in {_name(side)}" for side in sides)
        raise UsageError(
            f"Repeated captures are compared in pairs, but there are {counts}.",
            "Record both versions equally often, alternating between them.",
        )
    return sides


def _control(folder: Path | None, sides: tuple[Side, Side]) -> Side:
    """Return the captures of the control, if there is one.

    Raises UsageError if there are not as many as of each version.
    """
    if folder is None:
        return []
    again = _repeated(folder.expanduser())
    if len(again) == len(sides[0]) > 1:
        return again
    raise UsageError(
        f"A control needs as many captures as each version, but there are {len(again)} in"
        f" {folder.name} and {len(sides[0])} in {_name(sides[0])}.",
        "Record the old version twice in every round: `lab profile --out again/01 -- …`.",
    )


def _compared(
    sides: tuple[Side, Side],
    before: list[Observation],
    after: list[Observation],
    again: list[Observation],
) -> Comparison:
    """Return the comparison; without causes while they are still the learner's to find."""
    of_memory = all(is_of_memory(side[0]) for side in sides)
    workspace = workspace_above(sides[1][0].absolute())
    comparison = msgspec.structs.replace(
        compare(before, after, again),
        of_memory=of_memory,
        check_ceiling=workspace and check_ceiling(workspace.lab, workspace.info.device),
    )
    if any(measures_others(side[0]) for side in sides):
        comparison = without_judgement(comparison)
    if not _is_blind(sides):
        return comparison
    changes = [change for change in comparison.changes if change.group != "gap"]
    return msgspec.structs.replace(comparison, changes=changes, findings_gone={}, findings_new={})


def _observed(path: Path, analysis: Analysis | None = None) -> Observation:
    """Return what a comparison needs of a capture, which may have been analysed before."""
    return observe(analysis or _timeline(path), lambda summary: code_of(path, lines_named(summary)))


def _timeline(path: Path) -> Timeline:
    """Return a capture; that of `lab profile --stack` with the lines of its second run."""
    return read_timeline(path) if (path / "capture.json").is_file() else load(path)


def _is_blind(sides: tuple[Side, Side]) -> bool:
    return any(is_blind_at(path) for side in sides for path in side)


def _find(name: str | None) -> Side:
    path = Path(name or "").expanduser()
    if name and not name.isdecimal() and (path.suffix or path.exists()):
        return _repeated(path) or [path]
    return [_numbered(name)]


def _previous(new: Path) -> Path:
    """Return what a capture is compared with unless another is named: the latest one before it of
    other code, else the latest before it, else itself.
    """
    number, code = capture_number(new), code_captured(new)
    earlier = [path for path in with_timeline(new.parent) if capture_number(path) < number]
    of_other_code = [path for path in earlier if code_captured(path) != code]
    return [new, *earlier, *of_other_code][-1]


def _why_these(sides: tuple[Side, Side]) -> str:
    """Return why these captures are compared where none was named, as sentences after a space; ""
    outside labs.
    """
    old, new = (side[0] for side in sides)
    if not code_captured(new):
        return ""
    reason = "the two latest captures, of the same code"
    if code_captured(old) != code_captured(new):
        reason = "the latest capture from before the last edit, and the latest one"
    first = with_timeline(old.parent)[0]
    other = "" if first == old else f" `lab compare {capture_number(first)}` starts from the first."
    return f" These are {reason}.{other}"


def _repeated(path: Path) -> Side:
    """Return the captures in a folder of captures, oldest first; none for a single capture."""
    if not path.is_dir() or (path / "capture.json").is_file():
        return []
    return sorted(folder.parent for folder in path.glob("*/capture.json"))


def _numbered(name: str | None) -> Path:
    """Return a capture of the current lab, or of `lab profile -- …` in this folder; the latest if
    none is named.
    """
    try:
        workspace = here()
    except UsageError:
        matches = captures_called(name, Path.cwd() / "captures")
        if not matches:
            raise
        return matches[-1]
    capture = find_capture(workspace, name)
    if capture not in readable(workspace):
        raise UsageError(
            f"{capture.name} holds no timeline to compare.",
            "`lab report` reads it; `lab profile` makes a capture that has one.",
        )
    return capture


def _name(side: Side) -> str:
    """Return a side's name: the capture, or the folder of repeated captures."""
    return side[0].name if len(side) == 1 else side[0].parent.name


def _made(side: Side) -> str:
    """Return a side's name, with the time at which its first capture was made where that is
    known.
    """
    described = (side[0] / "capture.json").is_file()
    made = circumstances(side[0]).get("made") if described else None
    return f"{_name(side)}, made {made}" if made else _name(side)


def _write(sides: tuple[Side, Side], again: Side, target: Path) -> Comparison:
    """Write the page about both, and return the comparison; of repeated captures the page draws the
    first pair.
    """
    first, observed = [], []
    for side in sides:
        first.append(analyse(_timeline(side[0])))
        observed.append([_observed(side[0], first[-1]), *map(_observed, side[1:])])
    names, blind = (_name(sides[0]), _name(sides[1])), _is_blind(sides)
    before, after = observed
    comparison = _compared(sides, before, after, [*map(_observed, again)])
    page = render_comparison_html(comparison, *first, names=names, blind=blind)
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page.encode())
    return comparison
