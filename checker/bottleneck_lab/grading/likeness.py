"""How much two pieces of code are alike, without comments, docstrings, type hints, names of locals
and layout.

Pure: sources go in, a share comes out. Likeness is no proof of copying: short fixes look alike.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

SHINGLE = 5
"""Tokens that are compared at a time: in so few, their order still counts."""
_TOKEN = re.compile(rb"\w+|[^\w\s]")
_COMMENT = {
    **dict.fromkeys((".cpp", ".cu"), re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)),
    **dict.fromkeys((".py", ".pbtxt", ".toml"), re.compile(rb"#[^\n]*")),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_the_references(
    work: Mapping[str, bytes], shipped: Mapping[str, bytes], reference: Mapping[str, bytes]
) -> bool:
    """Return True if all that `work` changes in the shipped files is what the reference has there.

    Each maps names of files to what they hold. Unchanged work is not the reference's.
    """
    changed = [name for name in work if not same_code(name, work[name], shipped.get(name, b""))]
    return bool(changed) and all(
        same_code(name, work[name], reference.get(name, b"")) for name in changed
    )


def same_code(name: str, one: bytes, other: bytes) -> bool:
    """Return True if two versions of the file `name` have the same code."""
    return one == other or tokens_of(name, one) == tokens_of(name, other)


def likeness(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> float:
    """Return the share (0–1) of code that the files in `one` have in common with those of the same
    names in `other`.

    It is Dice's coefficient over runs of SHINGLE tokens, which takes time in proportion to the
    code, whatever somebody hands in.
    """
    common = total = 0
    for name in one.keys() | other.keys():
        ours, theirs = (_shingles(tokens_of(name, files.get(name, b""))) for files in (one, other))
        common += 2 * (ours & theirs).total()
        total += ours.total() + theirs.total()
    return common / total if total else 1.0


def _shingles(tokens: list[bytes]) -> Counter[tuple[bytes, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(SHINGLE)), strict=False))


def tokens_of(name: str, source: bytes) -> list[bytes]:
    """Return the tokens of the code in the file `name`.

    Python is parsed; code that is no Python, and other languages, lose their comments only.
    """
    suffix = name[name.rfind(".") :]
    if suffix == ".py":
        # All that parsing and unparsing raise for code that nobody could run.
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            source = _plain_python(source)
    comment = _COMMENT.get(suffix)
    return _TOKEN.findall(comment.sub(b"", source) if comment else source)


def _plain_python(source: bytes) -> bytes:
    """Return a module's code in one layout, without what does nothing when it runs."""
    tree = _WithoutWords().visit(ast.parse(source))
    for function in _outermost_functions(tree):
        _number_locals(function)
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


class _WithoutWords(ast.NodeTransformer):
    """Removes docstrings and other bare strings, and type hints."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _outermost_functions(tree: ast.AST) -> list[ast.AST]:
    """Return the functions of a module and of its classes that lie in no other function."""
    functions: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        functions += [child] if isinstance(child, _FUNCTIONS) else _outermost_functions(child)
    return functions


def _number_locals(function: ast.AST) -> None:
    """Rename what a function binds, its parameters too, to numbers in order of appearance."""
    nodes = [node for node in ast.walk(function) if node is not function]
    shared = {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }
    numbers: dict[str, str] = {}
    for node in nodes:
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name not in shared and _binds(node):
                numbers.setdefault(name, f"local{len(numbers)}")
    for node in nodes:
        # Keywords of calls are names of other functions' parameters.
        for field in () if isinstance(node, ast.keyword | ast.alias) else ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in numbers:
                setattr(node, field, numbers[name])


def _binds(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store)
    return isinstance(
        node, ast.arg | ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    )
