"""Put the workspace's server under load for an external profiler: `python -m
bottleneck_lab.measure.kinds.http_server.under_load`, in a workspace.

Starts the server, warms it up, loads it while the captured window is open, and ends it. LAB_DEVICE
and LAB_PHOTOS name the device and the data.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from bottleneck_lab.catalog import Device
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server import LoadedKind
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.workspace.folder import open_workspace


def main() -> int:
    """Entry point. Returns the server's exit status, 0 if it served to the end."""
    workspace, data = Path.cwd(), Path(os.environ["LAB_PHOTOS"])
    device = cast("Device", os.environ["LAB_DEVICE"])
    lab = open_workspace(workspace).lab
    kind = kind_of(lab)
    assert isinstance(kind, LoadedKind)
    settings = kind.settings(lab, device)
    with Janitor() as janitor:
        context = Context(
            lab, device, settings, workspace, workspace, data, janitor, lambda *_: None
        )
        return kind.under_load(context, sys.stdout.write)


if __name__ == "__main__":
    sys.exit(main())
