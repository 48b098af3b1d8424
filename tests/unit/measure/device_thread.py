"""A device that serves a script on a thread of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed


@contextlib.contextmanager
def running(
    make: Callable[[Channel, Channel, Arena], Any], size_bytes: int
) -> Iterator[tuple[Channel, Arena, Channel]]:
    """Run the device that `make` returns for its ends of two channels and an arena; yield the
    script's end, the arena and the verifier's end.
    """
    ours, theirs = Channel.pair()
    host, script = Channel.pair()
    arena = Arena.create(size_bytes)
    device = make(Channel(host), Channel(theirs), arena)

    def serve() -> None:
        with contextlib.suppress(Closed):
            device.run()

    thread = Thread(target=serve)
    thread.start()
    try:
        yield Channel(script), arena, Channel(ours)
    finally:
        ours.close()
        thread.join()
        for end in (theirs, host, script):
            end.close()
        arena.close()
