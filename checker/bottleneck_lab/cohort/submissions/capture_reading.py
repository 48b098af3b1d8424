"""Reading a learner's capture in a process of its own, in the sandbox where there is one.

A capture comes from elsewhere and may be hostile. `python -m
bottleneck_lab.cohort.submissions.capture_reading FOLDER` reads `request.json` there, and leaves
`reading.json` or `report.html`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bottleneck_lab.analysis.selection import figures_within, longest_gap_ns
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.cohort.submissions.handing_in import DESCRIPTION
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.figures import CaptureFigures, figures_of
from bottleneck_lab.measure.sandbox.limits import Limits, set_limits
from bottleneck_lab.measure.sandbox.process import python_module
from bottleneck_lab.measure.sandbox.visible import Paths, sandboxed, worker_environment
from bottleneck_lab.report.evidence_only import evidence_only
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.trace.load import by_number

FILES, REQUEST, READING, REPORT = "capture", "request.json", "reading.json", "report.html"
MAX_OUTPUT_BYTES = 64 << 20
LIMITS = Limits(
    total_s=90.0, cpu_s=90, memory_bytes=3 << 30, processes=16, file_bytes=MAX_OUTPUT_BYTES
)


class _Request(msgspec.Struct, frozen=True):
    """A request for a report with that `title`, or, without one, for figures of the whole capture
    and of these stretches (ns from its begin). A `blind` report shows evidence alone.
    """

    title: str | None = None
    blind: bool = False
    stretches: list[Window] = []


class _Reading(msgspec.Struct, frozen=True):
    problem: str | None = None
    figures: dict[str, float] = {}
    span_ns: int = 0
    within: list[dict[str, float]] = []
    longest_gap_ns: int = 0


def read_figures(files: dict[str, bytes], stretches: Sequence[Window]) -> CaptureFigures:
    """Return the figures of a capture as a whole and in `stretches` (ns from its begin).

    Raises CaptureError if it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="lab-reading-") as name:
        folder = Path(name)
        _run(folder, files, _Request(stretches=list(stretches)))
        reading = msgspec.json.decode(_output(folder / READING), type=_Reading)
    if reading.problem or len(reading.within) != len(stretches):
        raise CaptureError(
            reading.problem or "The capture was not read.", "`lab profile` makes another."
        )
    known = dict(zip(stretches, reading.within, strict=True))
    return CaptureFigures(
        reading.figures,
        reading.span_ns,
        lambda stretch: known.get(stretch, {}),
        reading.longest_gap_ns,
    )


def render_report(files: dict[str, bytes], title: str, *, blind: bool = False) -> bytes:
    """Render the whole report of a capture as one page, without causes and findings if `blind`.

    Raises CaptureError if it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="lab-reading-") as name:
        folder = Path(name)
        _run(folder, files, _Request(title, blind))
        if (folder / REPORT).is_file():
            return _output(folder / REPORT)
        reading = msgspec.json.decode(_output(folder / READING), type=_Reading)
    raise CaptureError(
        reading.problem or "The capture was not read.", "The learner's `lab profile` makes another."
    )


def _run(folder: Path, files: dict[str, bytes], request: _Request) -> None:
    (folder / FILES).mkdir()
    for name, data in files.items():
        (folder / FILES / name).write_bytes(data)
    (folder / REQUEST).write_bytes(msgspec.json.encode(request))
    paths = Paths(folder)
    # A capture is data, but its parser is code: a crafted file must not reach the signing key.
    command = sandboxed(python_module(__name__, str(folder)), paths, LIMITS.memory_bytes, gpu=False)
    environment = worker_environment(paths, threads=1)
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
            timeout=LIMITS.total_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CaptureError(
            f"The capture was not read within {LIMITS.total_s:.0f} s.",
            "`lab profile` makes a shorter one.",
        ) from error


def _output(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_OUTPUT_BYTES)
    except OSError as error:
        raise CaptureError(
            f"Reading the capture took more than {LIMITS.memory_bytes >> 30} GiB or failed.",
            "`lab profile` makes another.",
        ) from error


def main() -> None:
    """Run the contained process; a problem is reported in `reading.json`."""
    set_limits(LIMITS)
    folder = Path(sys.argv[1])
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=_Request)
    # A report of nsys comes with its export, which is what can be read.
    paths = [
        path
        for path in (folder / FILES).iterdir()
        if path.name != DESCRIPTION and path.suffix != ".nsys-rep"
    ]
    try:
        # One file per rank: together they are the run.
        timeline = merge_ranks(
            [load(path) for path in sorted(paths, key=lambda path: by_number(path.name))]
        )
        if request.title is not None:
            capture = analyse(timeline)
            if request.blind:
                capture = capture._replace(summary=evidence_only(capture.summary))
            page = render_html(title=request.title, capture=capture)
            (folder / REPORT).write_text(page, encoding="utf-8")
            return
        capture, (start, end) = analyse(timeline), timeline.extent
        within = [
            figures_within(timeline, capture.times, capture.summary.syncs, stretch)
            for stretch in request.stretches
        ]
        reading = _Reading(
            figures=figures_of(capture.summary),
            span_ns=end - start,
            within=within,
            longest_gap_ns=longest_gap_ns(capture.times),
        )
    except CaptureError as error:
        reading = _Reading(problem=f"{error.message} {error.remedy}")
    (folder / READING).write_bytes(msgspec.json.encode(reading))


if __name__ == "__main__":
    main()
