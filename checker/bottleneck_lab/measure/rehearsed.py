"""A process whose CUDA device is not there; as a program, a script as it stands in such a process:
`python -m bottleneck_lab.measure.rehearsed SCRIPT …`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from bottleneck_lab.measure.rehearsal import rehearsing


def stand_in(device: str) -> None:
    """Puts the device that is not there into this process, whose work is on `device`."""
    if device == "cuda" and rehearsing():
        from bottleneck_lab.measure.rehearsal_device import give  # imports torch

        give()


def main() -> None:
    """Entry point. The script finds its own arguments and folder, as if it had been started itself."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    stand_in("cuda")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
