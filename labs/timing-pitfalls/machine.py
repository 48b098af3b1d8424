"""The machine that a benchmark runs on: what can be asked of it, and two kinds of it.

`lab run` and `lab check` connect `Machine` to an emulated accelerator that keeps its own time. `python stopwatch.py` uses `Here`: this
machine's GPU, or its CPU, through PyTorch. Both answer the same calls.
"""

import time

import numpy as np

MAKE, FREE, CALL, USE, RECORD, SYNCHRONIZE, FLUSH, TIME, PERF_COUNTER, ELAPSED, LEFT = range(11)
_LONGEST_QUEUE = 2048


class OutOfTimeError(RuntimeError):
    """The machine was lent for a time, and that is used up."""


class Machine:
    """An accelerator with a host that drives it. Times are seconds.

    What is queued runs on the device in order, one after another, while the host goes on.
    """

    def __init__(self, ask):
        self._ask = ask
        self._queue = []
        self._ids = 0

    def function(self, x):
        """Queues one call of the function on an input; returns its result."""
        self._ids += 1
        self._put(CALL, self._ids, x.id)
        return Result(self, self._ids, x)

    def make_input(self, fill=None):
        """Another input, with data as the function gets them in production; or all of one value, as `torch.full` makes them.

        Made on the host and copied to the device, which has 8 GB for those that are still in use.
        """
        self._ids += 1
        self._put(MAKE, self._ids, fill is not None)
        return Input(self, self._ids)

    def use(self, result):
        """Queues work that needs the result, and takes no time. What nobody needs a runtime may leave out."""
        self._put(USE, result.id)

    def synchronize(self):
        """Returns when all that was queued has run."""
        self._put(SYNCHRONIZE)

    def event(self):
        """A mark for the queue; see Event."""
        self._ids += 1
        return Event(self, self._ids)

    def flush_cache(self):
        """Queues a write to 48 MB of the device's memory, as much as its cache holds."""
        self._put(FLUSH)

    def perf_counter(self):
        """The host's monotonic clock, as time.perf_counter."""
        return self._get(PERF_COUNTER)

    def time(self):
        """The host's calendar clock, as time.time on a machine whose clock ticks every 4 ms and is set by the network."""
        return self._get(TIME)

    def seconds_left(self):
        """How long this benchmark may still use the machine."""
        return self._get(LEFT)

    def _put(self, *command):
        self._queue.append((*command, 0, 0)[:3])
        if len(self._queue) >= _LONGEST_QUEUE:
            self._send()

    def _get(self, *command):
        self._put(*command)
        return self._send()

    def _send(self):
        commands, self._queue = self._queue, []
        status, value = self._ask(np.array(commands, dtype=np.int64))
        if status == 1:
            raise OutOfTimeError("this benchmark has used the machine for all the time it was lent")
        if status == 2:
            raise MemoryError("the device's 8 GB are full: inputs live as long as something refers to them")
        if status == 3:
            raise RuntimeError(
                "an event was asked for before it was recorded, or before the device came to it: synchronize first"
            )
        return value


class Input:
    """An input in the device's memory, until nothing refers to it any more."""

    def __init__(self, machine, id_):
        self.machine, self.id = machine, id_

    def __del__(self):
        self.machine._put(FREE, self.id)


class Result:
    """What a call will have computed, from an input that lives as long."""

    def __init__(self, machine, id_, x):
        self.machine, self.id, self.x = machine, id_, x


class Event:
    """A mark in the queue: the device notes when it comes to it, on a clock that ticks every half microsecond."""

    def __init__(self, machine, id_):
        self.machine, self.id = machine, id_

    def record(self):
        """Queues the mark."""
        self.machine._put(RECORD, self.id)

    def elapsed_s(self, end):
        """Seconds from this mark to another. Both must have been reached: synchronize first."""
        return self.machine._get(ELAPSED, self.id, end.id)


class Here:
    """This machine, through PyTorch, with the same calls; on a GPU they are torch.cuda's."""

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
        pass  # PyTorch computes whatever is called

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
    """What `lab run` and `lab check` call: one benchmark by its name, on one function. Nothing where there is none of that name."""
    benchmark = getattr(entry, name, None)
    if benchmark is None:
        return ()
    machine = Machine(ask)
    found = benchmark(machine.function, machine.make_input, machine)
    return tuple(float(figure) for figure in (found if isinstance(found, tuple | list) else (found,)))
