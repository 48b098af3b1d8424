"""The sums of a step in words, by the answers to `budget` and `step`: which side is the slower one,
and what is left without some lines and with other work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.analysis.questions import AFTER_THE_HOST, IDLE, NOW, SUM
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.operator_launches import OPERATORS, find_operator
from bottleneck_lab.report.words import format_count, format_rounded
from bottleneck_lab.trace.names import FIXED_PRICE
from bottleneck_lab.wording import counted, list_numbers

WORTH_A_WORD = 1.01
"""Waits whose end gains less than that are none to speak of."""
LEAST_MS = 0.005
"""Less than this is not told: it would round to nothing."""
LEAST_LEFT = 1e-3
"""Less than this part (0-1) of a sum is what rounding leaves."""
_SIDES = ("host_ms", "waiting_ms", "device_ms")
WITHOUT_WAITS, NOT_IDLE = "all but waits", "all but idle time"
_ADDED = re.compile(
    r"(?P<count>[1-9]\d*)|((?P<side>device):)?(?P<time>\d+(\.\d+)?) ?(?P<unit>ms|us|µs)"
    r"|((?P<calls>[1-9]\d*) ?\* ?)?(?P<operator>[A-Za-z_][\w.]*)"
)
_OWN_WORK = ", without what your own code takes there: `--with device:0.2ms` adds it"
_UNITS_MS = {"ms": 1.0, "us": 1e-3, "µs": 1e-3}


def find_parts(answer: QueryResult, left_out: Sequence[str]) -> list[str]:
    """Return the names of the parts that are `left_out`, each given as `31`, `13-18`, `train.py:31`
    or the beginning of its name, or several of these with commas. Raises UsageError for one that is
    not there or is not clear.
    """
    rows = _rows(answer)
    given = [
        each
        for text in left_out
        for each in ([text] if _rows_that_begin(text, rows) else text.split(","))
    ]
    return list(dict.fromkeys(part for each in given for part in _parts_of(each.strip(), rows)))


class Change(NamedTuple):
    """A change of a step: parts that are left out, as `find_parts` takes them; what is added in
    their place, launches such as `3`, operators such as `6*layer_norm`, time of the host such as
    `0.2ms` or of the device such as `device:0.2ms`, several with commas; and the share (0-1) of the
    device's other work that remains.
    """

    without: Sequence[str] = ()
    added: Sequence[str] = ()
    device_share: float = 1.0


UNCHANGED = Change()


def describe_change(
    answer: QueryResult,
    parts: Sequence[str],
    change: Change,
    alone: float | None = None,
    *,
    emulated: bool = False,
) -> str:
    """Return what these parts take, and what a step would take after the change if nothing waited,
    too, with both sums. `alone`: how many times as fast a step is without the parts while other
    lines still wait, where that is known; told where waits matter. `emulated`: the capture is one
    of the emulated device.

    Raises UsageError for what cannot be added, for launches where none has a price, and for
    operators of another device than the emulated one.
    """
    rows = _rows(answer)
    taken, whole, each_us = _add_up(rows, parts), _add_up(rows, [SUM]), _price_us(rows)
    added = _read_added(change.added)
    _refuse_unknown_prices(added, each_us, emulated=emulated)
    new_ms = added.launches * each_us / 1e3 + added.host_ms
    host = _Sum(whole["host_ms"], taken["host_ms"], new_ms)
    device = _Sum(whole["device_ms"], taken["device_ms"], added.device_ms, change.device_share)
    left_ms, now_ms = max(host.left, device.left), rows[NOW]["host_ms"]
    if left_ms < LEAST_LEFT * now_ms:
        return f"{_describe_parts(parts, taken)}. Without that, nothing is left of the step."
    lines = [f"Left out: {_describe_parts(parts, taken)}."] * bool(parts)
    if change.added:
        lines.append(f"Added: {added.describe(each_us)}.")
        lines += [f"  {each}" for each in added.list_operators()]
    if change.device_share != 1:
        lines.append(f"Of the device's other work, {change.device_share:.0%} remains.")
    own = bool(added.launches and device.whole and not added.device_ms)
    host_is_slower = host.left >= device.left
    best = "about" if host_is_slower or not own else "at best"
    takes = (
        f"a step takes {best} {format_rounded(left_ms)} ms instead of {format_rounded(now_ms)} ms:"
        f" {now_ms / left_ms:.2f} times as fast"
    )
    staying_ms = whole["waiting_ms"] - taken["waiting_ms"]
    if now_ms < WORTH_A_WORD * max(host.whole, device.whole):
        lines.append(f"After that, {takes}.")
        if staying_ms >= LEAST_MS:
            lines.append(f"Waits that stay may add up to {format_rounded(staying_ms)} ms.")
    else:
        if alone is not None and change.device_share == 1:
            lines.append(_describe_alone(now_ms, now_ms / alone, taken, host.new + device.new))
        both = "This, and all waits gone" if alone is not None else "With all waits gone"
        lines.append(f"{both}: {takes}.")
    slower = ", the slower side"
    lines.append(f"  host    {host.describe()}{slower * bool(host_is_slower and device.whole)}")
    if device.whole:
        device_ms = f"{device.describe()}{slower * (not host_is_slower)}"
        lines.append(f"  device  {device_ms}{_OWN_WORK if own else ''}")
    if each_us and not change.added:
        less = ""
        if change.device_share == 1:
            less = "; `--device-work 0.8` is for less work on the device"
        price = f"each launch costs the host about {each_us:.3g} µs, `--with 3`"
        lines.append(f"For a prediction, add what takes its place: {price}{less}.")
    return "\n".join(lines)


def _refuse_unknown_prices(added: _Added, each_us: float, *, emulated: bool) -> None:
    """Raise UsageError for work whose price this capture doesn't tell."""
    if added.operators and not emulated:
        raise UsageError(
            "What an operator launches is known of the emulated device only.",
            "Give launches, as in `--with 3`: `--ask line-operators` shows what a line calls.",
        )
    if added.launches and not each_us:
        raise UsageError(
            "`--with` counts launches at what one costs the host here, and no line of this capture"
            " launches anything on a device.",
            "Give the host's time, as in `--with 0.2ms`.",
        )


