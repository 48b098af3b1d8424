"""Tell which kernels after a change do what others did before it: renamed by another library
version or data type, or fused into one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bottleneck_lab.analysis.steps.figures import Series

_FUSED = re.compile(r"^triton_(?:poi|red|per|tem|for)_fused_(.+?)_?\d*$")
_VARIANT = re.compile(
    r"(?:sm|cutlass_)?_?\d+(?:x\d+)*|ampere|volta|turing|hopper|maxwell"
    r"|f16|bf16|f32|tf32|fp16|fp32|half|float|double",
    re.IGNORECASE,
)


class Match(NamedTuple):
    """The kernel `new` took the place of the kernels `old`."""

    old: tuple[str, ...]
    new: str


def match_kernels(before: Series, after: Series, origins: Mapping[str, str]) -> list[Match]:
    """Match the kernels that are only in `after` with those only in `before` that they replace; a
    kernel is matched once at most.

    First by name without parameters, then also without sizes, architectures and types; then a
    compiler's fused kernel by the operators in its name; then by the operator that launched it,
    where one kernel before stands against one after. `origins`: the launching operator by kernel.
    """
    kernels = [{name for group, name in side if group == "kernel"} for side in (before, after)]
    removed, added = kernels[0] - kernels[1], kernels[1] - kernels[0]

    def origin(name: str) -> str:
        return origins.get(name, "")

    by_signature = _one_against_one(removed, added, _without_parameters)
    by_name = _one_against_one(removed, added, _plain)
    by_operators = _fused(removed, added, origins)
    by_origin = _one_against_one(removed, added, origin)
    matches: list[Match] = []
    for match in (*by_signature, *by_name, *by_operators, *by_origin):
        if match.new in added and removed.issuperset(match.old):
            matches.append(match)
            added.discard(match.new)
            removed.difference_update(match.old)
    return matches


def _without_parameters(name: str) -> str:
    """Return a C++ kernel's name with its template arguments alone; "" for other names."""
    depth = 0
    for at in range(len(name) - 1, -1, -1) if name.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if not depth:
            return name[:at]
    return ""


def _plain(name: str) -> str:
    """Return a kernel's name without template arguments, parameters, sizes, architectures and data
    types.
    """
    return _VARIANT.sub("", re.sub(r"[<(].*", "", name.removeprefix("void "))).strip("_: ")


def _one_against_one(removed: set[str], added: set[str], key: Callable[[str], str]) -> list[Match]:
    """Match kernels whose keys are equal. Of several with one key it cannot be told which is
    which.
    """
    old: dict[str, list[str]] = defaultdict(list)
    new: dict[str, list[str]] = defaultdict(list)
    for groups, names in ((old, removed), (new, added)):
        for name in sorted(names):
            groups[key(name)].append(name)
    return [
        Match((old[group][0],), names[0])
        for group, names in new.items()
        if group and len(names) == 1 and len(old.get(group, ())) == 1
    ]


def _fused(removed: set[str], added: set[str], origins: Mapping[str, str]) -> list[Match]:
    """Match fused kernels by their names: Inductor puts the operators into them."""
    matches = []
    for name in sorted(added):
        fused = _FUSED.match(name)
        if fused is None:
            continue
        inside = f"_{fused[1]}_"  # of triton_poi_fused_add_mul_0: _add_mul_
        replaced = []
        for old in sorted(removed):
            operator = origins.get(old, "").rpartition("::")[2].strip("_")  # aten::add_ is add
            if operator and f"_{operator}_" in inside:
                replaced.append(old)
        if replaced:
            matches.append(Match(tuple(replaced), name))
    return matches
