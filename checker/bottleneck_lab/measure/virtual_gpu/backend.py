"""The program's side of a virtual GPU: a torch device called `virtual`, whose tensors are handles to the verifier's engine.

`install(sock)` registers it; from then on `tensor.to("virtual")`, modules, autograd and optimizers work as on any device, and `torch.virtual` answers what
`torch.cuda` answers of memory and synchronisation.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils import backend_registration

from bottleneck_lab.measure.virtual_gpu.codec import DTYPES, Described, Handle, decode, encode, leaves, replace
from bottleneck_lab.measure.virtual_gpu.frames import Frames

aten = torch.ops.aten
NAME = "virtual"
_ERRORS = {
    kind.__name__: kind
    for kind in (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, torch.OutOfMemoryError)
}


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU: shape and dtype are here, its values are not."""

    handle: Handle
    _values_of: VirtualTensor
    """Whose values it has, where they were another tensor's: as long as it lives, so does their handle."""

    @staticmethod
    def __new__(cls: type[VirtualTensor], described: Described, driver: Driver) -> VirtualTensor:
        with torch.inference_mode(False):  # a tensor made in it could not be a view's base
            tensor: VirtualTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                described.shape,
                strides=described.stride,
                storage_offset=described.offset,
                dtype=DTYPES[described.dtype],
                device=torch.device(NAME, 0),
            )
        tensor.handle = Handle(described.number)
        weakref.finalize(tensor, driver.let_go, described.number).atexit = False
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's own default is another function
        return _driver().run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]  # a C++ property

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """What `module.half()` and the like do: the parameter stays, and has another tensor's values."""
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # as above
        if isinstance(value, VirtualTensor) and value.handle.number != self.handle.number:
            _driver().let_go(self.handle.number)
            self.handle, self._values_of = value.handle, value

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


class Driver:
    """Sends what the program does to the engine, and waits for the answer: the engine's clock, not this waiting, says what it costs."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self._engine = Frames(sock)
        self._folder = str(folder)
        self._lock = threading.RLock()
        self._released: list[int] = []
        self._pinned: dict[int, weakref.ref[torch.Tensor]] = {}
        self._under_way: dict[int, torch.Tensor] = {}
        """Targets of copies that the program did not wait for: until one arrives, its target holds what it held."""
        self._collections = 0

    def let_go(self, number: int) -> None:
        """Called when a tensor dies; the engine hears of it with the next call."""
        self._released.append(number)

    def collected(self) -> None:
        """The program has run Python's garbage collector; the engine hears of it with the next call, as of what died."""
        self._collections += 1

    def ask(self, name: str, *args: Any) -> Any:
        """The engine's answer to a call. Raises what the operator raised."""
        with self._lock:
            released, self._released = self._released, []
            collections, self._collections = self._collections, 0
            self._engine.send(encode([name, released, collections, *args]))
            right, *answer = decode(self._engine.receive())
            if right:
                for number, data in answer[1]:
                    self._under_way.pop(number).copy_(data)
                return answer[0]
        kind, words = answer
        raise _ERRORS.get(kind, RuntimeError)(words)

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """An operator with a tensor of the device's, or one that makes one."""
        packet = function.overloadpacket
        if packet is aten._local_scalar_dense:
            return self._download(args[0], None, blocking=True).item()
        if packet is aten._to_copy:
            return self._to_copy(args[0], **kwargs)
        if packet is aten.copy_:
            return self._copy(*args, **kwargs)
        if packet is aten.is_pinned:
            return False
        self._refuse_mixed(function, args, kwargs)
        tensors = {tensor.handle.number: tensor for tensor in _leaves(args, kwargs)}
        plain_args, plain_kwargs = replace((args, kwargs), _handle_of)
        plain_kwargs.pop("pin_memory", None)
        answer = self.ask("call", packet.__name__, function._overloadname, plain_args, plain_kwargs, self.line())
        return self._result(answer, function, tensors)

    def line(self) -> str:
        """The program's own line that is running, `file(line): function`: of the launching thread, also while autograd's runs."""
        return _own_line(sys._current_frames().get(threading.main_thread().ident or 0), self._folder)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy of a tensor in the host's memory. The launching thread pays for it; a loader's own thread does not."""
        copy = tensor.clone()
        self._pinned[id(copy)] = weakref.ref(copy, lambda _: self._pinned.pop(id(copy), None))
        if threading.current_thread() is threading.main_thread():
            self.ask("pin", tensor.nbytes, self.line())
        return copy

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether `pin` made it, or it is a view of such a one."""
        return any(each is not None and id(each) in self._pinned for each in (tensor, tensor._base))

    def _result(self, answer: Any, function: Any, tensors: dict[int, VirtualTensor]) -> Any:
        returns = function._schema.returns
        if isinstance(answer, list) and len(returns) > 1:
            return tuple(self._value(value, tensors) for value in answer)
        return self._value(answer, tensors)

    def _value(self, value: Any, tensors: dict[int, VirtualTensor]) -> Any:
        """A described tensor as ours: the argument itself where an operator worked in place."""
        if isinstance(value, list) and _is_described(value):
            described = Described(*value)
            own = tensors.get(described.number)
            return VirtualTensor(described, self) if own is None else own
        return [self._value(each, tensors) for each in value] if isinstance(value, list) else value

    def _to_copy(self, source: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        dtype, blocking = kwargs.get("dtype"), not kwargs.get("non_blocking", False)
        if not isinstance(source, VirtualTensor):
            pinned = self.is_pinned(source)
            answer = self.ask("upload", source, dtype, pinned, blocking, self.line())
            uploaded: torch.Tensor = self._value(answer, {})
            return uploaded
        if device is not None and device.type != NAME:
            target = None if blocking else torch.zeros(source.shape, dtype=source.dtype)
            host = self._download(source, target, blocking=blocking)
            return host if dtype is None else host.to(dtype)
        kept = {key: kwargs[key] for key in ("dtype", "memory_format") if kwargs.get(key) is not None}
        answer = self.ask("call", "_to_copy", "default", [source.handle], kept, self.line())
        return VirtualTensor(Described(*answer), self)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        blocking = not non_blocking
        if isinstance(target, VirtualTensor) and isinstance(source, VirtualTensor):
            self.ask("call", "copy_", "default", [target.handle, source.handle], {}, self.line())
        elif isinstance(target, VirtualTensor):
            self.ask("overwrite", target.handle, source, self.is_pinned(source), blocking, self.line())
        else:
            self._download(source, target, blocking=blocking or not self.is_pinned(target))
        return target

    def _download(self, source: Any, target: torch.Tensor | None, *, blocking: bool) -> torch.Tensor:
        """The tensor's values on the host, in `target` if there is one. Not blocking: they will be there when the copy has arrived."""
        with self._lock:  # no other thread may be told that it has arrived before its target is known
            data = self.ask("download", source.handle, not blocking, blocking, self.line())
            if isinstance(data, torch.Tensor):
                return data if target is None else target.copy_(data)
            assert target is not None
            self._under_way[data] = target
            return target

    @staticmethod
    def _refuse_mixed(function: Any, args: Any, kwargs: Any) -> None:
        """As on a GPU: a tensor of the host's may only be a number of no dimensions."""
        for tensor in leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, VirtualTensor) and tensor.dim():
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found one on {tensor.device} and one on virtual:0 "
                    f"(in {function})."
                )


