"""Gathering a submission: editable files, diagnosis, and figures of the captures."""

from __future__ import annotations

import re
from pathlib import Path
from secrets import token_hex

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.members.membership import same_key
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import MAX_CAPTURE_BYTES, Capture, Submission, Tool
from bottleneck_lab.trace.load import find_traces
from bottleneck_lab.workspace.attempts import load_attempts, submission
from bottleneck_lab.workspace.commitments import load_record
from bottleneck_lab.workspace.folder import Workspace, numbered
from bottleneck_lab.workspace.hints import load_hints

MOST_CAPTURES = 10
DESCRIPTION = "capture.json"
MAX_FILES = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def gather(
    workspace: Workspace,
    device: Device,
    figures: dict[str, float],
    capture: str | None,
    tool: Tool | None = None,
) -> Submission:
    """Gather the submission of this workspace as it is now.

    `figures` are those of its captures; `capture` names the one that the diagnosis is about, as the
    server stored it. With `tool`, a runner makes a capture of it in place of a check. If the same
    was sent before without an answer, it is that request again.
    """
    lab = workspace.lab
    # Under the workspace's lock: an editor's half-saved file or a running check stays out.
    with workspace.working("lab submit"), submission(workspace, lab) as folder:
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
    captures = [
        Capture(path.name, iso(path.stat().st_mtime))
        for _, path in numbered(workspace.captures)[-MOST_CAPTURES:]
    ]
    return same_key(
        Submission(
            token_hex(16),
            lab.slug,
            lab.content_hash(),
            device,
            files,
            len(load_hints(workspace)),
            len(load_attempts(workspace)),
            captures,
            figures,
            load_record(workspace),
            capture,
            tool,
        )
    )


def capture_files(folder: Path) -> dict[str, bytes] | None:
    """Return a capture's description and the profiler's files; None if they are too large."""
    paths = [folder / DESCRIPTION, *find_traces(folder)]
    if sum(path.stat().st_size for path in paths) > MAX_CAPTURE_BYTES:
        return None
    return {path.name: path.read_bytes() for path in paths}


def files_problem(files: dict[str, bytes]) -> str | None:
    """Explain in a sentence why files are not a capture; None when they can be stored."""
    if DESCRIPTION not in files or not 2 <= len(files) <= MAX_FILES:
        return f"A capture is {DESCRIPTION} and at most {MAX_FILES - 1} files of a profiler."
    strange = next((name for name in files if not _NAME.fullmatch(name)), None)
    return f"'{strange[:80]}' is not a file of a capture." if strange else None
