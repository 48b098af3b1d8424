"""C++ kernel names made short, but not alike: what a template was made for (its functor) stays.

`void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<…>, …> >(…)`
is `reduce_kernel<MeanOps>`: beside it stand others that differ only there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

# Wrappers around what a kernel really does, which is among their own arguments.
_WRAPPERS = re.compile(
    r"(?:Binary|AUnary|BUnary|Unary|OpMath)Functor$|ReduceOp$|func_wrapper|gpu_kernel|gpu_index"
    r"|operator$"
)
# What a kernel does: a functor, the operations of a reduction, or a function of the standard's.
_FUNCTOR = re.compile(r"\w*[Ff]unctor\w*|\w+Ops?\b|(?<=std::)(?:plus|minus|multiplies|divides)")
# The function that a lambda was written in; CUPTI and nsys bracket the lambda differently.
_LAMBDA_IN = re.compile(r"(\w+)(?:<(?:[^<>()]|<[^<>()]*>)*>)?\([^()]*\)(?: const)?::[{\[(]lambda")
_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_PLAIN = re.compile(
    r"(?:(?:unsigned|long|int|float|double|bool|char|short|void|true|false|const|half|std|c10|at"
    r"|native|__half|__nv_bfloat16|Half|BFloat16)\b|[\d.]+\w*|\W)+"
)
_UNTELLING = re.compile(r"Params|Array|Opaque|Metadata|Calculator|Load|Store|Policy|Tensor|array")
_SPACES = re.compile(r"^(?:at::native::|\(anonymous namespace\)::|anonymous::)+")
# `ncclKernel_allreduce (emulated: modelled link, not NCCL)`
_EMULATED_LINK = re.compile(r"^ncclKernel_(\w+) \(emulated: .*\)$")
_EMULATED = "emulated: "
_LINE = re.compile(r"(.+)(\(\d+(?:-\d+)?\): .+)$")
_LEAST_OF_FILE = 8
# Names that say nothing without the one before them.
_BARE = {"kernel", "Kernel", "Kernel2", "kernel2"}
MOST_PARTS = 2


def short_name(name: str) -> str:
    """Return a C++ kernel name without return type, namespaces of torch and parameters, and of its
    template arguments only those that tell what it does; of a message on a modelled link what it
    is; any other name unchanged.
    """
    if match := _EMULATED_LINK.match(name):
        return f"{match[1]} (emulated)"
    mark = _EMULATED * name.startswith(_EMULATED)
    parts = _parts(name.removeprefix(mark))
    if parts is None:
        return name
    base, arguments = parts
    if not arguments:
        return mark + base
    return f"{mark}{base}<{', '.join(_purpose(arguments)) or '…'}>"


def cut_name(name: str, room: int, ellipsis: str = "…") -> str:
    """Return a name in at most `room` characters, with its middle left out: names often differ only
    at their end. A line of Python, "train.py(31): f", keeps its number: the file's name is cut.
    """
    if len(name) <= room:
        return name
    if (line := _LINE.match(name)) and len(line[2]) + _LEAST_OF_FILE <= room:
        return cut_name(line[1], room - len(line[2]), ellipsis) + line[2]
    left = max(0, room - len(ellipsis))
    tail = left * 2 // 5
    return name[: left - tail] + ellipsis + name[len(name) - tail :]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short name of each; those that would be alike keep the arguments in which they
    differ, and get a number where they differ in nothing that can be shown.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        groups[short_name(name)].append(name)
    shortened: dict[str, str] = {}
    for short, alike in groups.items():
        if len(alike) == 1:
            shortened[alike[0]] = short
            continue
        used: set[str] = set()
        for number, (name, apart) in enumerate(zip(alike, _kept_apart(alike), strict=True), 1):
            shortened[name] = f"{apart} (variant {number})" if apart in used else apart
            used.add(shortened[name])
    return shortened


def _kept_apart(names: Sequence[str]) -> list[str]:
    """Return the short names, with the fewest words of their arguments in which all differ."""
    parts = [_parts(name.removeprefix(_EMULATED)) for name in names]
    words = [_WORD.findall(", ".join(each[1])) if each else [] for each in parts]
    kept: list[tuple[str, ...]] = [() for _ in names]
    for column in zip_longest(*words, fillvalue=""):
        longer = [(*known, word) for known, word in zip(kept, column, strict=True)]
        # A word that tells no further two apart says nothing.
        if len({*longer}) > len({*kept}):
            kept = longer
    shown = []
    for name, details in zip(names, kept, strict=True):
        short, listed = short_name(name), ", ".join(dict.fromkeys(filter(None, details)))
        shown.append(f"{short[:-1]}, {listed}>" if listed and short.endswith(">") else short)
    return shown


def _parts(name: str) -> tuple[str, list[str]] | None:
    """Return the function's own name and its template arguments; None for what is not C++."""
    if not name.startswith("void ") and not (name.endswith((")", ") const", "…")) and "::" in name):
        return None
    text = name.replace("(anonymous namespace)", "anonymous")
    base, arguments, depth, begin = "", "", 0, 0
    for at, char in enumerate(text):
        if char == "<":
            if not depth:
                base, begin = base + text[begin:at], at + 1
            depth += 1
        elif char == ">" and depth:
            depth -= 1
            if not depth:
                arguments, begin = text[begin:at], at + 1
        elif char == " " and not depth:
            # What stood before was the return type.
            base, arguments, begin = "", "", at + 1
        elif char == "(" and not depth:
            base, begin = base + text[begin:at], len(text)
            break
    if depth:  # a name that was cut
        arguments, begin = text[begin:], len(text)
    base = _SPACES.sub("", base + text[begin:])
    if not base:
        return None
    *spaces, own = base.split("::")
    if own in _BARE and spaces:
        own = f"{spaces[-1]}::{own}"
    elif spaces and not arguments:
        own = "::".join([*spaces[-1:], own])
    return own, _split(arguments)


def _split(arguments: str) -> list[str]:
    """Return a template's own arguments, not those of the types within."""
    split, depth, begin = [], 0, 0
    for at, char in enumerate(arguments):
        if char in "<({[":
            depth += 1
        elif char in ">)}]":
            depth -= 1
        elif char == "," and not depth:
            split.append(arguments[begin:at].strip())
            begin = at + 1
    return [part for part in [*split, arguments[begin:].strip()] if part]


def _purpose(arguments: Sequence[str]) -> list[str]:
    """Return what the arguments say that the kernel does; empty if they are only types and
    sizes.
    """
    text = ", ".join(arguments)
    functors = [match[0] for match in _FUNCTOR.finditer(text)]
    functors += [match[1] for match in _LAMBDA_IN.finditer(text)]
    named = [each for each in dict.fromkeys(functors) if not _WRAPPERS.search(each)]
    if named:
        return named[:MOST_PARTS]
    for argument in arguments:
        own = re.split(r"[<(]", argument, maxsplit=1)[0].rsplit("::", 1)[-1]
        untelling = _UNTELLING.search(own) or _WRAPPERS.search(own)
        if own and not untelling and not _PLAIN.fullmatch(argument):
            return [own]
    return []
