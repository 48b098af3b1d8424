"""Processes seen from outside: whether one lives, which control groups were made, and waiting for
what a busy machine does in its own time. And a further thread for this one.
"""

from __future__ import annotations

import _thread
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bottleneck_lab.measure.sandbox.cgroup import own_group

PATIENCE_S = 100
"""Shorter than anything that a test has sleep: it is not to come true by itself."""


def soon(what: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Return whether it comes true within `patience_s`: a busy machine takes its time."""
    end = time.monotonic() + patience_s
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(what())


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen]:
    """A program that has ended when this is left, by force if need be: a test that fails leaves
    none to the next one.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def lives(process: psutil.Process) -> bool:
    """Whether it has not ended. One that has may stay in the list: whoever inherits an orphan may
    take its time, or for ever, to notice its end.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started_since(children: Collection[psutil.Process]) -> list[psutil.Process]:
    """Our living children and their descendants, but for those `children` of before, such as a
    database that other tests use.
    """
    ours = [child for child in psutil.Process().children() if child not in children]
    return [process for child in ours for process in (child, *descendants(child)) if lives(process)]


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """None where it has ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def groups_left() -> list[Path]:
    """Control groups that this process made and has not removed."""
    parent = own_group()
    return list(parent.glob(f"bottleneck-lab-{os.getpid()}-*")) if parent else []


@contextmanager
def another_thread(*, known: bool = True) -> Iterator[None]:
    """It waits while this is open. Python's own list of threads has it only if it is `known`; a
    library's threads are not.
    """
    end = threading.Event()
    if known:
        threading.Thread(target=end.wait).start()
    else:
        _thread.start_new_thread(end.wait, ())
    try:
        yield
    finally:
        end.set()


def ends_with_us(command: list, name: str = "TERM", *options: str) -> list[str]:
    """A command line whose program is sent the signal of that name when this process ends, even by
    SIGKILL; `options` are setpriv(1)'s.
    """
    return ["setpriv", f"--pdeathsig={name}", *options, "--", *map(str, command)]
