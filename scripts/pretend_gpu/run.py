"""Run a learner's script as it stands on the device that is not there: `python run.py SCRIPT …`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Entry point. The script finds its own arguments and folder, as if it had been started
    itself.
    """
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)

    import bottleneck_lab  # noqa: F401 - it loads this package as its plugin
    from pretend_gpu.device import give

    give()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