def _describe_alone(
    now_ms: float, after_ms: float, taken: dict[str, float], added_ms: float
) -> str:
    """Return what a step takes while other lines still wait, after parts are gone that have `taken`
    so much of it; with what is added it takes that much more at most.
    """
    this = "This alone, while other lines still wait"
    if added_ms:
        most_ms = after_ms + added_ms
        return (
            f"{this}: {format_rounded(most_ms)} ms a step or less, {now_ms / most_ms:.2f} times as"
            " fast or more, if what is added waits for nothing: a single `.item()` may undo most of"
            " it."
        )
    terms, moved = _derive_alone(now_ms, after_ms, taken)
    return (
        f"{this}: {terms}{format_rounded(after_ms)} ms a step, which saves"
        f" {1 - after_ms / now_ms:.1%}: {now_ms / after_ms:.2f} times as fast.{moved}"
    )


def _derive_alone(now_ms: float, after_ms: float, taken: dict[str, float]) -> tuple[str, str]:
    """Return the sum by which a step takes `after_ms` without what has `taken` so much of it, up to
    the equals sign, and a sentence on its last term; both empty where it does not add up so.
    """
    sides = [taken[side] for side in ("host_ms", "waiting_ms") if taken[side]]
    # A replay of the capture says what is left; what is more than the rest has moved.
    moved_ms = after_ms - (now_ms - sum(sides))
    if moved_ms < LEAST_MS:
        return "", ""
    both, moved = " + ".join(map(format_rounded, sides)), format_rounded(moved_ms)
    if sides[1:]:
        both = f"({both})"
    return (
        f"{format_rounded(now_ms)} − {both} + {moved} = ",
        f" The {moved} ms are waits that come to other lines.",
    )


