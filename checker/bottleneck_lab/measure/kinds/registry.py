"""Finds a kind of lab by name: the packages next to this file, and other distributions' entry
points.
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

OLD_NAMES = {
    "feed": "input_pipeline",
    "ranks": "data_parallel",
    "finding": "operator_profile",
    "requests": "http_server",
    "server": "inference_server",
}
"""What lab packs written for earlier versions call the kinds."""


def kind_of(lab: Lab) -> Kind[Any]:
    """The kind of a lab. Raises LabError if no kind has that name."""
    return find_kind(lab.spec.measure)


@cache
def find_kind(name: str) -> Kind[Any]:
    """The kind called `name`; a built-in one before any other. Raises LabError if there is none."""
    name = OLD_NAMES.get(name, name)
    if name in built_in():
        return _checked(import_module(f"{kinds.__name__}.{name}").KIND, name)
    for entry in entry_points(group=GROUP, name=name):
        return _checked(entry.load(), name)
    known = sorted({*built_in(), *entry_points(group=GROUP).names})
    raise LabError(
        f"There is no kind of lab called '{name}'.",
        f"Known kinds: {', '.join(known)}. Install the lab pack that brings '{name}', or correct"
        " `measure` in lab.toml.",
    )


@cache
def built_in() -> frozenset[str]:
    """The names of the kinds that are part of this package."""
    return frozenset(module.name for module in pkgutil.iter_modules(kinds.__path__) if module.ispkg)


def _checked(found: object, name: str) -> Kind[Any]:
    if not isinstance(found, Kind):
        raise LabError(
            f"The entry point '{name}' of {GROUP} is not a kind of lab.",
            "It must name an instance of a subclass of bottleneck_lab.measure.kinds.base.Kind.",
        )
    return found
