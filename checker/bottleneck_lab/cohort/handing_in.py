"""What a learner's workspace hands in: the editable files and the diagnosis, and what the captures showed."""

from __future__ import annotations

from secrets import token_hex

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.membership import same_key
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import Capture, Submission
from bottleneck_lab.workspace.attempts import load_attempts, submission
from bottleneck_lab.workspace.folder import Workspace, numbered
from bottleneck_lab.workspace.hints import load_hints

MOST_CAPTURES = 10


def gather(workspace: Workspace, device: Device, figures: dict[str, float]) -> Submission:
    """The submission of this workspace as it is now, with what its captures showed; the same request again where it was sent before without an answer."""
    lab = workspace.lab
    with workspace.working("lab submit"), submission(workspace, lab) as folder:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return same_key(
        Submission(
            token_hex(16),
            lab.slug,
            lab.content_hash(),
            device,
            files,
            len(load_hints(workspace)),
            len(load_attempts(workspace)),
            _captures(workspace),
            figures,
        )
    )


def _captures(workspace: Workspace) -> list[Capture]:

    found = [path for _, path in numbered(workspace.captures)][-MOST_CAPTURES:]
    return [Capture(path.name, iso(path.stat().st_mtime)) for path in found]
