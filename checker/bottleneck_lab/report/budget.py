"""The sums of a step without some of its lines, by the answer to the question `budget`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.wording import list_numbers

LEAST_LEFT = 1e-6
"""Less than this part (0-1) of a step is what rounding leaves."""
NOW, SUM = "a step now, with waits", "sum"


def describe_without(answer: QueryResult, lines: Sequence[str]) -> str:
    """Return what these lines take, each given as `31`, `13-18` or `train.py:31`, and below it what
    is left of both sums without them, and the gain if nothing waited. Raises UsageError for a line
    that is not in the answer.
    """
    rows = {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}
    parts = list(dict.fromkeys(part for line in lines for part in _parts_of(line, rows)))
    taken, whole = _add_up(rows, parts), _add_up(rows, [SUM])
    host, device = (whole[side] - taken[side] for side in ("host_ms", "device_ms"))
    longer, now = max(host, device), rows[NOW]["host_ms"]
    out = f"In a step, {_describe_lines(parts, taken)}."
    if longer < LEAST_LEFT * now:
        return f"{out} Without these lines, nothing is left of it."
    return (
        f"{out}{_price(rows)} What follows leaves out the waits of all lines, so it is not what"
        f" these lines gain alone.\nWithout these lines, and with nothing in their place, the sums"
        f" are {host:.4g} ms on the host and {device:.4g} ms on the device. With no wait left"
        f" anywhere a step takes about {longer:.4g} ms instead of {now:.4g} ms:"
        f" {now / longer:.2f} times as fast."
    )


def _add_up(rows: dict[str, dict[str, float]], parts: Sequence[str]) -> dict[str, float]:
    """Return the sums of these parts' launches, and of their times on the host and the device.

    Without an accelerator, a step has neither launches nor a side of a device.
    """
    return {
        column: sum(rows[part][column] or 0.0 for part in parts)
        for column in ("launches", "host_ms", "device_ms")
    }


def _describe_lines(parts: Sequence[str], taken: dict[str, float]) -> str:
    """Return the lines that these parts are, by their file, with what they take of a step."""
    numbers: dict[str, set[int]] = {}
    for part in parts:
        if match := LINE.match(without_folders(part)):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    names = " and ".join(
        f"line{'s' * (len(each) > 1)} {list_numbers(sorted(each))} of {file}"
        for file, each in numbers.items()
    )
    verb = "is" if sum(map(len, numbers.values())) == 1 else "are"
    host, launches = f"{taken['host_ms']:.4g} ms on the host", f"{round(taken['launches'], 1):,g}"
    if not taken["launches"]:
        return f"{names} {verb} {host}"
    noun = "launch" if launches == "1" else "launches"
    return f"{names} {verb} {launches} {noun}, {host} and {taken['device_ms']:.4g} ms on the device"


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
