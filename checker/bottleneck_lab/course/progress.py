"""How use cases report what they are doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Report = Callable[[str, float], None]
"""Called with the current activity and the share (0–1) that is done."""

ShowProgress = Callable[[], AbstractContextManager[Report]]
"""Open a progress display for the time that something takes."""


@contextmanager
def no_progress() -> Iterator[Report]:
    """Show nothing."""
    yield lambda _activity, _share: None
