"""The machine that a benchmark runs on: the calls it offers, and two implementations of them.

`lab run` and `lab check` connect `Machine` to an emulated accelerator, or to a core or GPU that
does timed work. `python stopwatch.py` uses `Here`: this computer's GPU or CPU, through PyTorch.
"""

import math
import time

import numpy as np

MAKE, FREE, CALL, USE, RECORD, SYNCHRONIZE, FLUSH, TIME, PERF_COUNTER, MARK, LEFT = range(11)
_LONGEST_QUEUE = 2048


class OutOfTimeError(RuntimeError):
    """The benchmark has used up its time on the machine."""


class Machine:
    """An accelerator and the host that drives it. Times are in seconds.

    The device runs queued work in order, one piece after another, while the host goes on.
    """

    def __init__(self, ask):
        self._ask = ask
        self._queue = []
        self._ids = 0
        self._unread, self._marks = [], {}

    def function(self, x):
        """Queues one call of the function on an input; returns its result."""
        self._ids += 1
        self._put(CALL, self._ids, x.id)
        return Result(self, self._ids, x)

    def make_input(self, fill=None):
        """Makes a new input: data like those in production, or all of one value, as from
        `torch.full`.

        It is made on the host and copied to the device, which has 8 GB for the inputs still in use.
        """
        self._ids += 1
        self._put(MAKE, self._ids, fill is not None)
        return Input(self, self._ids)

    def use(self, result):
        """Queues work that needs the result and takes no time. A runtime may skip a call whose
        result nobody needs.
        """
        self._put(USE, result.id)

    def synchronize(self):
        """Returns when all queued work has run."""
        self._put(SYNCHRONIZE)

    def event(self):
        """Makes a mark for the queue; see Event."""
        self._ids += 1
        return Event(self, self._ids)

    def flush_cache(self):
        """Queues a write to 48 MB of the device's memory, the size of its cache."""
        self._put(FLUSH)

    def perf_counter(self):
        """The host's monotonic clock, like time.perf_counter."""
        return self._get(PERF_COUNTER)

    def time(self):
        """The host's calendar clock, like time.time on a machine whose clock ticks every 4 ms and
        is adjusted over the network.
        """
        return self._get(TIME)

    def seconds_left(self):
        """How much longer this benchmark may use the machine."""
        return self._get(LEFT)

    def _elapsed_s(self, start, end):
        if not {start, end} <= self._marks.keys():
            # One question for all the marks made so far
            unread, self._unread = self._unread, []
            self._send()
            answers = self._do([(MARK, event, 0) for event in unread])
            for event, reached_s in zip(unread, answers, strict=True):
                if math.isnan(reached_s):
                    self._unread.append(event)
                else:
                    self._marks[event] = float(reached_s)  # NumPy's own type prints badly
        if not {start, end} <= self._marks.keys():
            raise RuntimeError(
                "an event was read before it was recorded, or before the device reached it:"
                " synchronize first"
            )
        return self._marks[end] - self._marks[start]

    def _put(self, *command):
        self._queue.append((*command, 0, 0)[:3])
        if len(self._queue) >= _LONGEST_QUEUE:
            self._send()

    def _get(self, *command):
        self._put(*command)
        return float(self._send()[-1])

    def _send(self):
        commands, self._queue = self._queue, []
        return self._do(commands)

    def _do(self, commands):
        if not commands:
            return []
        status, values = self._ask(np.array(commands, dtype=np.int64))
        if status == 1:
            raise OutOfTimeError("this benchmark has used up its time on the machine")
        if status == 2:
            raise MemoryError(
                "the device's 8 GB are full: an input lives as long as something refers to it"
            )
        return values


class Input:
    """An input in the device's memory. It lives until nothing refers to it."""

    def __init__(self, machine, id_):
        self.machine, self.id = machine, id_

    def __del__(self):
        self.machine._put(FREE, self.id)


class Result:
    """The result that a call will have computed. It keeps its input alive."""

    def __init__(self, machine, id_, x):
        self.machine, self.id, self.x = machine, id_, x


class Event:
    """A mark in the queue. The device notes when it reaches it, on a clock that ticks every half
    microsecond.
    """

    def __init__(self, machine, id_):
        self.machine, self.id = machine, id_

    def record(self):
        """Queues the mark."""
        self.machine._put(RECORD, self.id)
        self.machine._marks.pop(self.id, None)
        self.machine._unread.append(self.id)

    def elapsed_s(self, end):
        """Seconds from this mark to `end`. The device must have reached both: synchronize first."""
        return self.machine._elapsed_s(self.id, end.id)


class Here:
    """This computer through PyTorch, with the same calls; on a GPU they are torch.cuda's."""

    def __init__(self, device, function, make):
        import torch

        self.torch, self.gpu = torch, device == "cuda"
        self.function = function
        self._make, self._junk = make, torch.empty(256 << 18, device=device)
        self._until = time.perf_counter() + 20

    def make_input(self, fill=None):
        x = self._make()
        return x if fill is None else self.torch.full_like(x, fill)

    def use(self, result):
        pass  # PyTorch computes every call

    def synchronize(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def event(self):
        return HostEvent() if not self.gpu else GpuEvent(self.torch.cuda.Event(enable_timing=True))

    def flush_cache(self):
        self._junk.zero_()

    def perf_counter(self):
        return time.perf_counter()

    def time(self):
        return time.time()

    def seconds_left(self):
        return self._until - time.perf_counter()


class HostEvent:
    """On the CPU a call has run when it returns."""

    def record(self):
        self.at = time.perf_counter()

    def elapsed_s(self, end):
        return end.at - self.at


class GpuEvent:
    """torch.cuda.Event, in seconds."""

    def __init__(self, event):
        self._event = event

    def record(self):
        self._event.record()

    def elapsed_s(self, end):
        return self._event.elapsed_time(end._event) / 1000


def run(entry, ask, name):
    """Called by `lab run` and `lab check`: runs one benchmark by name on one function. Returns
    nothing if there is no such benchmark.
    """
    benchmark = getattr(entry, name, None)
    if benchmark is None:
        return ()
    machine = Machine(ask)
    result = benchmark(machine.function, machine.make_input, machine)
    return tuple(
        float(figure) for figure in (result if isinstance(result, tuple | list) else (result,))
    )
