"""A terminal to write on: its width, the characters it can show, and text made safe for it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.host.lines import LINE
from bottleneck_lab.report import words
from bottleneck_lab.report.ascii import to_ascii
from bottleneck_lab.report.kernel_names import cut_name

# Lines longer than this are hard to read, however wide the terminal.
MAX_WIDTH = 100

# What a workload prints, or a name in a hostile trace, may be megabytes: a paragraph ends here.
MAX_TEXT = 1200

# Unicode categories that move the cursor, turn the direction of text, or cannot be written.
_DRIVING = ("Cc", "Cf", "Cs")


@dataclass(frozen=True)
class Signs:
    """The characters that bars and marks are made of."""

    rule: str = "━"
    full: str = "█"
    uncertain: str = "▒"
    empty: str = "░"
    pale: str = "░"
    target: str = "┃"
    right: str = "✓"
    wrong: str = "✗"
    undecided: str = "?"
    unjudged: str = "–"
    bullet: str = "•"
    between: str = " · "


ASCII_SIGNS = Signs(
    rule="=",
    full="#",
    uncertain="+",
    empty=".",
    pale="~",
    target="|",
    right="+",
    wrong="x",
    unjudged="-",
    bullet="*",
    between=" - ",
)


def inert(text: str) -> str:
    """Return `text` without control and direction characters: names in a trace must not drive the
    terminal.
    """
    return "".join(
        "�" if unicodedata.category(char) in _DRIVING and char not in "\n\t" else char
        for char in text
    )


class Sheet:
    """Writes wrapped, indented lines and bars to a console that may be narrow, without colour, or
    without Unicode.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = min(console.width, MAX_WIDTH)
        self.ascii = console.options.ascii_only
        self.signs = ASCII_SIGNS if self.ascii else Signs()

    def safe(self, text: str) -> str:
        """Return `text` as this terminal can show it."""
        text = inert(text)
        if self.ascii:
            return to_ascii(text)
        return text

    def blank(self) -> None:
        """Write an empty line."""
        self.console.print()

    def rule(self, style: str = "") -> None:
        """Write a line across the sheet."""
        self.console.print(Text(self.signs.rule * self.width, style=style))

    def line(
        self,
        text: str | Text,
        *,
        style: str = "",
        indent: int = 0,
        lead: str = "",
        lead_style: str = "",
    ) -> None:
        """Write `text`, wrapped at words with a hanging indent; `lead` stands before its first
        line.
        """
        if isinstance(text, Text):
            body = text
        else:
            body = Text(self.fit(text, MAX_TEXT, lines=True), style=style)
        room = max(10, self.width - indent - len(lead))
        start = Text.assemble(" " * indent, (lead, lead_style))
        for part in body.wrap(self.console, room, tab_size=4):
            part.rstrip()
            self.write(start + part)
            start = Text(" " * len(start))

    def path(self, text: str, *, indent: int = 0) -> None:
        """Write a path or command on one line, however long, so it can be copied."""
        self.write(Text(" " * indent + self.safe(text)))

    def fit(self, text: str, room: int, *, lines: bool = False) -> str:
        """Return `text`, cut to `room` characters, on one line unless it may have `lines`."""
        text, ellipsis = self.safe(text), self.safe("…")
        if not lines:
            text = " ".join(text.split())
        if len(text) <= room:
            return text
        return text[: max(0, room - len(ellipsis))] + ellipsis

    def fit_name(self, name: str, room: int, *, end: str = "") -> str:
        """Return a name and `end` on one line of `room` characters; of a longer name the middle is
        left out.
        """
        name, end = " ".join(self.safe(name).split()), self.safe(end)
        return cut_name(name, room - len(end), self.safe("…")) + end

    def fit_line(self, name: str, room: int) -> str:
        """Return the name of a line of Python, "train.py(31): train", on one line of `room`
        characters: its number is never cut. Other names are as in `fit_name`.
        """
        line = LINE.match(name)
        if line and len(name) > room:
            file, number, function = line.groups()
            left = room - len(f"({number}): ")
            function = self.fit(function, max(left - len(file), left // 2))
            return f"{self.fit(file, left - len(function))}({number}): {function}"
        return self.fit_name(name, room)

    def write(self, text: Text) -> None:
        """Write one line as it is, whatever its length."""
        self.console.print(text, soft_wrap=True, highlight=False)

    def sides(self, left: Text, right: str) -> None:
        """Write `left` and `right` at the two ends of a line; below each other where they do not
        fit.
        """
        room = self.width - left.cell_len - len(right) - 1
        if room > 0:
            self.write(left + Text(" " * room + right, style="dim"))
        else:
            self.line(left)
            self.line(right, style="dim", indent=2)

    def heading(self, text: str) -> None:
        """Write the title of a section, after an empty line."""
        self.blank()
        self.line(text, style="bold")

    def strip(
        self,
        shares: Sequence[float],
        width: int,
        pale: Sequence[float] | None = None,
        of_column: Callable[[Sequence[float]], float] = fmean,
    ) -> str:
        """Draw shares (0–1) over time as `width` columns of different heights, each `of_column` of
        the shares in it; those of which more than half is `pale` in a colour of their own.
        """
        levels = " ▁▂▃▄▅▆▇█"
        if self.ascii:
            levels = " .:-=+*#"
        drawn = []
        for share, pale_share in zip(
            map(of_column, _columns(shares, width)),
            map(fmean, _columns(pale or [0.0] * len(shares), width)),
            strict=True,
        ):
            level = levels[round((len(levels) - 1) * min(1.0, share))]
            drawn.append(self.signs.pale if pale_share > 0.5 else level)
        return "".join(drawn)

    def bar(
        self, *, low: float, high: float, end: float, width: int, target: float | None = None
    ) -> str:
        """Return a bar of `width` cells from 0 to `end`: solid up to `low`, uncertain up to `high`,
        a mark at `target`.
        """
        solid, unsure = (_cells(figure, end, width) for figure in (low, high))
        cells = [self.signs.full] * solid + [self.signs.uncertain] * (unsure - solid)
        cells += [self.signs.empty] * (width - len(cells))
        if target is not None:
            cells[min(width - 1, _cells(target, end, width))] = self.signs.target
        return "".join(cells)

    def share_bar(self, label: str, share: float, figure: str) -> None:
        """Write `label ███░░░ 41.2% figure`, with columns that line up whatever the width."""
        room = max(22, self.width // 3 - 3)
        bar = self.bar(low=share, high=share, end=1.0, width=max(6, self.width - room - 22))
        percent = words.format_share_column(share)
        self.path(f"{self.fit_name(label, room):{room}} {bar} {percent:>6} {figure:>9}", indent=2)

    def source(self, code: str, *, indent: int) -> None:
        """Write a line of source code, cut to the width; nothing where it is not known."""
        if code:
            text = f"{' ' * indent}{self.fit(code, self.width - indent - 1)}"
            self.write(Text(text, style="dim"))

    def ranked(self, name: str, share: float, figure: str, code: str = "") -> None:
        """Write `41.2% figure ███ name`: a short bar leaves room for the long names of kernels,
        operators and lines. The `code` of a line stands below its name.
        """
        bar = self.bar(low=share, high=share, end=1.0, width=8)
        lead = f"{words.format_share_column(share):>6} {figure:>9} {bar} "
        self.path(self.safe(lead) + self.fit_name(name, self.width - len(lead) - 2), indent=1)
        self.source(code, indent=len(lead) + 1)


def _columns(shares: Sequence[float], width: int) -> list[Sequence[float]]:
    """Return the shares in each of `width` columns."""
    edges = [round(column * len(shares) / width) for column in range(width + 1)]
    return [shares[low : max(high, low + 1)] for low, high in pairwise(edges)]


def _cells(figure: float, end: float, width: int) -> int:
    return max(0, min(width, round(figure / end * width)))
