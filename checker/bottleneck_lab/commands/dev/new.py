"""`lab dev new`: create a lab from an example."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from bottleneck_lab.catalog import content_roots
from bottleneck_lab.commands.ui import say, say_next
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.lab_rules.course import add_to_course, course_names
from bottleneck_lab.workspace.atomic import explained

EXAMPLE = "lab dev new my-lab --course beginner --entry train.py"


class _Example(NamedTuple):
    """A lab to copy: the folder in docs/ that it is in, its name, and its workload's file."""

    folder: str
    lab: str
    entry: str


_EXAMPLES = {
    "speedup": _Example("example", "running-mean", "smooth.py"),
    "http_server": _Example("example-http-server", "price-board", "board.py"),
    "input_pipeline": _Example("example-input-pipeline", "pump-watch", "train.py"),
    "data_parallel": _Example("example-data-parallel", "pump-fleet", "train.py"),
}
"""The folder that `lab dev new` copies, by the kind of lab."""
_PARTS = ("labs", "solutions", "tests/variants", "tests/mutants")


def command(
    slug: Annotated[
        str, typer.Argument(help="The lab's name: lower-case letters, digits and hyphens.")
    ],
    into: Annotated[
        Path,
        typer.Option(
            "--into", metavar="FOLDER", help="The checkout or pack that holds labs/ and solutions/."
        ),
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
            metavar="KIND",
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
    example = _EXAMPLES[kind]
    source = _source(example)
    entry = entry or example.entry
    made = [into / part / slug for part in _PARTS]
    _require_usable(slug, entry, made)
    with explained(into):
        for part, target in zip(_PARTS, list(made), strict=True):
            shutil.copytree(
                source / part / example.lab, target, ignore=shutil.ignore_patterns("__pycache__")
            )
            _rename_entry(target, example.entry, entry)
        made += _copy_datasets(source, into)
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


def _copy_datasets(source: Path, into: Path) -> list[Path]:
    """Copy the generators of an example's data sets that `into` lacks. Returns the copies."""
    copies = []
    for file in sorted((source / "datasets").glob("*.py")):
        target = into / "datasets" / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            copies.append(Path(shutil.copyfile(file, target)))
    return copies


def _source(example: _Example) -> Path:
    """Return the folder of an example in the documentation: the wheel's or the checkout's."""
    package = Path(__file__).resolve().parents[2]
    wheel = package / "content" / example.folder
    return wheel if wheel.is_dir() else package.parents[1] / "docs" / example.folder
