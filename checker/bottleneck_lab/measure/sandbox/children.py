"""Children of this process: their limits, no signal handled before they are known, and nothing of
them left behind.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.sandbox.janitor import Janitor

OnLine = Callable[[str], object]
LOOK_S = 1.0
"""How long a read may block: a signal that comes just before a blocking call is handled when that
returns.
"""


@contextlib.contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Hold back every handler that would end this program until the function that is yielded is
    called, or the block is left; then deliver whatever arrived meanwhile.

    So whoever starts a process knows it, and stands in the `try` that ends it, before anything can
    be raised.
    """
    came: list[int] = []
    held: dict[int, Any] = {}

    def release() -> None:
        while held:
            signal.signal(*held.popitem())
        while came:
            signal.raise_signal(came.pop())

    if threading.current_thread() is threading.main_thread():  # no handler runs in any other
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(handler := signal.getsignal(number)):
                held[number] = handler
                signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield release
    finally:
        release()


def lower_limit(what: int, value: int) -> None:
    """Set a limit of this process (`resource.RLIMIT_…`), for good. A lower one that is in force
    already stays: nobody but root may raise it.
    """
    import resource  # Windows, where `lab doctor` gets as far as here, has none

    _, hard = resource.getrlimit(what)
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (least, least))


def stream(
    command: list[str],
    folder: Path,
    janitor: Janitor,
    on_line: OnLine,
    environment: Mapping[str, str],
    fds: tuple[int, ...] = (),
) -> int:
    """Run a command in its own session, pass its output line by line to `on_line`, and return its
    exit status.

    Its process group ends with its first process, or with this call.
    """
    with signals_held() as release:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=fds,
        )
        try:
            janitor.follow(process.pid)
            release()
            threading.Thread(target=_end_what_is_left, args=(process,), daemon=True).start()
            for line in _lines(process):
                on_line(line)
            return process.wait()
        finally:
            _kill_group(process)
            process.wait()
            janitor.forget(process.pid)
            if process.stdout is not None:
                process.stdout.close()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield a process's output as text, line by line, until nobody holds it open."""
    assert process.stdout is not None
    text = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("replace"), translate=True
    )
    begun = ""  # a line whose end has not come yet
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        data = b"any"
        while data:
            if not selector.select(LOOK_S):
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            *whole, begun = (begun + text.decode(data, final=not data)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if begun:
        yield begun


def _end_what_is_left(process: subprocess.Popen[bytes]) -> None:
    """End what a command leaves in the background: it would hold its output open for ever."""
    process.wait()
    _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
