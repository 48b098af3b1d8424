"""What every lab must be before anything is measured: complete, consistent, and without files that nobody uses."""

from __future__ import annotations

import ast
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.analysis.findings import FINDING_IDS
from bottleneck_lab.catalog import Device, Lab, content_root, files_below, load_labs
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.diagnosis import problem
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.mutants import misdeclared

LEAST_VARIANTS = 3
"""Fewer right solutions than this do not show that a check accepts more than the reference."""


def check_files(lab: Lab) -> list[str]:
    """Everything that is wrong with the lab's files, each as one sentence."""
    rules = (_missing, _inconsistent, _of_its_kind, _diagnosis, _stray, _imports, _variants, _mutants)
    return [sentence for rule in rules for sentence in rule(lab)]


def check_course() -> list[str]:
    """Folders of labs and solutions that the course does not name."""
    root, known = content_root(), load_labs()
    return [
        f"{parent}/{folder.name} is in no stage of labs/course.toml."
        for parent in ("labs", "solutions")
        for folder in sorted((root / parent).iterdir())
        if folder.is_dir() and folder.name not in known and not folder.name.startswith((".", "_"))
    ]


def variants(lab: Lab, device: Device | None = None) -> list[Path]:
    """The folders of other right solutions; none outside a checkout. With `device`: those in which a file differs that is used there (`sources`)."""
    folder = content_root() / "tests" / "variants" / lab.slug
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if device is None:
        return found
    return [path for path in found if any((path / name).is_file() for name in lab.sources(device))]


def _missing(lab: Lab) -> Iterator[str]:
    wanted = [lab.path / name for name in ("README.md", *_trusted(lab), *lab.spec.files)]
    wanted += [lab.solution / name for name in ("README.md", *lab.spec.editable)]
    if lab.spec.questions:
        wanted += [lab.path / "diagnosis.toml", lab.solution / "diagnosis.toml"]
    wanted += [content_root() / "datasets" / f"{name}.py" for name in lab.spec.datasets]
    for path in wanted:
        if not path.is_file():
            yield f"{path.relative_to(content_root())} is missing."
        elif not path.read_bytes().strip():
            yield f"{path.relative_to(content_root())} is empty."
    if not lab.spec.hints:
        yield "The lab has no hints."


def _inconsistent(lab: Lab) -> Iterator[str]:
    spec = lab.spec
    yield from (f"{name} may be edited but is not among the files." for name in spec.editable if name not in spec.files)
    if spec.entry not in spec.files:
        yield f"The entry {spec.entry} is not among the files."
    for hint in spec.hints:
        if hint.finding not in (None, *FINDING_IDS):
            yield f"A hint waits for the finding '{hint.finding}', which no detector reports."
    for device, settings in spec.devices.items():
        for criterion in settings.criteria:
            if criterion.kind == "target" and criterion.target is None:
                yield f"The criterion {criterion.id} on {device} has no target."


def _of_its_kind(lab: Lab) -> Iterator[str]:
    try:
        yield from kind_of(lab).problems(lab)
    except LabError as error:
        yield error.message


def _trusted(lab: Lab) -> list[str]:
    """None for a lab of a kind that there is not: that is told elsewhere."""
    try:
        return kind_of(lab).trusted_files(lab)
    except LabError:
        return []


def _diagnosis(lab: Lab) -> Iterator[str]:
    try:
        shipped, solved = load_answers(lab.path), load_answers(lab.solution)
    except LabError as error:
        yield error.message
        return
    asked = {question.id for question in lab.spec.questions}
    yield from (
        f"diagnosis.toml answers '{key}', which is not asked."
        for key in sorted((shipped.keys() | solved.keys()) - asked)
    )
    for question in lab.spec.questions:
        if question.type == "choice" and not question.choices:
            yield f"The question {question.id} offers no choices."
        yield from (
            f"The question {question.id} has a rule for '{choice}', which is not a wrong choice of it."
            for choice in question.rules
            if choice not in question.choices or choice == solved.get(question.id)
        )
        if question.type == "interval" and not question.shows:
            yield f"The question {question.id} does not say what its stretch has to show."
        wrong = problem(question, solved.get(question.id))
        if wrong and question.type != "interval":  # a stretch is of the learner's own capture
            yield f"The solution's answer to {question.id}: {wrong}"
        if problem(question, shipped.get(question.id)) is None and question.type == "choice":
            yield f"The shipped diagnosis.toml already answers {question.id}."


def _stray(lab: Lab) -> Iterator[str]:
    """A file that neither the lab nor its judge names serves nobody."""
    named = {"README.md", "lab.toml", "judge.py", "reference.py", "diagnosis.toml", *_trusted(lab), *lab.spec.files}
    texts = [
        path.read_text(encoding="utf-8") for path in (lab.path / "lab.toml", lab.path / "judge.py") if path.is_file()
    ]
    for path in files_below(lab.path):
        name = str(path.relative_to(lab.path))
        if name not in named and not any(path.stem in text for text in texts):
            yield f"labs/{lab.slug}/{name} is named neither in lab.toml nor in judge.py."
    for path in files_below(lab.solution):
        name = str(path.relative_to(lab.solution))
        if name not in {"README.md", "diagnosis.toml", *lab.spec.editable}:
            yield f"solutions/{lab.slug}/{name} is not an editable file of the lab."


def _imports(lab: Lab) -> Iterator[str]:
    """Workloads run alone: they never import the checker."""
    paths = [folder / name for folder in (lab.path, lab.solution, *variants(lab)) for name in lab.spec.files]
    for path in paths:
        if path.suffix == ".py" and path.is_file():
            try:
                tree = ast.parse(path.read_bytes())
            except SyntaxError as error:
                yield f"{path.relative_to(content_root())}, line {error.lineno}: {error.msg}."
                continue
            if "bottleneck_lab" in _imported(tree):
                yield f"{path.relative_to(content_root())} imports bottleneck_lab; a workload must run without it."


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _variants(lab: Lab) -> Iterator[str]:
    if not (content_root() / "tests" / "variants").is_dir():
        return
    found = variants(lab)
    if len(found) < LEAST_VARIANTS:
        yield f"tests/variants/{lab.slug} holds {len(found)} other correct solutions; at least {LEAST_VARIANTS} are needed."
    for folder in found:
        strangers = [
            path.name for path in files_below(folder) if str(path.relative_to(folder)) not in lab.spec.editable
        ]
        yield from (
            f"tests/variants/{lab.slug}/{folder.name}/{name} is not an editable file of the lab." for name in strangers
        )


def _mutants(lab: Lab) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        yield from misdeclared(lab, Path(scratch))


def course_names(root: Path, slug: str) -> bool:
    """Whether `root`'s course names the lab `slug`. Raises no error for a course that cannot be read: it names nothing."""
    try:
        course = tomllib.loads((root / "labs" / "course.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return False
    return any(slug in stage.get("labs", []) for stage in course.get("stages", []))
