"""Write labs: create one, and prove that it works."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bottleneck_lab.capture.doctor import choose_device
from bottleneck_lab.catalog import Device, Lab, find_lab, load_labs
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import DeviceName, Json, print_json, say
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.attest import generate_key
from bottleneck_lab.grading.criteria import NOT_YOURS
from bottleneck_lab.grading.diagnosis import for_check, grade_diagnosis
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.kinds.finding.answers import measured_answers
from bottleneck_lab.measure.lab_rules import check_course, check_files, course_names, variants
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.workspace.atomic import explained
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers, with_answer
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.mutants import load_mutants, mutant_problems, write_mutant

Part = Literal["starter", "solution", "variants", "mutants"]
"""What of a lab is measured."""

_EXAMPLE = "running-mean"
_PARTS = ("labs", "solutions", "tests/variants", "tests/mutants")


def check(
    labs: Annotated[
        list[str] | None,
        typer.Argument(help="The labs to check; by default, all.", autocompletion=completion.lab_names),
    ] = None,
    static: Annotated[bool, typer.Option("--static", help="Check the files only; measure nothing.")] = False,
    only: Annotated[Part | None, typer.Option("--only", help="Measure only this part of each lab.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Measure only the variant or mutant of this name.")] = None,
    device: DeviceName = None,
    json: Json = False,
) -> None:
    """Prove that labs work.

    The brief, hints and diagnosis are there and no file is stray; the starter is right and FAILs for its declared reason; the
    solution and every variant PASS; every mutant FAILs for the reason it declares.
    """
    chosen = [find_lab(slug) for slug in labs] if labs else list(load_labs().values())
    rows = [_row("the course", "files", check_course(), json=json)] if not labs else []
    for lab in chosen:
        rows.append(_row(lab.slug, "files", check_files(lab), json=json))
        if not static:
            rows += [_row(lab.slug, what, wrong, json=json) for what, wrong in _measure(lab, device, only, name)]
    if json:
        print_json(rows)
    if any(row["problems"] for row in rows):
        raise typer.Exit(ExitCode.FAIL)


def _row(lab: str, what: str, problems: list[str], *, json: bool) -> dict[str, Any]:
    """One proof, told at once since the next may take a minute."""
    if not json:
        say(f"{'✗' if problems else '✓'} {lab}: {what}", style="red" if problems else None)
        for problem in problems:
            say(f"    {problem}")
    return {"lab": lab, "what": what, "problems": problems}


def _measure(lab: Lab, device: str | None, only: Part | None, name: str | None) -> Iterator[tuple[str, list[str]]]:
    """Grade the starter, the solution, every variant and every mutant, or a part of these, by the function that grades learners."""
    chosen = choose_device(lab, device)
    if name is None and only in (None, "starter"):
        yield f"starter on {chosen}", _starter_problems(lab, _check(lab, lab.path, chosen))
    if name is None and only in (None, "solution"):
        yield f"solution on {chosen}", _pass_problems(_check(lab, lab.solution, chosen))
    for folder in variants(lab, chosen) if only in (None, "variants") else []:
        if name in (None, folder.name):
            yield f"variant {folder.name} on {chosen}", _pass_problems(_check(lab, folder, chosen))
    if only in (None, "mutants"):
        yield from _measure_mutants(lab, chosen, name)


def _measure_mutants(lab: Lab, device: Device, name: str | None) -> Iterator[tuple[str, list[str]]]:
    for mutant in load_mutants(lab, device):
        if name in (None, mutant.id):
            with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as folder:
                write_mutant(lab, mutant, Path(folder))
                verdict = _check(lab, Path(folder), device, sandbox_required=True)
            yield f"mutant {mutant.id} on {device}", mutant_problems(mutant, verdict)


def _starter_problems(lab: Lab, verdict: Verdict) -> list[str]:
    wanted = lab.spec.starter_fails
    if verdict.outcome != "FAIL" or verdict.reason != wanted:
        return [f"It should FAIL ({wanted}), but: {_said(verdict)}"]
    wrong = [result.sentence for result in verdict.criteria if result.kind == "correctness" and not result.holds]
    return wrong if wanted in ("correct but slow", "the mechanism is still there", "wrong diagnosis") else []


def _pass_problems(verdict: Verdict) -> list[str]:
    return [] if verdict.outcome == "PASS" else [f"It should PASS, but: {_said(verdict)}"]


def _said(verdict: Verdict) -> str:
    """The verdict in a line, to an author, whose fault an ERROR may well be."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{verdict.outcome}{reason}: {verdict.summary.removeprefix(NOT_YOURS)}"


