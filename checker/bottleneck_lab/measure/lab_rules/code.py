"""Rules for a lab's code: it parses, stands alone, its judge can be called, and its variants
differ.
"""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from bottleneck_lab.catalog import Lab, files_below
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.lab_rules.declarations import at
from bottleneck_lab.measure.lab_rules.variants import LEAST_VARIANTS, variants
from bottleneck_lab.needs import missing_package


def workloads(lab: Lab) -> Iterator[str]:
    """Yield workloads that import the checker: they must run alone."""
    paths = [
        folder / name
        for folder in (lab.path, lab.solution, *variants(lab))
        for name in lab.spec.files
    ]
    for path in paths:
        if path.suffix == ".py" and path.is_file():
            try:
                tree = ast.parse(path.read_bytes())
            except SyntaxError as error:
                yield f"{path.relative_to(lab.root)}, line {error.lineno}: {error.msg}."
                continue
            if "bottleneck_lab" in _imported(tree):
                yield (
                    f"{path.relative_to(lab.root)} imports bottleneck_lab; a workload must run"
                    " without it."
                )


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def judge(lab: Lab) -> Iterator[str]:
    """Check that judge.py can be imported, has every function that the lab's kind calls, and reads
    every setting that it is given.
    """
    path = lab.path / "judge.py"
    try:
        calls = kind_of(lab).judge_functions
    except LabError:  # another rule reports it
        return
    if not path.is_file():
        return
    try:
        module = load_judge(lab)
    except Exception as error:  # whatever the author's code raises
        # A lab may need an extra that is not installed here.
        if isinstance(error, ModuleNotFoundError) and missing_package(error):
            raise  # it says nothing of the lab, only of this installation
        yield f"{raised_at(error, lab.path)}: {type(error).__name__}: {error}."
        return
    yield from (f"{path}: {problem}" for problem in _uncallable(vars(module), calls))
    yield from _unread_settings(lab)


def raised_at(error: BaseException, folder: Path) -> str:
    """Return file and line, in or below `folder`, that raised the error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if folder in Path(frame.filename).parents
    ]
    if frames:
        return f"{frames[-1].filename}, line {frames[-1].lineno}"
    return str(folder)


def _uncallable(defined: Mapping[str, object], calls: Mapping[str, int]) -> Iterator[str]:
    for name, count in calls.items():
        function = defined.get(name)
        arguments = f"{count} argument{'s' * (count != 1)}"
        if not callable(function):
            yield f"`{name}` is missing; it is called with {arguments}."
            continue
        signature = inspect.signature(function)
        try:
            signature.bind(*range(count))
        except TypeError:
            yield f"`{name}` is called with {arguments}, and takes {signature}."


def _unread_settings(lab: Lab) -> Iterator[str]:
    """Yield settings of the judge that no file of the lab reads: probably typos."""
    text = "".join(path.read_text("utf-8", "replace") for path in lab.path.glob("*.py"))
    for device, spec in lab.spec.devices.items():
        given = spec.settings.get("judge", {})
        for name in given if isinstance(given, dict) else []:
            if name not in text:
                where = at(lab, "devices", device, "settings", "judge", name)
                yield f"{where}: judge.py does not read the setting `{name}`."


def distinct(lab: Lab) -> Iterator[str]:
    """Check that there are enough variants, of editable files only, no two of them equivalent."""
    if not (lab.root / "tests" / "variants").is_dir():
        return
    folders = variants(lab)
    if len(folders) < LEAST_VARIANTS:
        yield (
            f"tests/variants/{lab.slug} holds {len(folders)} other correct solutions; at least"
            f" {LEAST_VARIANTS} are needed."
        )
    for folder in folders:
        names = [str(path.relative_to(folder)) for path in files_below(folder)]
        yield from (
            f"tests/variants/{lab.slug}/{folder.name}/{name} is not an editable file of the lab."
            for name in names
            if name not in lab.spec.editable
        )
    # Two variants that differ in comments or spacing would prove nothing twice.
    seen = {
        _meaning(lab, lab.solution): "the solution",
        _meaning(lab, lab.path): "the shipped files",
    }
    for folder in folders:
        meaning = _meaning(lab, folder)
        if meaning in seen:
            yield f"tests/variants/{lab.slug}/{folder.name} is the same as {seen[meaning]}."
        seen.setdefault(meaning, folder.name)


def _meaning(lab: Lab, folder: Path) -> tuple[str, ...]:
    """Return the editable files as they would be checked, without what only a reader sees."""
    beside = lab.path if folder == lab.path else lab.solution
    paths = [
        folder / name if (folder / name).is_file() else beside / name for name in lab.spec.editable
    ]
    return tuple(_normal(path) for path in paths if path.is_file())


def _normal(path: Path) -> str:
    """Return Python as its syntax tree without docstrings, anything else without white space."""
    text = path.read_text("utf-8", "replace")
    if path.suffix == ".py":
        try:
            tree = ast.parse(text)
        except SyntaxError:  # another rule reports it
            return text
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
                and ast.get_docstring(node) is not None
            ):
                node.body = node.body[1:]
        return ast.dump(tree)
    return "".join(text.split())
