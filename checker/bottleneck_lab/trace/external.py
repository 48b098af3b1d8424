"""NVIDIA's own tools, where they are installed, for files that only they can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bottleneck_lab.errors import CaptureError


def run_tool(command: list[str], source: Path, limit_s: int) -> str:
    """Return the tool's output. Its exit status says little (both tools exit 0 on some failures):
    callers judge by what came out.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(
            f"{Path(command[0]).name} took longer than {limit_s} s on {source.name}.",
            "Export the file by hand, then load the result.",
        ) from None
    except OSError as error:
        raise CaptureError(
            f"{command[0]} cannot be run: {error}.",
            "Install it again, or export the file elsewhere.",
        ) from error
    return done.stdout
