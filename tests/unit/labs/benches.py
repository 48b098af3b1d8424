"""Devices that a benchmark lab's judge has real work done on, on clocks that only host and device
move.
"""

from __future__ import annotations

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.gpu import Gpu

from ...streams import READING_S, Stream


class StoodInBench:
    """A core on a clock of the test's. `stretch`: how many times as long as it should a piece of
    work takes.
    """

    device = "cpu"

    def __init__(self):
        self.stretch, self.now_s, self.free_s, self.notes = 1.0, 1.0, 1.0, []

    def clock(self):
        self.now_s += READING_S
        return self.now_s

    def work(self, seconds):
        begin = max(self.free_s, self.now_s)
        self.free_s = begin + seconds * self.stretch
        self.notes.append((seconds, begin, self.free_s))

    def report(self):
        self.done_s = self.now_s = max(self.now_s, self.free_s)
        notes, self.notes = self.notes, []
        return np.array(notes, dtype=float).reshape(-1, 3)


class GpuBench:
    """The GPU that does real work, on a stream that is stood in for."""

    device = "cuda"

    def __init__(self):
        self.stream = Stream()
        self.clock = self.stream.clock
        self.gpu = Gpu(self.stream.spin, self.stream.event, self.clock)

    def work(self, seconds):
        self.gpu.work(seconds, False)

    def report(self):
        self.gpu.wait()
        self.done_s = self.stream.now_s
        return np.array(self.gpu.take_notes(), dtype=float).reshape(-1, 3)
