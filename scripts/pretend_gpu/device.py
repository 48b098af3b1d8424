"""The device itself: torch.cuda's surface over the host. Imports torch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch, _pytree  # noqa: PLC2701 - torch has no public names

from pretend_gpu import GPUS, NAME

OPERATOR_S = 20e-6
"""How long the device that is not there takes for an operator."""
MEMORY_BYTES = 8 << 30
PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
MOST_FLOP = 1e11
"""Of one product of matrices. A larger one, made to see how fast a GPU can be, is left out: its
result is all zeros.
"""


class Queue:
    """Work that the host has handed over, as the moment at which it will be done, seconds of the
    monotonic clock.
    """

    def __init__(self) -> None:
        self.done_at = 0.0

    def launch(self, seconds: float = OPERATOR_S, held_s: float = 0.0) -> None:
        """Queue one more operator, after those before it and no sooner than now; up to `held_s`
        late, it still ends as if it had followed them at once.
        """
        now = time.monotonic()
        self.done_at = (self.done_at if now <= self.done_at + held_s else now) + seconds

    def wait(self, until: float | None = None) -> None:
        """Return when all of it is done, or what was handed over before that moment."""
        time.sleep(max(0.0, (self.done_at if until is None else until) - time.monotonic()))


QUEUE = Queue()


class Event:
    """torch.cuda.Event, as far as labs and checks use it."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, _stream: Any = None) -> None:
        """Mark what has been queued so far."""
        self.at = max(QUEUE.done_at, time.monotonic())

    def synchronize(self) -> None:
        """Wait until the mark is reached."""
        QUEUE.wait(self.at)

    def wait(self, _stream: Any = None) -> None:
        """Another stream waits: all of them are one queue."""

    def query(self) -> bool:
        """Return True if the mark has been reached."""
        return time.monotonic() >= self.at

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two marks."""
        return 1000 * (end.at - self.at)


class Stream:
    """torch.cuda.Stream: every stream is the one queue."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for the queue."""
        QUEUE.wait()

    def wait_stream(self, _other: Any) -> None:
        """In order anyway."""

    def wait_event(self, _event: Any) -> None:
        """Likewise."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return a mark of what has been queued so far."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Return True if the queue is empty."""
        return time.monotonic() >= QUEUE.done_at


def here(value: Any) -> Any:
    """Return the value, or the host where it names a CUDA device."""
    named = isinstance(value, str) and value.startswith("cuda")
    meant = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if named or meant else value


class OnTheHost(TorchFunctionMode):
    """Operators for `cuda` run on the CPU; what goes to the device or comes back is a copy, as it
    would be there.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device and len(args) > 1:
            return func(*args)  # `torch.device("cuda", 1)`: only a name, until it is used
        kwargs = {
            name: here(value) for name, value in (kwargs or {}).items() if name != "pin_memory"
        }
        if func in (torch.Tensor.cuda, torch.Tensor.cpu):
            QUEUE.launch()
            QUEUE.wait()
            return args[0].clone()
        if func in (torch.Tensor.pin_memory, torch.Tensor.is_pinned):
            return args[0] if func is torch.Tensor.pin_memory else False
        if func is torch.Tensor.item:
            QUEUE.wait()
        QUEUE.launch()
        if func in PRODUCTS and _is_too_large(*args[:2]):
            return args[0].new_zeros((*args[0].shape[:-1], args[1].shape[-1]))
        moved = func is torch.Tensor.to and any(here(value) is not value for value in args)
        result = func(*(here(value) for value in args), **kwargs)
        return result.clone() if moved and result is args[0] else result


def _is_too_large(left: torch.Tensor, right: torch.Tensor) -> bool:
    return 2 * left.numel() * right.shape[-1] > MOST_FLOP


class Graph:
    """torch.cuda.CUDAGraph: the operators that ran while it recorded, run again on the tensors that
    they had.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []

    def replay(self) -> None:
        """Run them again; results go where they went when they were recorded."""
        QUEUE.launch()
        for func, args, kwargs, results in self.calls:
            for before, after in zip(
                results, _pytree.tree_leaves(func(*args, **kwargs)), strict=True
            ):
                if isinstance(before, torch.Tensor) and before.data_ptr() != after.data_ptr():
                    before.copy_(after)


class Recording(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """`with torch.cuda.graph(graph)`."""

    def __init__(self, graph: Graph, **_: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}, _pytree.tree_leaves(result)))
        return result


@contextlib.contextmanager
def stream(_stream: Any) -> Iterator[None]:
    yield


PROPERTIES = SimpleNamespace(
    name=NAME, major=9, minor=0, total_memory=MEMORY_BYTES, multi_processor_count=1
)
SURFACE: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "init": lambda: None,
    "device_count": lambda: GPUS,
    "current_device": lambda: 0,
    "set_device": lambda _device: None,
    "get_device_name": lambda _device=None: NAME,
    "get_device_capability": lambda _device=None: (9, 0),
    "get_device_properties": lambda _device=None: PROPERTIES,
    "synchronize": lambda _device=None: QUEUE.wait(),
    "current_stream": lambda _device=None: Stream(),
    "default_stream": lambda _device=None: Stream(),
    "stream": stream,
    "memory_allocated": lambda _device=None: 0,
    "max_memory_allocated": lambda _device=None: 0,
    "memory_reserved": lambda _device=None: 0,
    "mem_get_info": lambda _device=None: (MEMORY_BYTES, MEMORY_BYTES),
    "reset_peak_memory_stats": lambda _device=None: None,
    "empty_cache": lambda: None,
    "manual_seed": lambda _seed: None,
    "manual_seed_all": lambda _seed: None,
    "_sleep": lambda cycles: time.sleep(cycles / 1e9),
    "Event": Event,
    "Stream": Stream,
    "CUDAGraph": Graph,
    "graph": Recording,
    "graph_pool_handle": lambda: (0, 0),
}
"""What is put in place of torch.cuda's own."""


ACCELERATOR: dict[str, Any] = {
    "is_available": lambda: True,
    "current_accelerator": lambda **_: torch.device("cuda"),
    "current_device_index": lambda: 0,
    "set_device_index": lambda _index: None,
}
"""The same of torch.accelerator, which a DataLoader asks."""


class Profile(torch.profiler.profile):
    """torch.profiler.profile of the host alone. Without a driver the device's part raises and
    catches an error at each end of every operator.
    """

    def __init__(self, *, activities: Any = None, **more: Any) -> None:  # noqa: ARG002 - what was asked for
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **more)


def give() -> None:
    """Put the device into this process's torch, for this thread and those that it starts."""
    for module, surface in ((torch.cuda, SURFACE), (torch.accelerator, ACCELERATOR)):
        for name, stand_in in surface.items():
            setattr(module, name, stand_in)
    init_process_group, run = torch.distributed.init_process_group, threading.Thread.run

    def run_there(thread: threading.Thread) -> None:
        with OnTheHost():
            run(thread)

    torch.profiler.profile = Profile  # type: ignore[misc]  # a class is put in another's place
    torch.distributed.init_process_group = lambda _backend, **more: init_process_group(
        "gloo", **more
    )
    setattr(threading.Thread, "run", run_there)  # noqa: B010 - a method that takes the thread by position
    OnTheHost().__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it; until the process ends
