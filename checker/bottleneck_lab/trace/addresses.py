"""Names without the addresses of objects, which differ from process to process."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from bottleneck_lab.trace.timeline import Timeline

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NAMED = ("python", "ranges", "operators")
"""The tables whose names a program's own objects may be part of."""


def without_addresses(timeline: Timeline) -> Timeline:
    """Return the timeline with one name for a function of Python, whichever object it belongs to:
    `<built-in method run of Engine object>`, without ` at 0x7f4a965a7d40`.
    """
    numbers = {text: number for number, text in enumerate(timeline.strings)}
    names = np.array(
        [
            numbers.setdefault(_ADDRESS.sub("", text), len(numbers)) if " at 0x" in text else number
            for number, text in enumerate(timeline.strings)
        ],
        dtype=np.int32,
    )
    if (names == np.arange(len(names))).all():
        return timeline
    tables = {name: getattr(timeline, name) for name in _NAMED}
    named = {key: replace(table, name=names[table.name]) for key, table in tables.items()}
    return replace(timeline, strings=tuple(numbers), **named)
