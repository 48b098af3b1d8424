"""How numbers, times and devices are written, the same in every rendering."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

DEVICE_NAMES = {"cuda": "CUDA GPU", "cpu": "CPU", "virtual": "emulated accelerator"}

EMULATED = "The accelerator is emulated: its own times are modelled."

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))

_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def describe_emulation(*, modelled_host: bool) -> str:
    """State which times of a capture from an emulated accelerator are modelled."""
    if modelled_host:
        return "The accelerator is emulated: its times and the host's are modelled."
    return f"{EMULATED} The host's are real."


def format_share(share: float) -> str:
    """Return a share (0–1) as a percentage with one decimal; whole percentages without."""
    if not math.isfinite(share):
        return str(share)
    # Rounded first: 99.96% must read 100%, not 100.0%.
    percent = round(share * 100, 1)
    if share and not percent:
        return "<0.1%"
    if percent == int(percent):
        return f"{percent:.0f}%"
    return f"{percent:.1f}%"


def format_share_column(share: float) -> str:
    """Return a share (0–1) as a percentage with one decimal, always, so that a column lines up."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}"


def format_duration(ns: float) -> str:
    """Format nanoseconds in the unit that leaves one to three digits before the point."""
    for size, unit in _DURATIONS:
        if abs(ns) >= size:
            value = ns / size
            # Three digits in all: 1.23, 12.3, 123.
            decimals = int(abs(value) < 10) + int(abs(value) < 100)
            return f"{value:,.{decimals}f} {unit}"
    return f"{ns:.0f} ns"


def format_rounded(value: float, decimals: int = 2) -> str:
    """Format a figure in so many decimals; what would be all zeros is below the least of them:
    `<0.01`.
    """
    text = f"{value:,.{decimals}f}"
    if not value or float(text.replace(",", "")):
        return text
    least = f"{10.0**-decimals:.{decimals}f}"
    return f"<{least}" if value > 0 else f">-{least}"


def format_count(value: float) -> str:
    """Format a mean count with one decimal where it is not whole: `310`, `0.3`."""
    return format_rounded(value, decimals=1).removesuffix(".0")


def describe_ratio(whole_ns: float, left_ns: float) -> str:
    """Return a ratio of times with the division that it comes from, in as few digits as give it:
    `239 ms / 36.0 ms = 6.64x`.
    """
    size, unit = next((pair for pair in _DURATIONS if whole_ns >= pair[0]), (1.0, "ns"))
    ratio = f"{whole_ns / left_ns:.2f}"
    whole = left = 0.0
    for digits in range(3, 10):
        whole, left = (float(f"{ns / size:.{digits}g}") for ns in (whole_ns, left_ns))
        if f"{whole / left:.2f}" == ratio:
            break
    return f"{_plainly(whole)} {unit} / {_plainly(left)} {unit} = {ratio}x"


def _plainly(value: float) -> str:
    """Return a number with at least three digits, and no more decimals than it has."""
    least = int(value < 10) + int(value < 100)
    decimals = max(least, len(repr(value).partition(".")[2].rstrip("0")))
    return f"{value:,.{decimals}f}"


def join_numbers(numbers: Iterable[int]) -> str:
    """Return numbers in order, those that follow each other as one range: `0, 2-7`."""
    runs: list[list[int]] = []
    for number in sorted({*numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def name_several(noun: str, numbers: Sequence[int]) -> str:
    """Return numbered things under one name: `rank 3`, `ranks 0, 2-7`."""
    return f"{noun}{'s' * (len({*numbers}) > 1)} {join_numbers(numbers)}"


def format_flops(rate: float) -> str:
    """Format FLOP/s in G or T."""
    if rate >= 1e12:
        return f"{rate / 1e12:.1f} TFLOP/s"
    return f"{rate / 1e9:.1f} GFLOP/s"


def format_bytes(size: float, decimals: int = 1) -> str:
    """Format bytes in binary units."""
    for step, unit in _BYTES:
        if abs(size) >= step:
            return f"{size / step:,.{decimals}f} {unit}"
    return f"{size:.0f} B"


def unit_of(size: float) -> tuple[int, str]:
    """Return the binary unit, with its bytes, that a column is written in whose largest figure is
    `size`.
    """
    return next((pair for pair in _BYTES if abs(size) >= pair[0]), (1, "B"))


def format_in(unit: tuple[int, str], size: float) -> str:
    """Format bytes in a unit that `unit_of` has chosen, in two decimals of all but single bytes."""
    step, name = unit
    return f"{format_rounded(size / step, decimals=2 * (step > 1))} {name}"


def format_sum(*sizes: float) -> list[str]:
    """Format the sum of some bytes and each of them in one unit, so that the figures add up as they
    are printed: the smallest one's, if that leaves the sum four digits.
    """
    size, unit = next(
        (pair for pair in _BYTES if min(sizes) >= pair[0] or sum(sizes) >= 10_000 * pair[0] / 1024),
        (1, "B"),
    )
    decimals = int(size > 1)
    parts = [round(each / size, decimals) for each in sizes]
    return [f"{each:,.{decimals}f} {unit}" for each in (sum(parts), *parts)]


def format_difference(whole: int, *parts: int) -> str:
    """Format what is left of some bytes without parts of them, as it is worked out: `46.58 − 1.43 =
    45.15 MiB`, to two decimals, so that the figures are right as they are printed.
    """
    size, unit = unit_of(whole)
    decimals = 2 * (size > 1)
    first, *others = (round(each / size, decimals) for each in (whole, *parts))
    terms = " − ".join(f"{each:,.{decimals}f}" for each in (first, *others))
    return f"{terms} = {first - sum(others):,.{decimals}f} {unit}"


def format_change(before: int, after: int) -> tuple[str, str, str]:
    """Format bytes before and after and their ratio, with as many digits as give that ratio."""
    ratio, texts = _format_ratio(before / after), ["", ""]
    for digits in range(3, 6):
        shown = []
        for at, bytes_ in enumerate((before, after)):
            size, unit = next((pair for pair in _BYTES if bytes_ >= pair[0]), (1, "B"))
            decimals = max(digits - len(str(bytes_ // size)), 1) * (size > 1)
            texts[at] = f"{bytes_ / size:,.{decimals}f} {unit}"
            shown.append(round(bytes_ / size, decimals) * size)
        if _format_ratio(shown[0] / shown[1]) == ratio:
            break
    return texts[0], texts[1], ratio


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.{1 if ratio >= 10 else 2}f}x"


def format_moment(moment: str) -> str:
    """Return an ISO 8601 time for reading."""
    return re.sub(r"(\d)T(\d)", r"\1 \2", moment).replace("+00:00", " UTC")
