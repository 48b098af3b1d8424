"""The sums of a step with other launches in place of some lines, by the answer to `budget`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.wording import counted, list_numbers

LEAST_LEFT = 1e-6
"""Less than this part (0-1) of a step is what rounding leaves."""
NOW, SUM = "a step now, with waits", "sum"


def describe_change(answer: QueryResult, lines: Sequence[str], launches: int = 0) -> str:
    """Return what these lines take, each given as `31`, `13-18` or `train.py:31`, and below it both
    sums without them and with so many launches in their place, and the gain if nothing waited.

    Raises UsageError for a line that is not in the answer, and for launches where none has a price.
    """
    rows = {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}
    parts = list(dict.fromkeys(part for line in lines for part in _parts_of(line, rows)))
    taken, whole, each_us = _add_up(rows, parts), _add_up(rows, [SUM]), _price_us(rows)
    if launches and not each_us:
        raise UsageError(
            "`--with` counts launches at what one costs the host here, and no line of this capture"
            " launches anything on a device.",
            "Leave it out: `--without` needs no price.",
        )
    host = whole["host_ms"] - taken["host_ms"] + launches * each_us / 1e3
    device = whole["device_ms"] - taken["device_ms"]
    longer, now = max(host, device), rows[NOW]["host_ms"]
    out = f"In a step, {_describe_lines(parts, taken)}. " if parts else ""
    if longer < LEAST_LEFT * now:
        return f"{out}Without that, nothing is left of the step."
    change, price, more = "Without that, and with nothing in its place,", "", ""
    if launches:
        count = counted(launches, "launch", "launches")
        place = f"Without that, and with {count} in its place" if parts else f"With {count} more"
        change = f"{place}, {each_us:.3g} µs of the host each,"
        more = ", plus what your own code takes there"
    elif each_us:
        price = f"Each launch in their place costs the host about {each_us:.3g} µs. "
    return (
        f"{out}{price}What follows leaves out the waits of all lines, so it is not what this change"
        f" gains alone.\n{change} the sums are {host:.4g} ms on the host and {device:.4g} ms on the"
        f" device{more}. With no wait left anywhere a step takes about {longer:.4g} ms instead of"
        f" {now:.4g} ms: {now / longer:.2f} times as fast."
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


def _price_us(rows: dict[str, dict[str, float]]) -> float:
    """Return what a launch of the answer costs the host (µs); 0 where nothing is launched."""
    each = [row["host_us_each"] for row in rows.values() if row["host_us_each"]]
    return median(each) if each else 0.0


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
