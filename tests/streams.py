"""A CUDA stream that is not there, on a clock that only the test and the stream move: launches,
kernels and events take time, as they do on a GPU.
"""

from __future__ import annotations

READING_S, LAUNCH_S, RECORD_S = 5e-7, 6e-6, 1e-6
"""What the host pays to read the clock, to launch a kernel and to record an event."""
GAP_S = 3e-6
"""What lies between two kernels of a full queue."""


class Stream:
    """`stretch`: how many times as long as it should a kernel spins. `made`: how many events there
    are.
    """

    def __init__(self):
        self.now_s, self.free_s, self.due_s, self.stretch, self.made = 1.0, 0.0, 0.0, 1.0, 0

    def clock(self):
        self.now_s += READING_S
        return self.now_s

    def spin(self, seconds, held_s):
        self.now_s += LAUNCH_S
        start = max(self.now_s, self.free_s + GAP_S)
        begin = self.due_s if start <= self.due_s + held_s else start
        self.due_s = begin + seconds
        self.free_s = begin + seconds * self.stretch

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    """torch.cuda.Event."""

    def __init__(self, stream):
        self.stream, self.at = stream, None

    def record(self):
        self.stream.now_s += RECORD_S
        self.at = max(self.stream.now_s, self.stream.free_s + RECORD_S)

    def query(self):
        return self.stream.now_s >= self.at

    def synchronize(self):
        self.stream.now_s = max(self.stream.now_s, self.at)

    def elapsed_time(self, end):
        assert self.query()
        assert end.query()
        return 1000 * (end.at - self.at)
