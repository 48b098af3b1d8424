"""What a machine may lack that some tests need: each is the reason for which a test is left out, or empty where nothing is lacking."""

from __future__ import annotations

import shutil

from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap_problem


def browser_path() -> str | None:
    """The system's Chromium, or Chrome."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


NO_SANDBOX = (
    bubblewrap_problem() and f"no sandbox, since bubblewrap is {bubblewrap_problem()}: apt-get install bubblewrap"
)
NO_BROWSER = "" if browser_path() else "no browser, since Chromium is not installed: apt-get install chromium"
