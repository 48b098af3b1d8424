"""Find a kind of lab by name: among the packages beside this file, then among the entry points of
other distributions.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure import kinds
from bottleneck_lab.measure.kinds.base import Kind

GROUP = "bottleneck_lab.kinds"
"""The group of entry points; each names the one object of a kind (`pack.kinds.quiz:KIND`)."""


def kind_of(lab: Lab) -> Kind[Any]:
    """Return the kind of a lab. Raises LabError if no kind has the name in its lab.toml."""
    return find_kind(lab.spec.measure)


@cache
def find_kind(name: str) -> Kind[Any]:
    """Return the kind called `name`. Raises LabError if there is none.

    A built-in kind comes before any other, so that no pack can replace the code of a verdict.
    """
    if name in built_in():
        built_in_kind: Kind[Any] = import_module(f"{kinds.__name__}.{name}").KIND
        return built_in_kind
    for entry in entry_points(group=GROUP, name=name):
        kind = entry.load()
        if not isinstance(kind, Kind):
            raise LabError(
                f"The entry point '{name}' of {GROUP} is not a kind of lab.",
                "It must name an instance of a subclass of bottleneck_lab.measure.kinds.base.Kind.",
            )
        return kind
    known = sorted({*built_in(), *entry_points(group=GROUP).names})
    raise LabError(
        f"There is no kind of lab called '{name}'.",
        f"Known kinds: {', '.join(known)}. Install the lab pack that brings '{name}', or correct"
        " `measure` in lab.toml.",
    )


@cache
def built_in() -> frozenset[str]:
    """Return the names of the kinds that are part of this package."""
    return frozenset(module.name for module in pkgutil.iter_modules(kinds.__path__) if module.ispkg)
