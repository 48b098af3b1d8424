"""PTX, the assembly text that nvcc makes of a CUDA kernel, read into instructions. Only what one
warp's addresses depend on is looked at.

Source: NVIDIA's PTX ISA manual, "Syntax", "State Spaces" and "Debugging Directives".
"""

from __future__ import annotations

import re

import msgspec

_ENTRY = re.compile(r"^(?:\.\w+ )*\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)^\}", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+(?:\.ptr[^,]*?)?([\w$]+)(?:\[(\d+)\])?"
)
_SHARED = re.compile(
    r"^\s*(\.extern\s+)?(?:\.\w+\s+)*?\.shared\s+(?:\.align\s+(\d+)\s+)?\.[a-z](\d+)\s+([\w$]+)"
    r"(?:\[(\d*)\])?",
    re.MULTILINE,
)
_LINE = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_LABEL = re.compile(r"^(\$?[\w$]+):")
_GUARDED = re.compile(r"@(!?)(%\w+)\s+(.*)")


class Parameter(msgspec.Struct, frozen=True):
    """A kernel's parameter and its size in bytes."""

    name: str
    size: int


class Shared(msgspec.Struct, frozen=True):
    """A variable in shared memory; `size` in bytes, 0 for the one whose size is given at launch."""

    name: str
    align: int
    size: int


class Instruction(msgspec.Struct, frozen=True):
    """`@guard name operands`. `operands` are texts: a register, a number, a name, `[address]` or
    `{a, b}`. `line` is the source's; `caller` the one from which the function around it was
    inlined, 0 where none was.
    """

    name: str
    operands: tuple[str, ...]
    line: int
    caller: int = 0
    guard: str = ""
    negated: bool = False

    @property
    def parts(self) -> list[str]:
        """The name's parts: `ld`, `global`, `v4`, `u32`."""
        return self.name.split(".")


class Kernel(msgspec.Struct, frozen=True):
    """One kernel: its code, the places of its labels in it, and the shared memory that its module
    declares.
    """

    name: str
    parameters: list[Parameter]
    code: list[Instruction]
    labels: dict[str, int]
    shared: list[Shared]


def read_ptx(text: str) -> dict[str, Kernel]:
    """Read every kernel of a PTX text, by its mangled name."""
    text = re.sub(r"//[^\n]*", "", text)
    module = [_shared(match) for match in _SHARED.finditer(_ENTRY.sub("", text))]
    kernels = {}
    for match in _ENTRY.finditer(text):
        name, parameters, body = match.groups()
        own = [_shared(each) for each in _SHARED.finditer(body)]
        code, labels = _instructions(body)
        sizes = [
            Parameter(parameter, int(bits) // 8 * int(count or 1))
            for _, bits, parameter, count in _PARAMETER.findall(parameters)
        ]
        kernels[name] = Kernel(name, sizes, code, labels, [*own, *module])
    return kernels


def _shared(match: re.Match[str]) -> Shared:
    _, align, bits, name, count = match.groups()
    elements = 1
    if count is not None:
        elements = int(count or 0)  # `name[]` is sized at launch
    return Shared(name, int(align or 4), int(bits) // 8 * elements)


def _instructions(body: str) -> tuple[list[Instruction], dict[str, int]]:
    # A label is the number of the instruction that follows it; `.loc` holds until the next one.
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    origin = (0, 0)
    for statement in _statements(body):
        if match := _LINE.match(statement):
            origin = _source_line(statement, match) or origin
        elif match := _LABEL.match(statement):
            labels[match[1]] = len(code)
        elif not statement.startswith((".", "{", "}")):
            guard = _GUARDED.match(statement)
            plain, predicate, negated = statement, "", False
            if guard:
                plain, predicate, negated = guard[3], guard[2], bool(guard[1])
            name, _, operands = plain.partition(" ")
            code.append(Instruction(name, _operands(operands), *origin, predicate, negated))
    return code, labels


def _statements(body: str) -> list[str]:
    """Return directives, labels and instructions, each on its own. The braces of a block end where
    an instruction's would go on.
    """
    # PTX ends neither `.loc` nor a label with a semicolon: they get one, to be split alike.
    body = re.sub(r"^(\s*\.loc[^\n]*)$", r"\1;", body, flags=re.MULTILINE)
    body = re.sub(r"^(\s*\$?[\w$]+:)", r"\1;", body, flags=re.MULTILINE)
    # Braces of a block stand at the beginning of a line, those of an operand within one.
    body = re.sub(r"^(\s*)([{}])\s*", r"\1\2;", body, flags=re.MULTILINE)
    return [
        statement.strip()
        for part in body.split(";")
        if (statement := part.strip().lstrip("}").strip())
    ]


def _source_line(statement: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return line and caller in the module's own file (what was inlined from a header stands where
    it was called); None if no line is named.
    """
    # File 1 is the source itself, the others what it includes. Inlined code has its own position
    # first, then that of each call around it.
    lines = [
        int(line)
        for file, line in [(match[1], match[2]), *_INLINED.findall(statement)]
        if file == "1" and line != "0"
    ]
    if not lines:
        return None
    return lines[0], lines[-1] if len(lines) > 1 else 0


def _operands(text: str) -> tuple[str, ...]:
    """Return the parts between commas that are in no braces and no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(part.strip() for part in parts if part.strip())
