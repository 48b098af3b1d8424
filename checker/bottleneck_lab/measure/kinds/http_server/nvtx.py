"""Turn the parts that a server marks with `record_function` into NVTX ranges, which nsys can see.
Only those within the captured window are made.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

VARIABLE = "LAB_NVTX"
"""Set for the processes that a server starts, so that nsys sees their parts too."""
_shown = threading.Event()


class Range(contextlib.ContextDecorator):
    """Takes the place of `torch.profiler.record_function`."""

    def __init__(self, name: str, args: str | None = None) -> None:  # noqa: ARG002 - torch's
        self._name = name
        self._open: list[bool] = []

    def __enter__(self) -> Any:
        import torch

        # Remembered for the end: the window may close meanwhile, and pop must match push.
        self._open.append(_shown.is_set())
        if self._open[-1]:
            torch.cuda.nvtx.range_push(self._name)  # type: ignore[no-untyped-call]  # torch has no types for it
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        if self._open.pop():
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]  # as above


def wanted() -> bool:
    """Return True if this process marks its parts for nsys."""
    return VARIABLE in os.environ


def mark() -> None:
    """Have modules imported from now on mark their parts with NVTX, in child processes too.

    Raises RuntimeError if PyTorch has no NVTX.
    """
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(
            "This PyTorch was built without CUDA, and so without NVTX: nsys would not see the"
            " server's parts."
        )
    torch.profiler.record_function = Range  # type: ignore[assignment,misc]  # a class is put in another's place
    os.environ[VARIABLE] = "1"


def show(seconds: float) -> None:
    """Open the captured window for `seconds`: parts that begin within it are marked."""
    _shown.set()
    time.sleep(seconds)
    _shown.clear()