def _leaves(args: Any, kwargs: Any) -> list[VirtualTensor]:
    return [value for value in leaves((args, kwargs)) if isinstance(value, VirtualTensor)]


def _handle_of(value: Any) -> Any:
    return value.handle if isinstance(value, VirtualTensor) else value


def _is_described(value: list[Any]) -> bool:
    return len(value) == 5 and isinstance(value[4], str)


def _own_line(frame: FrameType | None, folder: str) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(folder):
            return f"{Path(file).name}({frame.f_lineno}): {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


class _Module:
    """`torch.virtual`: what programs ask of a device module."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        """There is nothing to initialise."""

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        _driver().ask("seed", seed & 0x7FFFFFFFFFFFFFFF)

    def synchronize(self, _device: Any = None) -> None:
        driver = _driver()
        driver.ask("wait", driver.line())

    def memory_allocated(self, _device: Any = None) -> int:
        return int(_driver().ask("memory")[0])

    def max_memory_allocated(self, _device: Any = None) -> int:
        return int(_driver().ask("memory")[1])

    def memory_reserved(self, _device: Any = None) -> int:
        return int(_driver().ask("memory")[2])

    def empty_cache(self) -> None:
        _driver().ask("empty_cache")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_installed: list[Driver] = []


def _driver() -> Driver:
    return _installed[0]


def install(sock: socket.socket, folder: Path) -> Driver:
    """Makes `torch.device("virtual")` work, on the engine at the other end of `sock`. Lines are those of files below `folder`."""
    driver = Driver(sock, folder)
    _installed[:] = [driver]
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch publishes no types for it
    library.fallback(lambda function, *args, **kwargs: driver.run(function, args, kwargs), "PrivateUse1")
    _KEPT.append(library)
    _replace_pinning(driver)
    _count_collections(driver)
    return driver


_KEPT: list[Any] = []
"""A library's registrations end with it."""


def _count_collections(driver: Driver) -> None:
    """Only those that the program asks for: when Python collects by itself depends on more than the program."""
    collect = gc.collect

    def counted(generation: int = 2) -> int:
        driver.collected()
        return collect(generation)

    gc.collect = counted


def _replace_pinning(driver: Driver) -> None:
    """Page-locking is a driver's business, and this device's driver is here."""

    def pin_memory(self: torch.Tensor, _device: Any = None) -> torch.Tensor:
        return driver.pin(self)

    def is_pinned(self: torch.Tensor, _device: Any = None) -> bool:
        return driver.is_pinned(self)

    with contextlib.suppress(AttributeError):
        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]  # for every tensor
        torch.Tensor.is_pinned = is_pinned  # type: ignore[method-assign, assignment]  # as above
