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
"""Where in a TOML file: names of tables and keys, places in arrays from 0."""

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
    """The tables of a TOML file. Raises UsageError that names line and column when it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}.", "Fix that line and try again."
        ) from error
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # numbers of thousands of digits, brackets as deep
        raise UsageError(
            f"{path} cannot be read: {error}.", "Restore the file, or start again with `lab reset`."
        ) from error


def load_declared(path: Path, type_: type[T]) -> T:
    """A whole file as `type_`. Raises LabError that says what is wrong, in which line, and what is
    valid.
    """
    return convert(read_toml(path), type_, path)


def convert(data: Any, type_: type[T], path: Path, keys: Keys = ()) -> T:
    """The part of the file `path` that stands at `keys`, as `type_`. Raises LabError likewise."""
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        fault = explain(error, data, type_)
        raise LabError(
            f"{place(path, (*keys, *fault.keys))}: {fault.sentence}",
            "The lab's author must fix this file; docs/authors.md describes it.",
        ) from error


def place(path: Path, keys: Keys = ()) -> str:
    """The file, and the line in which `keys` are written; the file alone where none is found."""
    try:
        line = line_of(path.read_text(encoding="utf-8"), keys)
    except OSError:
        line = None
    return f"{path}, line {line}" if line else str(path)


def line_of(text: str, keys: Keys) -> int | None:
    """The line, from 1, of the longest beginning of `keys` that is written in a TOML text; None if
    nothing of it is.
    """
    written: dict[Keys, int] = {}
    for line, found in _written(text):
        written.setdefault(found, line)
    return next((written[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in written), None)


def _written(text: str) -> Iterator[tuple[int, Keys]]:
    """Every header and assignment of a TOML text with its line; what stands inside a text of many
    lines is none.
    """
    counts: dict[Keys, int] = {}
    table: Keys = ()
    quoted = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not quoted and (header := _HEADER.match(line)):
            table = _table(header[2], counts, is_array=header[1] == "[[")
            yield from (
                (number, table[:n]) for n in range(1, len(table) + 1)
            )  # a table is also where its parents begin
        elif not quoted and (assigned := _ASSIGNED.match(line)):
            yield number, table + tuple(_names(assigned[1]))
        if (line.count('"""') + line.count("'''")) % 2:
            quoted = not quoted


def _table(header: str, counts: dict[Keys, int], *, is_array: bool) -> Keys:
    """The keys of a header, with the place of the last element in each array of tables on its way."""
    names, keys = _names(header), ()  # type: tuple[list[str], Keys]
    for name in names[:-1]:
        keys = (*keys, name)
        keys = (*keys, counts[keys] - 1) if keys in counts else keys
    keys = (*keys, names[-1])
    if not is_array:
        return keys
    counts[keys] = counts.get(keys, 0) + 1
    return (*keys, counts[keys] - 1)


def _names(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


class Fault(NamedTuple):
    """What is wrong with declared data, and at which keys of it."""

    keys: Keys
    sentence: str


def explain(error: msgspec.ValidationError, data: Any, type_: Any) -> Fault:
    """What a validation error means to whoever wrote the data, with the valid names or values."""
    message, _, tail = str(error).partition(" - at ")
    is_key = tail.startswith("`key` in ")
    steps = _steps(tail.removeprefix("`key` in ").strip("`").removeprefix("$"))
    name = re.search(r"[`'](.*?)[`']", message)
    said = name[1] if name else ""
    if message.startswith("Object contains unknown field"):
        keys = _first(data, steps, lambda value: isinstance(value, dict) and said in value)
        return Fault(
            (*keys, said),
            unknown(f"there is no `{said}` here", said, _names_of(_type_at(type_, keys))),
        )
    keys = _first(data, steps, lambda value: is_key or value == said or "enum" not in message)
    if message.startswith("Object missing required field"):
        return Fault(keys, f"`{said}` is missing.")
    if message.startswith("Invalid enum value"):
        at = _type_at(type_, keys)
        valid = _values_of(at.key_type if is_key and isinstance(at, inspect.DictType) else at)
        where, what = (
            ((*keys, said), f"there is no `{said}` here")
            if is_key
            else (keys, f"`{keys[-1]}` cannot be `{said}`")
        )
        return Fault(where, unknown(what, said, valid))
    subject = f"`{keys[-1]}`" if keys else "This file"
    return Fault(keys, f"{subject}: {_plain(message)}")


def _plain(message: str) -> str:
    """ "Expected `int`, got `str`" in words."""
    wanted = re.fullmatch(r"Expected `(.*?)`(.*), got `(.*?)`", message)
    if wanted is None:
        return f"{message}."
    valid = " or ".join(
        _TYPES.get(part.strip(), part.strip())
        for part in wanted[1].split("|")
        if "null" not in part
    )
    return f"expected {valid}{wanted[2]}, got {_TYPES.get(wanted[3], wanted[3])}."


def unknown(problem: str, said: str, valid: Collection[str]) -> str:
    """The problem as a sentence, with what was probably meant and all valid values."""
    near = difflib.get_close_matches(said, valid, n=1)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    return f"{problem}.{meant} Valid: {', '.join(valid)}."


def _steps(path: str) -> list[str | int | None]:
    """`.devices[...].criteria[2].kind` as its steps; None stands for a key that the error does not
    tell.
    """
    return [
        name or (None if index == "..." else int(index))
        for index, name in (found.groups() for found in _STEP.finditer(path))
    ]


def _first(data: Any, steps: list[str | int | None], fits: Any) -> Keys:
    """The first place that the steps lead to where the value fits; the steps that are known, where
    none does.
    """
    places: list[tuple[Keys, Any]] = [((), data)]
    for step in steps:
        places = [
            ((*keys, name), inner) for keys, value in places for name, inner in _below(value, step)
        ]
    fitting = [keys for keys, value in places if fits(value)] or [keys for keys, _ in places]
    return fitting[0] if fitting else tuple(step for step in steps if step is not None)


def _below(value: Any, step: str | int | None) -> list[tuple[str | int, Any]]:
    """What stands one step below a table or an array: under that key or place, or under any where
    the step is None.
    """
    inside = (
        dict(enumerate(value))
        if isinstance(value, list)
        else value
        if isinstance(value, dict)
        else {}
    )
    return [(name, inner) for name, inner in inside.items() if step in (None, name)]


def _type_at(type_: Any, keys: Keys) -> inspect.Type:
    """The declared type of what stands at `keys`."""
    found = inspect.type_info(type_)
    for key in keys:
        found = _inner(found, key)
    return _bare(found)


def _inner(found: inspect.Type, key: str | int) -> inspect.Type:
    found = _bare(found)
    if isinstance(found, inspect.StructType):
        return next(
            (field.type for field in found.fields if field.encode_name == key), inspect.AnyType()
        )
    if isinstance(found, inspect.ListType | inspect.VarTupleType):
        return found.item_type
    return found.value_type if isinstance(found, inspect.DictType) else inspect.AnyType()


def _bare(found: inspect.Type) -> inspect.Type:
    """A union's one part that is not None."""
    if isinstance(found, inspect.UnionType):
        return next(part for part in found.types if not isinstance(part, inspect.NoneType))
    return found


def _names_of(found: inspect.Type) -> list[str]:
    return (
        [field.encode_name for field in found.fields]
        if isinstance(found, inspect.StructType)
        else []
    )


def _values_of(found: inspect.Type) -> list[str]:
    return [str(value) for value in found.values] if isinstance(found, inspect.LiteralType) else []
