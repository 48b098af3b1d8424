"""`torch.virtual`: what programs ask of a device module, as they ask `torch.cuda`; its events and
its one stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bottleneck_lab.measure.faults import NotModelled

if TYPE_CHECKING:
    from bottleneck_lab.measure.virtual_gpu.backend import Driver

NAME = "virtual"
"""How PyTorch calls the device."""
_SHARED = (
    *("synchronize", "current_stream", "empty_cache"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved"),
)
"""Functions that the module and `torch.accelerator` have by the same name."""


class MissingAttribute(NotModelled, AttributeError):  # noqa: N818 - says what, as `raise` reads
    """A program asks the module for what `torch.cuda` has and the virtual GPU has not. PyTorch
    itself looks whether a device module has this or that, so it is an AttributeError, too.
    """


class DeviceEvent:
    """A mark in the stream, as `torch.cuda.Event`."""

    def __init__(self, driver: Driver, *, enable_timing: bool = False) -> None:
        self._driver = driver
        self._timed = enable_timing
        self._number: int | None = None

    def record(self, _stream: Any = None) -> None:
        """Mark what is queued now."""
        self._number = self._driver.ask("record_event")

    def wait(self, _stream: Any = None) -> None:
        """Do nothing: the one stream has its order."""

    def synchronize(self) -> None:
        """Wait until the device has come to the mark; an event that was never recorded has none."""
        if self._number is not None:
            self._driver.ask("wait_event", self._number, self._driver.line())

    def query(self) -> bool:
        """Return True if the device has come to the mark."""
        if self._number is None:
            return True
        return bool(self._driver.ask("query_event", self._number, self._driver.line()))

    def elapsed_time(self, end_event: DeviceEvent) -> float:
        """Return ms from this event to another. Raises ValueError or RuntimeError as CUDA does for
        events without timing, or that nobody has waited for.
        """
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._number is None or end_event._number is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(self._driver.ask("elapsed_us", self._number, end_event._number)) / 1000


class DeviceStream:
    """The device's one stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def synchronize(self) -> None:
        """Wait until the device has run all that is queued."""
        self._driver.ask("wait", self._driver.line())

    def record_event(self, event: DeviceEvent | None = None) -> DeviceEvent:
        """Record an event, a new one where none is given, and return it."""
        event = event or DeviceEvent(self._driver)
        event.record()
        return event

    def query(self) -> bool:
        """Return True if the device has run all that is queued."""
        return self.record_event().query()

    def wait_event(self, _event: DeviceEvent) -> None:
        """Do nothing: the one stream has its order."""

    def wait_stream(self, _stream: DeviceStream) -> None:
        """Do nothing: there is no other."""


class DeviceModule:
    """`torch.virtual`."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> NoReturn:
        """Raise MissingAttribute for what `torch.cuda` has, AttributeError for a mistake."""
        # PyTorch's own questions begin with an underscore, and have an answer where there is none.
        if name.startswith("_") or not hasattr(torch.cuda, name):
            raise AttributeError(f"module 'torch.virtual' has no attribute '{name}'")
        raise MissingAttribute(f"torch.virtual.{name} is not available on the virtual GPU")

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        """Return True in a forked process, which has no device, as with CUDA: a loader's worker
        that seeds its generators leaves the device's alone.
        """
        return self.driver.forked

    def _lazy_init(self) -> None:
        """Do nothing: PyTorch calls it before it uses a device."""

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, _device: Any) -> None:
        """Do nothing: there is one."""

    def get_device_name(self, _device: Any = None) -> str:
        return "virtual GPU"

    def manual_seed(self, seed: int) -> None:
        self.driver.ask("seed", seed & 0x7FFFFFFFFFFFFFFF)

    manual_seed_all = manual_seed

    def get_rng_state(self, _device: Any = None) -> torch.Tensor:
        """Return the state of the device's generator, as checkpointing saves it."""
        state: torch.Tensor = self.driver.ask("get_rng_state")
        return state

    def set_rng_state(self, state: torch.Tensor, _device: Any = None) -> None:
        """Give the device's generator a state that it had before."""
        self.driver.ask("set_rng_state", state)

    def device(self, _device: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the device is the current one, as it always is."""
        return contextlib.nullcontext()

    def synchronize(self, _device: Any = None) -> None:
        self.current_stream().synchronize()

    def current_stream(self, _device: Any = None) -> DeviceStream:
        return DeviceStream(self.driver)

    default_stream = current_stream

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> DeviceEvent:
        """Return a new event. How the host waits for one, and where else it is known, is the same
        here.
        """
        del blocking, interprocess
        return DeviceEvent(self.driver, enable_timing=enable_timing)

    def memory_allocated(self, _device: Any = None) -> int:
        return int(self.driver.ask("memory")[0])

    def max_memory_allocated(self, _device: Any = None) -> int:
        return int(self.driver.ask("memory")[1])

    def memory_reserved(self, _device: Any = None) -> int:
        return int(self.driver.ask("memory")[2])

    def empty_cache(self) -> None:
        self.driver.ask("empty_cache")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def replace_shared_functions(module: DeviceModule) -> None:
    """Have what PyTorch offers for any accelerator ask this one; its own versions ask a backend
    written in C++.
    """

    class Event(DeviceEvent):  # a class, since PyTorch derives others from it
        def __init__(self, _device: Any = None, *, enable_timing: bool = False, **_: Any) -> None:
            super().__init__(module.driver, enable_timing=enable_timing)

    def refuse_compile(*_: Any, **__: Any) -> NoReturn:
        raise NotModelled("torch.compile is not available on the virtual GPU")

    torch.Event = Event  # type: ignore[assignment, misc]  # in place of PyTorch's own
    for name in _SHARED:
        setattr(torch.accelerator, name, getattr(module, name))
    torch.compile = refuse_compile


_NEEDS_A_BACKEND = ("PrivateUse1", f"'Autocast{NAME}'", "Backend doesn't support")
_NEEDS_A_GPU = ("NVIDIA driver", "CUDA driver", "CUDA GPUs", "CUDA enabled", "dummy base class")
"""Parts of PyTorch's errors about what needs a backend written in C++, or a GPU from NVIDIA."""


@contextlib.contextmanager
def naming_what_is_missing() -> Iterator[None]:
    """Raise NotModelled, at the program's line, for an error of PyTorch's own about what the
    virtual GPU has not, and for `torch.cuda` in a program that runs on it.
    """
    try:
        yield
    except (NotImplementedError, RuntimeError, AssertionError) as error:
        text = str(error).partition("\n")[0][:300]
        if isinstance(error, NotModelled):
            raise
        if any(part in text for part in _NEEDS_A_BACKEND):
            raise NotModelled(text).with_traceback(error.__traceback__) from None
        if hasattr(torch, NAME) and any(part in text for part in _NEEDS_A_GPU):
            raise NotModelled(
                "torch.cuda needs an NVIDIA GPU, and the device here is the virtual GPU: use the"
                f" device that you are given, and torch.{NAME} in place of torch.cuda"
            ).with_traceback(error.__traceback__) from None
        raise
