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

WORTH_A_WORD = 1.01
"""Waits whose end gains less than that are none to speak of."""
LEAST_LEFT = 1e-3
"""Less than this part (0-1) of a sum is what rounding leaves."""
NOW, SUM = "a step now, with waits", "sum"
WITHOUT_WAITS, NOT_IDLE = "all but waits", "all but idle time"
_ADDED = re.compile(
    r"(?P<count>[1-9]\d*)|((?P<side>device):)?(?P<time>\d+(\.\d+)?) ?(?P<unit>ms|us|µs)"
)
_OWN_WORK = ", and what your own code takes there: `--with device:0.2ms`"
_UNITS_MS = {"ms": 1.0, "us": 1e-3, "µs": 1e-3}


def find_parts(answer: QueryResult, left_out: Sequence[str]) -> list[str]:
    """Return the names of the parts that are `left_out`, each given as `31`, `13-18`, `train.py:31`
    or the beginning of its name. Raises UsageError for one that is not there or is not clear.
    """
    rows = _rows(answer)
    return list(dict.fromkeys(part for each in left_out for part in _parts_of(each, rows)))


class Change(NamedTuple):
    """A change of a step: parts that are left out, as `find_parts` takes them; what is added in
    their place, launches such as `3`, time of the host such as `0.2ms` or of the device such as
    `device:0.2ms`; and the share (0-1) of the device's other work that remains.
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
    lines still wait, where that is known; told where waits matter.

    Raises UsageError for what cannot be added, and for launches where none has a price.
    """
    rows = _rows(answer)
    taken, whole, each_us = _add_up(rows, parts), _add_up(rows, [SUM]), _price_us(rows)
    added = _read_added(change.added)
    if added.launches and not each_us:
        raise UsageError(
            "`--with` counts launches at what one costs the host here, and no line of this capture"
            " launches anything on a device.",
            "Give the host's time, as in `--with 0.2ms`.",
        )
    new_ms = added.launches * each_us / 1e3 + added.host_ms
    host = _Sum(whole["host_ms"], taken["host_ms"], new_ms)
    device = _Sum(whole["device_ms"], taken["device_ms"], added.device_ms, change.device_share)
    left_ms, now_ms = max(host.left, device.left), rows[NOW]["host_ms"]
    if left_ms < LEAST_LEFT * now_ms:
        return f"{_describe_parts(parts, taken)}. Without that, nothing is left of the step."
    lines = [f"Left out: {_describe_parts(parts, taken)}."] * bool(parts)
    if change.added:
        lines.append(f"Added: {added.describe(each_us)}.")
    if change.device_share != 1:
        lines.append(f"Of the device's other work, {change.device_share:.0%} remains.")
    takes = f"a step takes about {left_ms:.4g} ms instead of {now_ms:.4g} ms"
    gain, waits_gone = now_ms / left_ms, now_ms / max(host.whole, device.whole)
    if waits_gone < WORTH_A_WORD:
        lines.append(f"After that, {takes}: {gain:.2f} times as fast.")
    else:
        if parts and alone is not None:
            # At most, all that is added comes on top.
            with_added = now_ms / (now_ms / alone + host.new + device.new)
            least = "with this in its place, and " * bool(change.added)
            bound = "at least " * bool(change.added)
            lines.append(
                f"Alone, {least}while other lines wait: {bound}{with_added:.2f} times as fast."
            )
        lines.append(f"With all waits gone as well, {takes}: {gain:.2f} times as fast.")
    lines.append(f"  host    {host.describe()}")
    if device.whole:
        own = added.launches and not added.device_ms
        lines.append(f"  device  {device.describe()}{_OWN_WORK if own else ''}")
    if each_us and not change.added:
        less = ""
        if change.device_share == 1:
            less = "; `--device-work 0.75` is for less work on the device"
        price = f"Each launch in its place costs the host about {each_us:.3g} µs: `--with 3`"
        lines.append(f"{price}{less}.")
    return "\n".join(lines)


class _Sum(NamedTuple):
    """One side of a step, ms: what it is now, what is left out and added, and the share (0-1) of
    the rest that remains.
    """

    whole: float
    taken: float
    new: float = 0.0
    share: float = 1.0

    @property
    def left(self) -> float:
        return (self.whole - self.taken) * self.share + self.new

    def describe(self) -> str:
        """Return what is left, as it is worked out."""
        terms = f"{self.whole:.4g}" + f" − {self.taken:.4g}" * bool(self.taken)
        if self.share != 1:
            terms = f"({terms})" * bool(self.taken) or terms
            terms += f" × {self.share:.4g}"
        terms += f" + {self.new:.4g}" * bool(self.new)
        left = f"{self.left:.4g}" if self.left > LEAST_LEFT * self.whole else "about 0"
        return f"{left} ms" if terms == f"{self.whole:.4g}" else f"{terms} = {left} ms"


class _Added(NamedTuple):
    """Work that takes the place of a step's: launches, and ms on the host and on the device."""

    launches: int
    host_ms: float
    device_ms: float

    def describe(self, each_us: float) -> str:
        """Return the work in words; `each_us`: what a launch costs the host."""
        count = f"{counted(self.launches, 'launch', 'launches')} at {each_us:.3g} µs of the host"
        parts = [count] * bool(self.launches)
        parts += [f"{self.host_ms:.4g} ms of the host"] * bool(self.host_ms)
        parts += [f"{self.device_ms:.4g} ms of the device"] * bool(self.device_ms)
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _rows(answer: QueryResult) -> dict[str, dict[str, float]]:
    return {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}


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
    return compare_sides(host, device, sums[NOW]["host_ms"] if NOW in sums else 0.0)


def compare_sides(host_ms: float, device_ms: float, now_ms: float = 0.0) -> str:
    """Return which side of a step is the slower one, by what each takes without waits, and what a
    step gains that takes `now_ms` with them, where that is known.
    """
    slower, other = ("host", "device") if host_ms > device_ms else ("device", "host")
    longer_ms, shorter_ms = max(host_ms, device_ms), min(host_ms, device_ms)
    gain = ""
    if now_ms > WORTH_A_WORD * longer_ms:
        gain = f", {now_ms / longer_ms:.2f} times as fast as now"
    return (
        f"Without waits the {slower} is the slower side: {longer_ms:.4g} ms a step, against"
        f" {shorter_ms:.4g} on the {other}. Once nothing waits, a step takes as long as the"
        f" {slower}{gain}, and only less work there saves more."
    )


def _read_added(texts: Sequence[str]) -> _Added:
    """Return the work that these texts add; raise UsageError for anything else."""
    launches, ms = 0, {"host": 0.0, "device": 0.0}
    for text in texts:
        match = _ADDED.fullmatch(text.strip())
        if not match:
            raise UsageError(
                f"'{text}' is neither a number of launches nor a time.",
                "`--with` takes launches, as `--with 3`, time of the host, as `--with 0.2ms`, or of"
                " the device, as `--with device:0.2ms`.",
            )
        if match["unit"]:
            ms[match["side"] or "host"] += float(match["time"]) * _UNITS_MS[match["unit"]]
        else:
            launches += int(match["count"])
    return _Added(launches, ms["host"], ms["device"])


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
