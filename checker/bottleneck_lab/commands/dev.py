"""Write labs: create one and prove that it works."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bottleneck_lab.capture.doctor import choose_device, require_torch
from bottleneck_lab.catalog import content_roots, find_lab, load_labs
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import DeviceName, Json, print_json, say, say_next
from bottleneck_lab.course.playing import play as play_through
from bottleneck_lab.course.proving import prove
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.attest import generate_key
from bottleneck_lab.grading.criteria import format_figure, format_limit
from bottleneck_lab.grading.margins import Margin, Part, Row, TargetSafety, judge_targets
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.measure.lab_rules.course import add_to_course, check_course, course_names
from bottleneck_lab.workspace.atomic import explained

_EXAMPLES = {
    "speedup": ("example", "running-mean", "smooth.py"),
    "http_server": ("example-http-server", "price-board", "board.py"),
    "input_pipeline": ("example-input-pipeline", "pump-watch", "train.py"),
    "data_parallel": ("example-data-parallel", "pump-fleet", "train.py"),
}
"""A lab of each kind that `lab dev new` knows: its folder, its name and its workload's file."""
_PARTS = ("labs", "solutions", "tests/variants", "tests/mutants")


def check(
    labs: Annotated[
        list[str] | None,
        typer.Argument(
            help="The labs to check (default: all).", autocompletion=completion.lab_names
        ),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Check the files only; measure nothing.")
    ] = False,
    only: Annotated[
        Part | None, typer.Option("--only", help="Measure only this part of each lab.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Measure only the variant or mutant with this name."),
    ] = None,
    device: DeviceName = None,
    json: Json = False,
) -> None:
    """Prove that labs work.

    The brief, hints and diagnosis exist, with no stray files; a capture of the starter shows what
    the lab teaches; the starter is correct and FAILs for its declared reason; the solution and
    every variant PASS; every mutant FAILs for its declared reason.
    """
    if not static:
        require_torch("`lab dev check`")
    rows = []
    for row in _rows_of(labs, static=static, only=only, name=name, device=device):
        rows.append(row)
        if not json:  # at once, since the next may take a minute
            _show_row(row)
    if json:
        print_json(rows)
    if any(row.problems for row in rows):
        raise typer.Exit(ExitCode.FAIL)


def _rows_of(
    names: list[str] | None,
    *,
    static: bool,
    only: Part | None,
    name: str | None,
    device: str | None,
) -> Iterator[Row]:
    """Yield the results for the labs with these names, or for the course and all its labs."""
    if names:
        labs = [find_lab(lab) for lab in names]
    else:
        labs = list(load_labs().values())
        yield Row("the course", "files", check_course())
    for lab in labs:
        yield Row(lab.slug, "files", check_files(lab))
        if not static:
            yield from prove(lab, device, only, name, progress)


def _show_row(row: Row) -> None:
    if row.problems:
        say(f"✗ {row.lab}: {row.what}", style="red")
    else:
        say(f"✓ {row.lab}: {row.what}")
    for margin in row.proof.margins if row.proof else []:
        say(f"    {_distance(margin)}", style="dim")
    for problem in row.problems:
        say(f"    {problem}")


def _distance(margin: Margin) -> str:
    """Describe a measured criterion: its interval, its target, and how far it is beyond that."""
    value, low, high, bar = (
        format_figure(number, margin.unit)
        for number in (margin.value, margin.low, margin.high, margin.bar)
    )
    between = f" ({low} to {high})" if margin.low != margin.high else ""
    aim = "at least" if margin.at_least else "at most"
    times = f"at least {margin.least:.2f}"
    if margin.least >= 1000:  # a quantity that should be small is zero
        times = "over 1000"
    return (
        f"{margin.criterion} {value}{between}, wanted {aim} {bar}: {times} times as good as"
        " required"
    )


def calibrate(
    files: Annotated[
        list[Path], typer.Argument(help="Outputs of `lab dev check --json`, one per machine.")
    ],
    json: Json = False,
) -> None:
    """Show whether each target is safe on every machine it was tried on.

    A target is safe if all correct work beats it, and all slow work misses it, by at least 10%.
    """
    rows: list[Row] = []
    for file in files:
        try:
            rows += msgspec.json.decode(file.read_bytes(), type=list[Row])
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{file} is not the output of `lab dev check`: {error}.",
                "`lab dev check LAB --json > FILE` writes one.",
            ) from error
    targets = judge_targets(rows)
    if json:
        print_json(targets)
    else:
        for target in targets:
            _show_target(target)
    if any(target.problems for target in targets):
        raise typer.Exit(ExitCode.FAIL)


def _show_target(target: TargetSafety) -> None:
    aim = "at least" if target.at_least else "at most"
    bar = format_limit(target.bar, target.unit)
    about = f"{target.lab} on {target.device}: {target.criterion} {aim} {bar}"
    if target.problems:
        say(f"✗ {about}", style="red")
    else:
        say(f"✓ {about} is safe")
    for side, which in ((target.right, "right"), (target.slow, "slow")):
        for distance in side[:1]:
            say(
                f"    nearest {which} work: {distance.ratio:.2f} times as good as required"
                f" ({distance.work})",
                style="dim",
            )
    for problem in target.problems:
        say(f"    {problem}")
    if target.problems and target.safe_from is not None and target.safe_to is not None:
        low, high = (
            format_figure(number, target.unit) for number in (target.safe_from, target.safe_to)
        )
        say(f"    Safe on these machines: {low} to {high}.")


