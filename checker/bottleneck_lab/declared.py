"""Files that authors write in TOML, read as typed data: an error names the line and the valid
values.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from bottleneck_lab.errors import LabError, UsageError

T = TypeVar("T")
Keys = tuple[str | int, ...]
"""Where in a TOML file: names of tables and keys, indices of arrays from 0."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNED = re.compile(
    r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([\w-]+)")
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises UsageError that names line and column when it is not
    TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}.", "Fix that line and try again."
        ) from error
    # ValueError: a number of thousands of digits. RecursionError: brackets as deep.
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", "Restore the file, or start again with `lab reset`."
        ) from error


def load_declared(path: Path, type_: type[T]) -> T:
    """Return a whole file as `type_`. Raises LabError that says what is wrong, in which line, and
    what is valid.
    """
    return convert(read_toml(path), type_, path)


def convert(data: Any, type_: type[T], path: Path, keys: Keys = ()) -> T:
    """Return the part of the file `path` that stands at `keys`, as `type_`. Raises LabError
    likewise.
    """
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        fault = explain(error, data, type_)
        raise LabError(
            f"{position(path, (*keys, *fault.keys))}: {fault.sentence}",
            "The lab's author must fix this file; docs/authors.md describes it.",
        ) from error


def position(path: Path, keys: Keys = ()) -> str:
    """Return the file, and the line in which `keys` are written; the file alone where they are
    not.
    """
    try:
        line = line_of(path.read_text(encoding="utf-8"), keys)
    except OSError:
        line = None
    return f"{path}, line {line}" if line else str(path)


