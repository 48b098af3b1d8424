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


class Change(NamedTuple):
    """A change of a step: parts that are left out, as `find_parts` takes them; what is added in
    their place, launches such as `3` or time of the host such as `0.2ms`; and the share (0-1) of
    the device's other work that remains.
    """

    without: Sequence[str] = ()
    added: Sequence[str] = ()
    device_share: float = 1.0


UNCHANGED = Change()


def describe_change(
    answer: QueryResult, parts: Sequence[str], change: Change, alone: float | None = None
) -> str:
    """Return what these parts take, and what a step would take after the change if nothing waited,
    too, with both sums. `alone`: how many times as fast a step is without the parts while other
    lines still wait, where that is known.

    Raises UsageError for what cannot be added, and for launches where none has a price.
    """
    added, device_share = change.added, change.device_share
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
    device = (whole["device_ms"] - taken["device_ms"]) * device_share
    longer, now = max(host, device), rows[NOW]["host_ms"]
    if longer < LEAST_LEFT * now:
        return f"{_describe_parts(parts, taken)}. Without that, nothing is left of the step."
    lines = []
    if parts:
        lines.append(f"Left out: {_describe_parts(parts, taken)}.")
    if parts and alone is not None:
        lines.append(
            "By itself, with nothing in its place and the waits of other lines as they are, that"
            f" makes a step {alone:.2f} times as fast."
        )
    if added:
        count = f"{counted(launches, 'launch', 'launches')} at {each_us:.3g} µs of the host"
        time = f"{added_ms:.4g} ms of the host"
        lines.append(f"Added: {' and '.join([count] * bool(launches) + [time] * bool(added_ms))}.")
    if device_share != 1:
        lines.append(f"Of the device's other work, {device_share:.0%} remains.")
    waits_gone = now / max(whole["host_ms"], whole["device_ms"])
    lines += [
        f"With all waits gone as well, a step takes about {longer:.4g} ms instead of {now:.4g} ms:"
        f" {now / longer:.2f} times as fast; {waits_gone:.2f} times if only the waits go.",
        f"  host    {_describe_sum(whole['host_ms'], taken['host_ms'], new_ms)}",
    ]
    if whole["device_ms"]:
        sum_ = _describe_sum(whole["device_ms"], taken["device_ms"], share=device_share)
        own = ", and what your own code takes there" if added else ""
        lines.append(f"  device  {sum_}{own}")
    if each_us and not added:
        less = "" if device_share != 1 else "; `--device-work 0.75` is for less work on the device"
        price = f"Each launch in its place costs the host about {each_us:.3g} µs: `--with 3`"
        lines.append(f"{price}{less}.")
    return "\n".join(lines)


def _rows(answer: QueryResult) -> dict[str, dict[str, float]]:
    return {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}


def _describe_sum(whole: float, taken: float, new: float = 0.0, share: float = 1.0) -> str:
    """Return what is left of a sum in ms, as it is worked out."""
    terms = f"{whole:.4g}" + f" − {taken:.4g}" * bool(taken)
    if share != 1:
        terms = f"({terms})" * bool(taken) or terms
        terms += f" × {share:.4g}"
    terms += f" + {new:.4g}" * bool(new)
    left = (whole - taken) * share + new
    if left < LEAST_LEFT * whole:
        left = 0.0
    return f"{left:.4g} ms" if terms == f"{whole:.4g}" else f"{terms} = {left:.4g} ms"


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
