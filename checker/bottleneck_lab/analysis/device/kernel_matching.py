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
    r"(?:sm|cutlass_)?_?\d+(?:x\d+)*|ampere|volta|turing|hopper|maxwell|f16|bf16|f32|tf32|fp16|fp32|half|float|double",
    re.IGNORECASE,
)


class Match(NamedTuple):
    """The kernel `new` took the place of the kernels `old`."""

    old: tuple[str, ...]
    new: str


def match_kernels(before: Series, after: Series, origins: Mapping[str, str]) -> list[Match]:
    """Match the kernels that are only in `after` with those only in `before` that they replace; a
    kernel is matched once at most.

    First by name without sizes, architectures and types; then a compiler's fused kernel by the
    operators in its name; then by the operator that launched it, where one kernel before stands
    against one after. `origins`: the launching operator by kernel.
    """
    kernels = [{name for group, name in side if group == "kernel"} for side in (before, after)]
    gone, come = kernels[0] - kernels[1], kernels[1] - kernels[0]
    matches: list[Match] = []
    for pairs in (
        _by_name(gone, come),
        _fused(gone, come, origins),
        _by_origin(gone, come, origins),
    ):
        for match in pairs:
            if match.new in come and gone.issuperset(match.old):
                matches.append(match)
                come.discard(match.new)
                gone.difference_update(match.old)
    return matches


def _plain(name: str) -> str:
    """Return A kernel's name without template arguments, parameters, sizes, architectures and data
    types.
    """
    return _VARIANT.sub("", re.sub(r"[<(].*", "", name.removeprefix("void "))).strip("_: ")


def _by_name(gone: set[str], come: set[str]) -> list[Match]:
    return _alone(_grouped(gone, _plain), _grouped(come, _plain))


def _by_origin(gone: set[str], come: set[str], origins: Mapping[str, str]) -> list[Match]:
    return _alone(
        _grouped(gone, lambda name: origins.get(name, "")),
        _grouped(come, lambda name: origins.get(name, "")),
    )


def _grouped(names: set[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for name in sorted(names):
        groups[key(name)].append(name)
    return groups


def _alone(old: dict[str, list[str]], new: dict[str, list[str]]) -> list[Match]:
    """Match one against one: of several it cannot be told which is which."""
    return [
        Match((old[key][0],), names[0])
        for key, names in new.items()
        if key and len(names) == 1 and len(old.get(key, ())) == 1
    ]


def _fused(gone: set[str], come: set[str], origins: Mapping[str, str]) -> list[Match]:
    """Match fused kernels: Inductor names a fused kernel after its operators:
    triton_poi_fused_add_mul_0.
    """
    matches = []
    for name in sorted(come):
        fused = _FUSED.match(name)
        if fused is None:
            continue
        inside = f"_{fused[1]}_"
        replaced = tuple(
            sorted(
                old
                for old in gone
                if (op := _operator(origins.get(old, ""))) and f"_{op}_" in inside
            )
        )
        if replaced:
            matches.append(Match(replaced, name))
    return matches


def _operator(origin: str) -> str:
    """aten::add_ → add."""
    return origin.rpartition("::")[2].strip("_")