def derive_most_saved(answer: QueryResult) -> str:
    """Return how the row of a budget that saves most of a step alone comes to that; empty where it
    is no line, where its figures do not add up so, and without an accelerator.
    """
    rows = _rows(answer)
    saved = {part: row["saves_percent"] for part, row in rows.items() if row.get("saves_percent")}
    if not saved or SUM not in rows or not rows[SUM]["device_ms"]:
        return ""
    part = max(saved, key=lambda each: saved[each])
    line = LINE.match(without_folders(part))
    now_ms = rows[NOW]["host_ms"]
    after_ms = now_ms * (1 - saved[part] / 100)
    terms, moved = _derive_alone(now_ms, after_ms, _add_up(rows, [part]))
    if not line or not terms:
        return ""
    return (
        f"Without {line[1]}({line[2]}) a step takes {terms}{format_rounded(after_ms)} ms, which"
        f" saves {saved[part]:.1f}%.{moved}"
    )


def describe_allocations(ms: Mapping[str, float]) -> str:
    """Return how much of the lines' times on the host is `cudaMalloc`; empty where it is little."""
    told = [
        f"{format_rounded(each)} ms of {match[1]}({match[2]})"
        for line, each in ms.items()
        if each >= LEAST_MS and (match := LINE.match(without_folders(line)))
    ]
    if not told:
        return ""
    return (
        "Asking the driver for memory is in the host's time, with its wait for the device:"
        f" `cudaMalloc` takes {' and '.join(told)}."
    )


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
        whole = format_rounded(self.whole)
        terms = whole + f" − {format_rounded(self.taken)}" * bool(self.taken)
        if self.share != 1:
            terms = f"({terms})" * bool(self.taken) or terms
            terms += f" × {self.share:.4g}"
        terms += f" + {format_rounded(self.new)}" * bool(self.new)
        left = format_rounded(self.left) if self.left > LEAST_LEFT * self.whole else "about 0"
        return f"{left} ms" if terms == whole else f"{terms} = {left} ms"


class _Added(NamedTuple):
    """Work that takes the place of a step's: launches, those of operators among them, how many
    times each operator is called, and ms on the host and on the device.
    """

    launches: int
    operators: dict[str, int]
    host_ms: float
    device_ms: float

    def list_operators(self) -> list[str]:
        """Return the launches of each operator in words, then those of none."""
        listed = [OPERATORS[name].describe(name, times) for name, times in self.operators.items()]
        others = self.launches - sum(
            times * (OPERATORS[name].forward + OPERATORS[name].backward)
            for name, times in self.operators.items()
        )
        if listed and others:
            listed.append(f"{counted(others, 'launch', 'launches')} besides")
        return listed

    def describe(self, each_us: float) -> str:
        """Return the work in words; `each_us`: what a launch costs the host."""
        count = f"{counted(self.launches, 'launch', 'launches')} at {each_us:.3g} µs of the host"
        parts = [count] * bool(self.launches)
        parts += [f"{format_rounded(self.host_ms)} ms of the host"] * bool(self.host_ms)
        parts += [f"{format_rounded(self.device_ms)} ms of the device"] * bool(self.device_ms)
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _rows(answer: QueryResult) -> dict[str, dict[str, float]]:
    return {str(row[0]): dict(zip(answer.columns, row, strict=True)) for row in answer.rows}


def describe_sides(answer: QueryResult) -> str:
    """Return which side of a step is the slower one without waits, by the answer to `budget` or
    `step`; empty without an accelerator.
    """
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    sums = {row["part"]: row for row in rows}
    if SUM not in sums:
        each = {part: row["ms_a_step"] for part, row in sums.items()}
        host, device = each.get(WITHOUT_WAITS), each.get(NOT_IDLE)
        return compare_sides(host, device, device + (each[IDLE] or 0)) if host and device else ""
    host, device = sums[SUM]["host_ms"], sums[SUM]["device_ms"]
    return compare_sides(host, device, sums[NOW]["host_ms"]) if device else ""


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
        f"Without waits a step takes as long as its slower side, the {slower}:"
        f" {format_rounded(longer_ms)} ms{gain}. The {other} takes {format_rounded(shorter_ms)}."
        f" Only less work on the {slower} saves more."
    )