def _check(lab: Lab, folder: Path, device: Device, *, sandbox_required: bool = False) -> Verdict:
    """The verdict on the shipped files with those of `folder` laid over them.

    The diagnosis is the starter's own or the solution's; what only a learner's capture can answer is left out. Where the solution's
    is another machine's (a GPU has other operators), a second check is given what the first has measured.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as temporary:
        workspace = Path(temporary)
        _lay_out(lab, folder, workspace)
        verdict = _check_there(lab, folder, workspace, device, sandbox_required)
        answers = measured_answers(verdict.measurement)
        if folder == lab.path or verdict.reason != "wrong diagnosis" or not answers:
            return verdict
        text = (workspace / "diagnosis.toml").read_text(encoding="utf-8")
        for key, answer in answers.items():
            text = with_answer(text, key, answer)
        (workspace / "diagnosis.toml").write_text(text, encoding="utf-8")
        return _check_there(lab, folder, workspace, device, sandbox_required)


def _check_there(lab: Lab, folder: Path, workspace: Path, device: Device, sandbox_required: bool) -> Verdict:
    answers = load_answers(lab.solution)
    questions = [question for question in lab.spec.questions if not (question.from_capture or question.shows)]
    unanswered = folder == lab.path and lab.spec.starter_fails != "wrong diagnosis"
    given = answers if unanswered else load_answers(workspace)
    results, prediction = grade_diagnosis(questions, given, answers, None)
    with progress() as show:
        return check_lab(
            lab,
            workspace,
            device,
            data=data_folder(lab),
            home=home(),
            progress=show,
            diagnosis=for_check(lab.spec.devices[device].criteria, results),
            prediction=prediction.predicted if prediction else None,
            sandbox_required=sandbox_required,
        )


def _lay_out(lab: Lab, folder: Path, workspace: Path) -> None:
    for name in (*lab.spec.editable, "diagnosis.toml"):
        beside = lab.path if folder == lab.path else lab.solution
        source = next((path for path in (folder / name, beside / name, lab.path / name) if path.is_file()), None)
        if source:
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_bytes(source.read_bytes())


def new(
    slug: Annotated[str, typer.Argument(help="The lab's name: small letters, digits and hyphens.")],
    into: Annotated[Path, typer.Option("--into", help="The checkout that holds labs/ and solutions/.")] = Path(),
) -> None:
    """Create a new lab from the example in docs/authors.md.

    It is complete and works; change it piece by piece.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise UsageError(
            f"'{slug}' is not a valid lab name.", "Use small letters, digits and hyphens: `memory-copies`."
        )
    targets = [into / part / slug for part in _PARTS]
    for target in targets:
        if target.exists():
            raise UsageError(f"{target} exists already.", "Choose another name, or remove that folder first.")
    with explained(into):
        for part, target in zip(_PARTS, targets, strict=True):
            shutil.copytree(_example() / part / _EXAMPLE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for target in targets:
        say(f"made {target}")
    if not course_names(into, slug):
        say(
            f"\nNext: add '{slug}' to a stage of {into / 'labs' / 'course.toml'}, then `lab dev check {slug}`.",
            style="bold",
        )


def _example() -> Path:
    """The lab that docs/authors.md explains: the wheel's copy of it, or the checkout's."""
    package = Path(__file__).resolve().parents[1]
    wheel = package / "content" / "example"
    return wheel if wheel.is_dir() else package.parents[1] / "docs" / "example"


def key(
    file: Annotated[Path, typer.Argument(help="Where to write the private key; the public key goes next to it.")],
) -> None:
    """Make a runner's signing key, for `lab check --sign`."""
    public = generate_key(file)
    say(f"private  {file}   (keep it on the runner, readable by nobody else)")
    say(f"public   {public}   (publish it)")


COMMANDS = {
    "check": (check, "lab dev check dataloader --static"),
    "new": (new, "lab dev new my-lab --into ."),
    "key": (key, "lab dev key runner.pem"),
}
"""Every command of the group, with its example."""
