"""Files that a report can be written to, chosen by their ending: one row of EXPORTS each.

A new format is one function and its row; `lab report --export FILE` offers it, and its help and
docs/analysis.md name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bottleneck_lab.analysis.plateau import Plateau
from bottleneck_lab.analysis.query import write_parquet
from bottleneck_lab.analysis.summary import Analysis
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report import markdown
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.verdict import Diagnosis
from bottleneck_lab.workspace.atomic import explained, write_bytes


@dataclass(frozen=True)
class Report:
    """Everything that is known of a capture and its lab; attempts are oldest first."""

    title: str
    capture: Analysis
    attempts: Sequence[Verdict] = ()
    diagnosis: Diagnosis | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    plateau: Plateau | None = None
    warning: str = ""


def write_page(report: Report, target: Path) -> None:
    """Write the page."""
    page = render_html(
        title=report.title,
        capture=report.capture,
        attempts=report.attempts,
        diagnosis=report.diagnosis,
        environment=report.environment,
        plateau=report.plateau,
        warning=report.warning,
    )
    write_file(page.encode(), target)


def write_summary(report: Report, target: Path) -> None:
    """Write the summary as JSON."""
    write_file(msgspec.json.encode(report.capture.summary) + b"\n", target)


def write_verdict(report: Report, target: Path) -> None:
    """Write the latest verdict as Markdown. Raises UsageError before the first check."""
    if not report.attempts:
        raise UsageError(
            "Nothing was checked yet, so there is no verdict to write.", "Run `lab check` first."
        )
    write_file(markdown.render_verdict(report.attempts[-1]).encode(), target)


def write_tables(report: Report, target: Path) -> None:
    """Write a folder of Parquet files. Raises MachineError without pyarrow."""
    write_parquet(report.capture.timeline, target)


@dataclass(frozen=True)
class Export:
    """A format: the ending of its files, what it holds, and what writes it. Raises as `write`."""

    ending: str
    holds: str
    write: Callable[[Report, Path], None]


EXPORTS = (
    Export(".html", "the page, as --html", write_page),
    Export(".json", "the summary", write_summary),
    Export(".md", "the latest verdict as Markdown", write_verdict),
    Export(".parquet", "a folder with a Parquet file per table", write_tables),
)
ENDINGS = "; ".join(f"{export.ending}: {export.holds}" for export in EXPORTS)


def find_export(target: Path) -> Export:
    """Return the format by the target's ending. Raises UsageError for an ending that is none."""
    for export in EXPORTS:
        if target.suffix.lower() == export.ending:
            return export
    raise UsageError(
        f"'{target.name}' has no ending that a report can be written as.", f"Choose {ENDINGS}."
    )


def write_file(content: bytes, target: Path) -> None:
    """Write `content` to `target`, completely or not at all."""
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, content)
