"""The rules for a Triton source, under which a learner's Python launches kernels and computes
nothing itself. The source is read before it is run.

Inside a function that is `@triton.jit` the Triton compiler reads everything. Everywhere else only
modules, names and attributes of the lists below may be used: none of them reaches an operator of
PyTorch, another module, or the inside of an object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_MODULES = {
    "torch", "triton", "triton.language", "triton.tools.tensor_descriptor", "math", "__future__",
}  # fmt: skip
_BANNED = {
    "getattr", "setattr", "delattr", "vars", "globals", "locals", "eval", "exec", "compile", "open",
    "type", "super", "object", "classmethod", "staticmethod", "breakpoint", "input", "memoryview",
    "map", "print", "help", "dir",
}  # fmt: skip
_ATTRIBUTES = {
    # types
    "Tensor", "float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8",
    "uint32", "bool",
    # memory for results, which nobody has computed
    "empty", "empty_like", "empty_strided", "constexpr", "language",
    # a tensor's form
    "shape", "stride", "dtype", "device", "numel", "size", "ndim", "data_ptr", "element_size",
    "dim", "is_contiguous",
    # launching
    "jit", "autotune", "heuristics", "Config", "cdiv", "next_power_of_2", "set_allocator",
    "TensorDescriptor", "from_tensor", "cuda", "current_device", "get_device_properties",
    "get_device_capability", "multi_processor_count",
    # plain Python
    "sqrt", "log2", "log", "exp", "pi", "ceil", "floor", "append", "items", "get",
}  # fmt: skip
_JIT = "triton.jit"
_Node = ast.expr | ast.stmt | ast.ExceptHandler


def forbidden(source: bytes, name: str) -> str | None:
    """Return the first thing in a Triton source that is not allowed, as one sentence with its line;
    None for a clean one, or one that is not Python.

    The source is read as Python will read it: as bytes, in the encoding that its own first lines
    name.
    """
    try:
        for node in _host(ast.parse(source)):
            if problem := _problem(node):
                line = node.lineno
                return f"{name}, line {line}: {problem}. Write the kernel without libraries."
    except (SyntaxError, ValueError):
        return None  # it cannot be run either: Python says so, with the line
    except (RecursionError, MemoryError):
        return f"{name} is nested too deeply to be read. Write the kernel without libraries."
    return None


def _host(node: ast.AST) -> Iterator[_Node]:
    """Yield every expression and statement that Python itself will run: all but the bodies of
    functions that Triton compiles.
    """
    # A decorator below `triton.jit` would be given the function as it stands, and could call it:
    # so that one must be the last.
    compiled: list[ast.stmt] = []
    match node:
        case ast.FunctionDef(body=body, decorator_list=[*_, last]) if ast.unparse(last) == _JIT:
            compiled = body
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Node):
            yield child
        if child not in compiled:
            yield from _host(child)


def _problem(node: _Node) -> str | None:  # noqa: PLR0911 - a rule a line
    if isinstance(node, ast.Import):
        foreign = [
            alias.name for alias in node.names if alias.name not in _MODULES or _renamed(alias)
        ]
        return f"it imports {foreign[0]}" if foreign else None
    if isinstance(node, ast.ImportFrom):
        return _import_problem(node)
    if isinstance(node, ast.Attribute) and (
        node.attr not in _ATTRIBUTES or not isinstance(node.ctx, ast.Load)
    ):
        return f"it uses `{ast.unparse(node)[:60]}`"
    if isinstance(node, ast.Name) and (node.id in _BANNED or node.id.startswith("__")):
        return f"it uses `{node.id}`"
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return "it multiplies with `@` outside a kernel"
    if "triton" in _binds(node):
        return "it redefines `triton`"
    if isinstance(node, ast.ClassDef | ast.Match | ast.Global):
        return f"it uses `{type(node).__name__.lower()}`"
    return None


def _binds(node: _Node) -> set[str]:
    """Return the names that a statement or an assignment's target gives a meaning to; imports are
    looked at elsewhere.
    """
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Load) else {node.id}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        every = [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ]
        return {argument.arg for argument in every if argument} | {getattr(node, "name", "")}
    return {node.name or ""} if isinstance(node, ast.ExceptHandler) else set()


def _import_problem(node: ast.ImportFrom) -> str | None:
    if node.level or node.module not in _MODULES:
        return f"it imports from {node.module or 'its own folder'}"
    allowed = {"annotations"} if node.module == "__future__" else _ATTRIBUTES
    foreign = [alias.name for alias in node.names if alias.name not in allowed or _renamed(alias)]
    return f"it imports {foreign[0]} from {node.module}" if foreign else None


def _renamed(alias: ast.alias) -> bool:
    return alias.asname == "triton" and alias.name != "triton"
