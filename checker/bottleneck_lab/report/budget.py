"""The sums of a step in words, by the answers to `budget` and `step`: which side is the slower one,
and what is left without some lines and with other work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.trace.names import FIXED_PRICE
from bottleneck_lab.wording import counted, list_numbers

LEAST_LEFT = 1e-3
"""Less than this part (0-1) of a sum is what rounding leaves."""
WORTH_A_WORD = 1.01
"""A gain below this is none."""
NOW, SUM = "a step now, with waits", "sum"
WITHOUT_WAITS, NOT_IDLE = "all but waits", "all but idle time"
_ADDED = re.compile(r"(?P<count>[1-9]\d*)|(?P<time>\d+(\.\d+)?) ?(?P<unit>ms|us|µs)")
_UNITS_MS = {"ms": 1.0, "us": 1e-3, "µs": 1e-3}


def find_parts(answer: QueryResult, left_out: Sequence[str]) -> list[str]:
    """Return the names of the parts that are `left_out`, each given as `31`, `13-18`, `train.py:31`
    or the beginning of its name. Raises UsageError for one that is not there or is not clear.
    """
    rows = _rows(answer)
    return list(dict.fromkeys(part for each in left_out for part in _parts_of(each, rows)))


class Gains(NamedTuple):
    """How many times as fast a step would be without some parts alone, with the waits of others as
    they are, and with all waits gone alone; None where that is not known.
    """

    alone: float | None = None
    no_waits: float | None = None


def describe_change(
    answer: QueryResult, parts: Sequence[str], added: Sequence[str], gains: Gains
) -> str:
    """Return what these parts take, what a step gains without them alone, and what it would take if
    nothing waited, too, with both sums. What is added in their place is launches, such as `3`, or
    time of the host, such as `0.2ms`.

    Raises UsageError for what cannot be added, and for launches where none has a price.
    """
    rows = _rows(answer)
    taken, whole, each_us = _add_up(rows, parts), _add_up(rows, [SUM]), _price_us(rows)
    launches, added_ms = _added(added)
    if launches and not each_us:
        raise UsageError(
            "`--with` counts launches at what one costs the host here, and no line of this capture"
            " launches anything on a device.",
            "Give the host's time, as in `--with 0.2ms`.",
        )
    new_ms = launches * each_us / 1e3 + added_ms
    host = whole["host_ms"] - taken["host_ms"] + new_ms
    device = whole["device_ms"] - taken["device_ms"]
    longer, now = max(host, device), rows[NOW]["host_ms"]
    if longer < LEAST_LEFT * now:
        return f"{_describe_parts(parts, taken)}. Without that, nothing is left of the step."
    lines = []
    if parts:
        lines.append(f"Left out: {_describe_parts(parts, taken)}.")
    if parts and gains.alone is not None and not added:
        lines.append(
            "By itself, with the waits of other lines as they are, that makes a step"
            f" {gains.alone:.2f} times as fast."
        )
    if added:
        count = f"{counted(launches, 'launch', 'launches')} at {each_us:.3g} µs of the host"
        time = f"{added_ms:.4g} ms of the host"
        lines.append(f"Added: {' and '.join([count] * bool(launches) + [time] * bool(added_ms))}.")
    waits = ""
    if gains.no_waits is not None and gains.no_waits > WORTH_A_WORD:
        waits = f"; {gains.no_waits:.2f} times if only the waits go"
    lines += [
        f"With all waits gone as well, a step takes about {longer:.4g} ms instead of {now:.4g} ms:"
        f" {now / longer:.2f} times as fast{waits}.",
        f"  host    {_describe_sum(whole['host_ms'], taken['host_ms'], new_ms)}",
    ]
    if whole["device_ms"]:
        own = ", and what your own code takes there" if added else ""
        lines.append(f"  device  {_describe_sum(whole['device_ms'], taken['device_ms'])}{own}")
    if each_us and not added:
        lines.append(f"Each launch in its place costs the host about {each_us:.3g} µs: `--with 3`.")
    return "\n".join(lines)


def _rows(answer: QueryResult) -> dict[str, dict[str, float]]:
    return {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}


def _describe_sum(whole: float, taken: float, new: float = 0.0) -> str:
    """Return what is left of a sum in ms, as it is added up."""
    less = f" − {taken:.4g}" * bool(taken)
    more = f" + {new:.4g}" * bool(new)
    left = whole - taken + new
    if left < LEAST_LEFT * whole:
        left = 0.0
    return f"{whole:.4g}{less}{more} = {left:.4g} ms" if less or more else f"{left:.4g} ms"


def describe_sides(answer: QueryResult) -> str:
    """Return which side of a step is the slower one without waits, by the answer to `budget` or
    `step`; empty without an accelerator.
    """
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    sums = {row["part"]: row for row in rows}
    if SUM in sums:
        host, device = sums[SUM]["host_ms"], sums[SUM]["device_ms"]
    else:
        host, device = (sums.get(part, {}).get("ms_a_step") for part in (WITHOUT_WAITS, NOT_IDLE))
    if not host or not device:
        return ""
    slower, other = ("host", "device") if host > device else ("device", "host")
    longer, shorter = max(host, device), min(host, device)
    return (
        f"Without waits the {slower} is the slower side: {longer:.4g} ms a step, against"
        f" {shorter:.4g} on the {other}. Once nothing waits, only less work there saves time."
    )


def _added(texts: Sequence[str]) -> tuple[int, float]:
    """Return launches and ms of the host that are added; raise UsageError for anything else."""
    launches, ms = 0, 0.0
    for text in texts:
        match = _ADDED.fullmatch(text.strip())
        if not match:
            raise UsageError(
                f"'{text}' is neither a number of launches nor a time.",
                "`--with` takes launches, as `--with 3`, or time of the host, as `--with 0.2ms`.",
            )
        if match["unit"]:
            ms += float(match["time"]) * _UNITS_MS[match["unit"]]
        else:
            launches += int(match["count"])
    return launches, ms


def _add_up(rows: dict[str, dict[str, float]], parts: Sequence[str]) -> dict[str, float]:
    """Return the sums of these parts' launches, and of their times on the host and the device.

    Without an accelerator, a step has neither launches nor a side of a device.
    """
    return {
        column: sum(rows[part][column] or 0.0 for part in parts)
        for column in ("launches", "host_ms", "device_ms")
    }


def _describe_parts(parts: Sequence[str], taken: dict[str, float]) -> str:
    """Return the names of these parts, lines by their file, with what they take of a step."""
    numbers: dict[str, set[int]] = {}
    others = []
    for part in parts:
        if match := LINE.match(without_folders(part)):
            numbers.setdefault(match[1], set()).add(int(match[2]))
        else:
            others.append(part)
    lines = [
        f"line{'s' * (len(each) > 1)} {list_numbers(sorted(each))} of {file}"
        for file, each in numbers.items()
    ]
    names, verb = " and ".join([*lines, *others]), "is" if len(parts) == 1 else "are"
    host, launches = f"{taken['host_ms']:.4g} ms on the host", f"{round(taken['launches'], 1):,g}"
    if not taken["launches"]:
        return f"{names} {verb} {host}"
    noun = "launch" if launches == "1" else "launches"
    return f"{names} {verb} {launches} {noun}, {host} and {taken['device_ms']:.4g} ms on the device"


def _price_us(rows: dict[str, dict[str, float]]) -> float:
    """Return what a launch of the answer costs the host (µs); 0 where nothing is launched."""
    each = [row["host_us_each"] for row in rows.values() if row["host_us_each"]]
    return median(each) if each else 0.0


def _parts_of(given: str, rows: dict[str, dict[str, float]]) -> list[str]:
    """Return the parts of the answer that are this line or these, or that begin so. Raises
    UsageError where there are none, and for a line's number alone that several files have.
    """
    file, _, numbers = given.rpartition(":")
    first, _, last = numbers.partition("-")
    own = {part: match for part in rows if (match := LINE.match(without_folders(part)))}
    if not (first.isdecimal() and (last or first).isdecimal()):
        others = [part for part in rows if part not in (*own, SUM, NOW)]
        # What a model charges whatever a program does cannot be left out.
        parts = [each for each in others if each.startswith(given) and not FIXED_PRICE.search(each)]
    else:
        wanted = range(int(first), int(last or first) + 1)
        parts = [part for part, match in own.items() if int(match[2]) in wanted]
        parts = [part for part in parts if file in ("", own[part][1])]
    files = list(dict.fromkeys(own[part][1] for part in parts if part in own))
    if len(files) > 1:
        raise UsageError(
            f"On line{'s' * bool(last)} {numbers}, {' and '.join(files)} each start or wait for"
            " something.",
            f"Say which: {' or '.join(f'`--without {each}:{numbers}`' for each in files)}.",
        )
    if not parts:
        there = [f"{match[1]}:{match[2]}" for match in own.values()]
        raise UsageError(
            f"'{given}' is no line that starts or waits for anything in a step, nor does a row that"
            " can be left out begin so.",
            f"`--without` takes one of these: {', '.join(there)}; or how another row begins."
            if there
            else "`lab profile --stack` records lines.",
        )
    return parts
