"""The sums of a step without some of its lines, by the answer to the question `budget`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError

LEAST_LEFT = 1e-6
"""Less than this part (0-1) of a step is what rounding leaves."""
NOW, SUM = "a step now, with waits", "sum"


def describe_without(answer: QueryResult, lines: Sequence[str]) -> str:
    """Return what is left of both sums without these lines, each given as `31`, `13-18` or
    `train.py:31`, and the gain if nothing waited. Raises UsageError for a line that is not in the
    answer.
    """
    rows = {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}
    parts = list(dict.fromkeys(part for line in lines for part in _parts_of(line, rows)))
    # Without an accelerator, a step has no side of a device.
    host, device = (
        (rows[SUM][side] or 0.0) - sum(rows[part][side] or 0.0 for part in parts)
        for side in ("host_ms", "device_ms")
    )
    longer, now = max(host, device), rows[NOW]["host_ms"]
    names = " and ".join(without_folders(part).partition(":")[0] for part in parts)
    if longer < LEAST_LEFT * now:
        return f"Without {names}, nothing is left of a step."
    return (
        f"Without {names}, the sums are {host:.4g} ms on the host and {device:.4g} ms on the"
        f" device. With no wait left anywhere, and nothing in their place, a step is about"
        f" {now:.4g} ms / {longer:.4g} ms = {now / longer:.2f}x as fast. That leaves out the waits"
        f" of all lines, so it is not what these lines gain alone.{_price(rows)}"
    )


def _price(rows: dict[str, dict[str, float]]) -> str:
    """Return what a launch in place of others costs the host, as the launches of the answer do."""
    each = [row["host_us_each"] for row in rows.values() if row["host_us_each"]]
    return (
        f" Each launch in their place costs the host about {median(each):.3g} µs." if each else ""
    )


def _parts_of(line: str, rows: dict[str, dict[str, float]]) -> list[str]:
    """Return the parts of the answer that are this line, of whichever file if none is given."""
    file, _, numbers = line.rpartition(":")
    first, _, last = numbers.partition("-")
    wanted = range(0)
    if first.isdecimal() and (last or first).isdecimal():
        wanted = range(int(first), int(last or first) + 1)
    parts = [
        part
        for part in rows
        if (match := LINE.match(without_folders(part)))
        and int(match[2]) in wanted
        and file in ("", match[1])
    ]
    if not parts:
        there = [f"{m[1]}:{m[2]}" for part in rows if (m := LINE.match(without_folders(part)))]
        raise UsageError(
            f"No line {line} starts or waits for anything in a step.",
            f"`--without` takes one of these: {', '.join(there)}."
            if there
            else "`lab profile --stack` records lines.",
        )
    return parts