def line_of(text: str, keys: Keys) -> int | None:
    """Return the line, from 1, of the longest beginning of `keys` that is written in a TOML text;
    None if nothing of it is.
    """
    written: dict[Keys, int] = {}
    for line, name in _written(text):
        written.setdefault(name, line)
    return next((written[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in written), None)


def _written(text: str) -> Iterator[tuple[int, Keys]]:
    """Yield every header and assignment of a TOML text with its line; what stands inside a text of
    many lines is none.
    """
    counts: dict[Keys, int] = {}
    table: Keys = ()
    quoted = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not quoted and (header := _HEADER.match(line)):
            table = _table(header[2], counts, is_array=header[1] == "[[")
            # A table is also where its parents begin.
            yield from ((number, table[:n]) for n in range(1, len(table) + 1))
        elif not quoted and (assigned := _ASSIGNED.match(line)):
            yield number, table + tuple(_names(assigned[1]))
        if (line.count('"""') + line.count("'''")) % 2:
            quoted = not quoted


def _table(header: str, counts: dict[Keys, int], *, is_array: bool) -> Keys:
    """Return the keys of a header, with the index of the last element in each array of tables on
    its way.
    """
    names, keys = _names(header), ()  # type: tuple[list[str], Keys]
    for name in names[:-1]:
        keys = (*keys, name)
        if keys in counts:
            keys = (*keys, counts[keys] - 1)
    keys = (*keys, names[-1])
    if not is_array:
        return keys
    counts[keys] = counts.get(keys, 0) + 1
    return (*keys, counts[keys] - 1)


def _names(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


class Fault(NamedTuple):
    """A fault in declared data, and the keys where it is."""

    keys: Keys
    sentence: str


def explain(error: msgspec.ValidationError, data: Any, type_: Any) -> Fault:
    """Return what a validation error means to whoever wrote the data, with the valid names or
    values.
    """
    message, _, tail = str(error).partition(" - at ")
    is_key = tail.startswith("`key` in ")
    steps = _steps(tail.removeprefix("`key` in ").strip("`").removeprefix("$"))
    name = re.search(r"[`'](.*?)[`']", message)
    word = name[1] if name else ""
    if message.startswith("Object contains unknown field"):
        keys = _first(data, steps, lambda value: isinstance(value, dict) and word in value)
        return Fault(
            (*keys, word),
            unknown(f"there is no `{word}` here", word, _names_of(_type_at(type_, keys))),
        )
    keys = _first(data, steps, lambda value: is_key or value == word or "enum" not in message)
    if message.startswith("Object missing required field"):
        return Fault(keys, f"`{word}` is missing.")
    if message.startswith("Invalid enum value"):
        at = _type_at(type_, keys)
        valid = _values_of(at.key_type if is_key and isinstance(at, inspect.DictType) else at)
        if is_key:
            return Fault((*keys, word), unknown(f"there is no `{word}` here", word, valid))
        return Fault(keys, unknown(f"`{keys[-1]}` cannot be `{word}`", word, valid))
    subject = f"`{keys[-1]}`" if keys else "This file"
    return Fault(keys, f"{subject}: {_plain(message)}")


def _plain(message: str) -> str:
    """Return msgspec's "Expected `int`, got `str`" in words."""
    wanted = re.fullmatch(r"Expected `(.*?)`(.*), got `(.*?)`", message)
    if wanted is None:
        return f"{message}."
    valid = " or ".join(
        _TYPES.get(part.strip(), part.strip())
        for part in wanted[1].split("|")
        if "null" not in part
    )
    return f"expected {valid}{wanted[2]}, got {_TYPES.get(wanted[3], wanted[3])}."


def unknown(problem: str, word: str, valid: Collection[str]) -> str:
    """Return the problem as a sentence, with what was probably meant and all valid values."""
    near = difflib.get_close_matches(word, valid, n=1)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    return f"{problem}.{meant} Valid: {', '.join(valid)}."


def _steps(path: str) -> list[str | int | None]:
    """Return `.devices[...].criteria[2].kind` as its steps; None stands for a key that the error
    does not name.
    """
    return [
        name or (None if index == "..." else int(index))
        for index, name in (match.groups() for match in _STEP.finditer(path))
    ]


def _first(data: Any, steps: list[str | int | None], fits: Any) -> Keys:
    """Return the first keys that the steps lead to where the value fits; the steps that are known,
    where none does.
    """
    values: list[tuple[Keys, Any]] = [((), data)]
    for step in steps:
        values = [
            ((*keys, name), inner) for keys, value in values for name, inner in _below(value, step)
        ]
    fitting = [keys for keys, value in values if fits(value)] or [keys for keys, _ in values]
    if fitting:
        return fitting[0]
    return tuple(step for step in steps if step is not None)


def _below(value: Any, step: str | int | None) -> list[tuple[str | int, Any]]:
    """Return what stands one step below a table or an array: under that key or index, or under any
    where the step is None.
    """
    inside: dict[Any, Any] = {}
    if isinstance(value, list):
        inside = dict(enumerate(value))
    elif isinstance(value, dict):
        inside = value
    return [(name, inner) for name, inner in inside.items() if step in (None, name)]


def _type_at(declared: Any, keys: Keys) -> inspect.Type:
    """Return the declared type of what stands at `keys`."""
    type_ = inspect.type_info(declared)
    for key in keys:
        type_ = _inner(type_, key)
    return _bare(type_)


def _inner(type_: inspect.Type, key: str | int) -> inspect.Type:
    type_ = _bare(type_)
    if isinstance(type_, inspect.StructType):
        return next(
            (field.type for field in type_.fields if field.encode_name == key), inspect.AnyType()
        )
    if isinstance(type_, inspect.ListType | inspect.VarTupleType):
        return type_.item_type
    if isinstance(type_, inspect.DictType):
        return type_.value_type
    return inspect.AnyType()


def _bare(type_: inspect.Type) -> inspect.Type:
    """Return a union's one part that is not None."""
    if isinstance(type_, inspect.UnionType):
        return next(part for part in type_.types if not isinstance(part, inspect.NoneType))
    return type_


def _names_of(type_: inspect.Type) -> list[str]:
    if isinstance(type_, inspect.StructType):
        return [field.encode_name for field in type_.fields]
    return []


def _values_of(type_: inspect.Type) -> list[str]:
    if isinstance(type_, inspect.LiteralType):
        return [str(value) for value in type_.values]
    return []
