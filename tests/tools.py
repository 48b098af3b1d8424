"""What a machine may lack that some tests need: each is the reason for which a test is left out, or
empty where nothing is lacking.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap_problem


def browser_path() -> str | None:
    """The system's Chromium, or Chrome."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


NO_SANDBOX = (
    bubblewrap_problem()
    and f"no sandbox, since bubblewrap is {bubblewrap_problem()}: apt-get install bubblewrap"
)
NO_BROWSER = (
    ""
    if browser_path()
    else "no browser, since Chromium is not installed: apt-get install chromium"
)
POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
"""The newest PostgreSQL's program that makes a database."""
NO_POSTGRES = "" if POSTGRES else "PostgreSQL is not installed: apt-get install postgresql"
LEFT_OUT = tuple(filter(None, (NO_SANDBOX, NO_BROWSER, NO_POSTGRES)))
"""Why some tests cannot run here, each with its remedy."""