def _read_added(texts: Sequence[str]) -> _Added:
    """Return the work that these texts add; raise UsageError for anything else."""
    launches, operators, ms = 0, dict[str, int](), {"host": 0.0, "device": 0.0}
    for text in (part.strip() for each in texts for part in each.split(",")):
        match = _ADDED.fullmatch(text)
        if not match:
            raise UsageError(
                f"'{text}' is neither launches, an operator nor a time.",
                "`--with` takes launches, as `--with 3`, operators, as `--with"
                ' "6*layer_norm,gelu"`, time of the host, as `--with 0.2ms`, or of the device, as'
                " `--with device:0.2ms`.",
            )
        if match["unit"]:
            ms[match["side"] or "host"] += float(match["time"]) * _UNITS_MS[match["unit"]]
        elif match["count"]:
            launches += int(match["count"])
        else:
            name, calls = find_operator(match["operator"]), int(match["calls"] or 1)
            operators[name] = operators.get(name, 0) + calls
            launches += calls * (OPERATORS[name].forward + OPERATORS[name].backward)
    return _Added(launches, operators, ms["host"], ms["device"])


def _add_up(rows: dict[str, dict[str, float]], parts: Sequence[str]) -> dict[str, float]:
    """Return the sums of these parts' launches, and of their times: the host's work and waiting,
    and the device's work.

    Without an accelerator, a step has neither launches nor a side of a device.
    """
    return {
        column: sum(rows[part][column] or 0.0 for part in parts) for column in ("launches", *_SIDES)
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
    host = f"{format_rounded(taken['host_ms'])} ms on the host"
    if taken["waiting_ms"] >= LEAST_MS:
        host += f", {format_rounded(taken['waiting_ms'])} ms of waiting"
    launches = format_count(taken["launches"])
    if not taken["launches"]:
        return f"{names} {verb} {host}"
    noun = "launch" if launches == "1" else "launches"
    device = f"{format_rounded(taken['device_ms'])} ms on the device"
    return f"{names} {verb} {launches} {noun}, {host} and {device}"


def _price_us(rows: dict[str, dict[str, float]]) -> float:
    """Return what a launch of the answer costs the host (µs); 0 where nothing is launched."""
    each = [
        1e3 * row["host_ms"] / row["launches"]
        for part, row in rows.items()
        if row["launches"] and LINE.match(without_folders(part))
    ]
    return median(each) if each else 0.0


def _parts_of(given: str, rows: dict[str, dict[str, float]]) -> list[str]:
    """Return the parts of the answer that are this line or these, or that begin so. Raises
    UsageError where there are none, and for a line's number alone that several files have.
    """
    file, _, numbers = given.rpartition(":")
    first, _, last = numbers.partition("-")
    own = _lines_of(rows)
    if not (first.isdecimal() and (last or first).isdecimal()):
        parts = _rows_that_begin(given, rows)
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
        there = [f"{match[1]}:{match[2]}" for match in own.values()] + _other_rows(rows)
        raise UsageError(
            f"'{given}' is no line that starts or waits for anything in a step, nor does a row that"
            " can be left out begin so.",
            f"`--without` takes one of these: {', '.join(there)}."
            if there
            else "`lab profile --stack` records lines.",
        )
    return parts


def _lines_of(rows: Iterable[str]) -> dict[str, re.Match[str]]:
    return {part: match for part in rows if (match := LINE.match(without_folders(part)))}


def _other_rows(rows: Iterable[str]) -> list[str]:
    """Return the parts of a step that are no lines and can be left out: not what a model charges
    whatever a program does.
    """
    apart = {*_lines_of(rows), SUM, IDLE, NOW, AFTER_THE_HOST}
    return [part for part in rows if part not in apart and not FIXED_PRICE.search(part)]


def _rows_that_begin(given: str, rows: Iterable[str]) -> list[str]:
    return [part for part in _other_rows(rows) if given and part.startswith(given)]
