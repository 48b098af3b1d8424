"""Nsight Systems: what the installed release can do, the command line made from that, and what it
left.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.capture.launchers import Launch, split
from bottleneck_lab.capture.recording import Captured, CommandEnd, Request, run, typed
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.external import run_tool
from bottleneck_lab.trace.load import by_number

WANTED = ("cuda", "nvtx", "osrt", "cudnn", "cublas", "nccl")
EXPORT_S = 600
PROBE_S = 60

_OPTION = re.compile(r"^\s*(?:-[a-zA-Z], )?(--[a-z][a-z0-9-]*)", re.MULTILINE)
_VERSION = re.compile(r"[vV]ersion (\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class NsysCapabilities:
    """A release's own account of itself: its version, the options of `nsys profile`, and what it
    can trace.
    """

    version: str
    options: frozenset[str]
    traces: frozenset[str]


def capabilities(version: str, help_text: str) -> NsysCapabilities:
    """Parse the texts of `nsys --version` and `nsys profile --help`. Raises CaptureError when they
    are not nsys'.
    """
    match = _VERSION.search(version)
    if match is None or "--output" not in help_text:
        raise CaptureError(
            "The nsys on this machine does not report its version and options.",
            "Run `nsys --version` by hand.",
        )
    return NsysCapabilities(match[1], frozenset(_OPTION.findall(help_text)), _traces(help_text))


def _traces(help_text: str) -> frozenset[str]:
    """Return the values that `--trace` takes: the quoted words of its paragraph."""
    start = re.search(r"^\s*(?:-t, )?--trace=", help_text, re.MULTILINE)
    if start is None:
        return frozenset()
    rest = help_text[start.end() :]
    following = _OPTION.search(rest)
    return frozenset(
        re.findall(r"'([a-z][a-z0-9-]*)'", rest[: following.start() if following else None])
    )


def command(tool: str, can: NsysCapabilities, request: Request, launch: Launch) -> list[str]:
    """Return the whole command line. Options that this release does not know are left out.

    CPU sampling is off: its symbols can take minutes, and the timeline does not need it. Forked
    children (a DataLoader's workers) are followed.
    """
    wanted = [*WANTED, *(["mpi"] if launch.mpi else [])]
    report = "report"
    if launch.rank:
        report = f"report_%q{{{launch.rank}}}"
    settings = {
        "--trace": ",".join(name for name in wanted if name in can.traces),
        "--sample": "none",
        "--cpuctxsw": "none",
        # DataLoader workers are forked and never exec.
        "--trace-fork-before-exec": "true",
        "--cuda-graph-trace": "node",
        "--pytorch": "autograd-nvtx",
        # Reports would otherwise hold the environment, tokens included.
        "--discard-environment": "true",
        "--wait": "primary",
        "--export": "sqlite",
        "--force-overwrite": "true",
    }
    if request.options.stack:
        settings["--python-backtrace"] = "cuda"
    if launch.mpi:
        settings["--mpi-impl"] = "openmpi"
    known = [f"{name}={value}" for name, value in settings.items() if name in can.options]
    return launch.around(tool, "profile", *known, f"--output={request.out / report}")


def probe(tool: str) -> NsysCapabilities:
    """Return the same, asked of the tool itself."""
    texts = [
        run_tool([tool, *arguments], Path(tool), PROBE_S)
        for arguments in (["--version"], ["profile", "--help"])
    ]
    return capabilities(*texts)


def record(tool: str, request: Request) -> Captured:
    """Run the program under nsys; its reports as SQLite, one a rank. Raises CaptureError when nsys
    left none.
    """
    can, launch = probe(tool), split(request.program, sys.executable)
    line = command(tool, can, request, launch)
    request.announce(typed(line, request))
    ended = run(request, line)
    files = exported(tool, request.out, ended)
    notes = []
    if "--discard-environment" not in can.options:
        notes.append(
            "The report contains the program's environment variables: check them before you"
            " share it."
        )
    reports = sorted((path.name for path in request.out.glob("*.nsys-rep")), key=by_number)
    return Captured(files, typed(line, request), ended, can.version, reports, notes)


def exported(tool: str, out: Path, ended: CommandEnd) -> list[str]:
    """Return the SQLite files, made from the reports where nsys has not made them itself. Judged by
    what is there: nsys exits 0 on failures too.
    """
    for report in out.glob("*.nsys-rep"):
        target = report.with_suffix(".sqlite")
        if not target.is_file():
            run_tool(
                [tool, "export", "--type=sqlite", f"--output={target}", str(report)],
                report,
                EXPORT_S,
            )
    if files := [path.name for path in out.glob("*.sqlite")]:
        return sorted(files, key=by_number)
    raise _nothing(out, ended)


def _nothing(out: Path, ended: CommandEnd) -> CaptureError:
    if any(out.glob("*.qdstrm")) or "importer binary" in ended.tail:
        return CaptureError(
            "nsys recorded, but its importer is missing, so there is no report.",
            "Install all of Nsight Systems (Debian: nsight-systems and nsight-systems-target), not"
            " only its target package.",
        )
    if any(out.glob("*.nsys-rep")):
        return CaptureError(
            "nsys wrote a report but could not export it.", "Run `nsys export --type=sqlite` on it."
        )
    return CaptureError(
        f"nsys left no report; the program {ended.why()}:\n{ended.last_lines()}",
        "Run the program without nsys first; if it works, run nsys by hand as shown above.",
    )