def play(
    lab: Annotated[
        str, typer.Argument(help="The lab to play.", autocompletion=completion.lab_names)
    ],
    device: DeviceName = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Skip the verdict: measure nothing.")
    ] = False,
    solution: Annotated[
        bool, typer.Option("--solution", help="Then check the solution's files, too.")
    ] = False,
) -> None:
    """Play a lab the way a learner will: brief, blind report, hints, questions, and the verdict on
    the shipped files.

    This runs in a temporary folder, with the solution's diagnosis. Look for anything that gives the
    cause away too early.
    """
    if no_check and solution:
        raise UsageError(
            "--no-check measures nothing, so --solution cannot be checked.",
            "Use only one of the two.",
        )
    require_torch("`lab dev play`")
    played = find_lab(lab)
    status = play_through(
        played,
        choose_device(played, device),
        measure=not no_check,
        solve=solution,
        announce=_announce,
        show=say,
    )
    if status not in (ExitCode.OK, ExitCode.FAIL):  # the shipped files have to fail
        raise typer.Exit(status)


def _announce(command: str) -> None:
    say(f"\n$ {command}", style="bold")
    sys.stdout.flush()  # the command itself writes to the same stream


def new(
    slug: Annotated[
        str, typer.Argument(help="The lab's name: lower-case letters, digits and hyphens.")
    ],
    into: Annotated[
        Path, typer.Option("--into", help="The checkout or pack that holds labs/ and solutions/.")
    ] = Path(),
    course: Annotated[
        str,
        typer.Option("--course", metavar="STAGE", help="Add it to this stage of labs/course.toml."),
    ] = "",
    entry: Annotated[
        str,
        typer.Option(
            "--entry", metavar="FILE", help="Name of the workload's file.", show_default=False
        ),
    ] = "",
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help=(
                "What it measures: speedup, http_server, input_pipeline (a data loader) or"
                " data_parallel (DDP)."
            ),
        ),
    ] = "speedup",
) -> None:
    """Create a lab from an example in docs/authors.md.

    It works as it is; change it piece by piece.
    """
    if kind not in _EXAMPLES:
        raise UsageError(f"No example measures '{kind}'.", f"Choose one of {', '.join(_EXAMPLES)}.")
    folder, like, example_entry = _EXAMPLES[kind]
    example = _example(folder)
    entry = entry or example_entry
    made = [into / part / slug for part in _PARTS]
    _require_usable(slug, entry, made)
    with explained(into):
        for part, target in zip(_PARTS, list(made), strict=True):
            shutil.copytree(
                example / part / like, target, ignore=shutil.ignore_patterns("__pycache__")
            )
            _rename_entry(target, example_entry, entry)
        made += _copy_datasets(example, into)
        if course:
            add_to_course(into / "labs" / "course.toml", course, slug)
    for target in made:
        say(f"made {target}")
    command = f"lab dev check {slug}"
    content = into.resolve()
    if content not in [root.resolve() for root in content_roots()]:
        command = f"BOTTLENECK_LAB_PACKS={shlex.quote(str(content))} {command}"
    if course_names(into, slug):
        say_next(f"`{command}`.")
    else:
        say(
            f"\nNext: add '{slug}' to a stage of {into / 'labs' / 'course.toml'}, then"
            f" `{command}`.",
            style="bold",
        )


def _require_usable(slug: str, entry: str, targets: list[Path]) -> None:
    """Raise UsageError for a name that cannot be used, or a folder that is there already."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise UsageError(
            f"'{slug}' is not a valid lab name.",
            "Use lower-case letters, digits and hyphens: `memory-copies`.",
        )
    if not re.fullmatch(r"[A-Za-z_]\w*\.py", entry):
        raise UsageError(
            f"'{entry}' is not a valid name for a Python file.",
            "Use a name that Python can import, such as `train.py`.",
        )
    for target in targets:
        if target.exists():
            raise UsageError(
                f"{target} already exists.", "Choose another name, or remove that folder first."
            )


def _rename_entry(folder: Path, old: str, entry: str) -> None:
    """Rename the example's workload to `entry`, along with every mention of it."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, entry), encoding="utf-8")
        if path.name == old:
            path.rename(path.with_name(entry))


def _copy_datasets(example: Path, into: Path) -> list[Path]:
    """Copy the generators of an example's data sets that `into` lacks. Returns the copies."""
    copies = []
    for file in sorted((example / "datasets").glob("*.py")):
        target = into / "datasets" / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            copies.append(Path(shutil.copyfile(file, target)))
    return copies


def _example(name: str) -> Path:
    """Return the folder of an example in the documentation: the wheel's or the checkout's."""
    package = Path(__file__).resolve().parents[1]
    wheel = package / "content" / name
    return wheel if wheel.is_dir() else package.parents[1] / "docs" / name


def key(
    file: Annotated[
        Path, typer.Argument(help="Where to write the private key; the public key goes next to it.")
    ],
) -> None:
    """Create a runner's signing key, for `lab check --sign`."""
    public = generate_key(file)
    say(f"private  {file}   (keep it on the runner, readable by nobody else)")
    say(f"public   {public}   (publish it)")


COMMANDS = {
    "check": (check, "lab dev check idle-gpu --static"),
    "calibrate": (calibrate, "lab dev calibrate laptop.json h100.json"),
    "play": (play, "lab dev play my-lab --solution"),
    "new": (new, "lab dev new my-lab --course beginner --entry train.py"),
    "key": (key, "lab dev key runner.pem"),
}
"""Every command of the group, with its example."""
