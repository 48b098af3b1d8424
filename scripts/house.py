"""Print how a Python code base is written: sizes, helpers, comments, docstrings, dialect.

    python scripts/house.py                        # this package
    python scripts/house.py SOME/PACKAGE OTHER     # any folders, one column each

Every figure is counted from tokens and the syntax tree, so that folders of different authors
compare. `lines` depend on how long a line may be; `statements` and paragraphs do not.
"""

import argparse
import ast
import io
import json
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "checker" / "bottleneck_lab"
LONGEST_LINE = 100
DIALECT = ("found", "told", "said", "asked", "place")
DIRECTIVE = re.compile(r"#\s*(noqa|type:|ruff:|pragma|pylint|!)")  # For tools, not for readers.
SKIPPED = {"__pycache__", "node_modules", "build", "dist", "vendor", "_vendor"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Counts:
    """Tallies of one folder."""

    files: int = 0
    lines: int = 0
    statements: int = 0
    functions: list[int] = field(default_factory=list)  # Lines of each, decorators excluded.
    private: int = 0
    comment_lines: int = 0
    docstrings: int = 0
    one_line_docstrings: int = 0
    one_paragraph_docstrings: int = 0
    ternaries: int = 0
    long_lines: int = 0
    dialect: int = 0
    what_whether: int = 0


def count(folder: Path) -> Counts:
    """Return the tallies of every Python file under `folder`, or of one file."""
    counts = Counts()
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    for path in files:
        if SKIPPED.intersection(path.relative_to(folder).parts):
            continue
        source = path.read_text("utf-8")
        counts.files += 1
        lines = source.splitlines()
        counts.lines += len(lines)
        counts.long_lines += sum(len(line) > LONGEST_LINE for line in lines)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            is_comment = token.type == tokenize.COMMENT
            counts.comment_lines += is_comment and not DIRECTIVE.match(token.string)
        _count_tree(ast.parse(source), counts)
    return counts


def _count_tree(tree: ast.Module, counts: Counts) -> None:
    for node in ast.walk(tree):
        counts.statements += isinstance(node, ast.stmt)
        counts.ternaries += isinstance(node, ast.IfExp)
        counts.dialect += sum(name in DIALECT for name in _bound_names(node))
        if isinstance(node, Function):
            counts.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            # `__init__` and its like belong to the language, `_helper` to the author.
            counts.private += node.name.startswith("_") and not node.name.endswith("__")
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                counts.docstrings += 1
                counts.one_line_docstrings += "\n" not in docstring
                counts.one_paragraph_docstrings += "\n\n" not in docstring
                counts.what_whether += bool(re.match(r"(What|Whether)\b", docstring))


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that `node` itself binds: variables, parameters, aliases, captures."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias) and node.asname:
        yield node.asname
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name


def figures(counts: Counts) -> dict[str, float | str]:
    """Return the rows of the table. Shares are percentages, rates are per 1,000 lines."""
    lengths = sorted(counts.functions) or [0]
    p90 = (
        statistics.quantiles(lengths, n=10, method="inclusive")[8]
        if len(lengths) > 1
        else lengths[0]
    )
    thousand_lines = max(counts.lines, 1) / 1000
    return {
        "files": counts.files,
        "lines": counts.lines,
        "statements": counts.statements,
        "function lines, median / p90 / max": (
            f"{statistics.median(lengths):.0f} / {p90:.0f} / {lengths[-1]}"
        ),
        "private functions per 1,000 lines": round(counts.private / thousand_lines, 1),
        "private functions per 1,000 statements": round(
            1000 * counts.private / max(counts.statements, 1), 1
        ),
        "comment lines, %": round(counts.comment_lines / thousand_lines / 10, 1),
        "one-line docstrings, %": round(
            100 * counts.one_line_docstrings / max(counts.docstrings, 1), 1
        ),
        "one-paragraph docstrings, %": round(
            100 * counts.one_paragraph_docstrings / max(counts.docstrings, 1), 1
        ),
        "ternaries per 1,000 lines": round(counts.ternaries / thousand_lines, 1),
        "ternaries per 1,000 statements": round(
            1000 * counts.ternaries / max(counts.statements, 1), 1
        ),
        f"lines over {LONGEST_LINE} columns, %": round(counts.long_lines / thousand_lines / 10, 1),
        f"bindings called {'/'.join(DIALECT)}": counts.dialect,
        "docstrings that begin with What/Whether": counts.what_whether,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how a Python code base is written.")
    parser.add_argument("folders", nargs="*", type=Path, default=[PACKAGE], metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if not folder.exists():
            parser.error(f"{folder} does not exist")
    columns = {str(folder): figures(count(folder)) for folder in arguments.folders}
    if arguments.json:
        sys.stdout.write(json.dumps(columns, indent=2) + "\n")
        return
    table = [["", *(Path(name).name for name in columns)], ["---", *["---:"] * len(columns)]]
    rows = list(next(iter(columns.values())))
    table += [[row, *(str(column[row]) for column in columns.values())] for row in rows]
    sys.stdout.writelines(f"| {' | '.join(cells)} |\n" for cells in table)


if __name__ == "__main__":
    main()
