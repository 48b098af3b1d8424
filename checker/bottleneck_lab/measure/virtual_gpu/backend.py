"""The program's side of a virtual GPU: a torch device called `virtual`, whose tensors are handles
to the verifier's engine.

`install(sock)` registers it; from then on `tensor.to("virtual")`, modules, autograd and optimizers
work as on any device, and `torch.virtual` answers what `torch.cuda` answers of memory and
synchronisation.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.arithmetic import (
    Tf32,
    factors,
    refuse_switches,
    switched_tf32,
)
from bottleneck_lab.measure.virtual_gpu.autocast import replace_autocast
from bottleneck_lab.measure.virtual_gpu.codec import (
    DTYPES,
    Handle,
    decode,
    encode,
    leaves,
    plain_bytes,
    replace,
)
from bottleneck_lab.measure.virtual_gpu.frames import Frames
from bottleneck_lab.measure.virtual_gpu.memory import ROUND_BYTES
from bottleneck_lab.measure.virtual_gpu.module import (
    NAME,
    DeviceModule,
    replace_shared_functions,
)
from bottleneck_lab.measure.virtual_gpu.operators import is_composite, is_predictable

aten = torch.ops.aten
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
_DEVICE = torch.device("privateuseone", 0)
"""PyTorch's name for `virtual` before it is renamed."""
_ERRORS = {
    kind.__name__: kind
    for kind in (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        NotModelled,
        torch.OutOfMemoryError,
    )
}


class TensorForm(msgspec.Struct, frozen=True):
    """Everything about a tensor but its values and its number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str

    def span_bytes(self) -> int:
        """Return bytes from the start of the storage to the end of the tensor, rounded as the
        device's allocator does.
        """
        last = self.offset + sum(
            (size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)
        )
        # Floor division of the negative rounds up.
        return -(-(last + 1) * DTYPES[self.dtype].itemsize // ROUND_BYTES) * ROUND_BYTES


class Argument(msgspec.Struct, frozen=True):
    """A result that is one of the operator's own arguments: its position among them, and its form
    afterwards.
    """

    position: int
    form: TensorForm


class PredictedResult(msgspec.Struct, frozen=True):
    """The result of an operator for arguments of a given form: a nest of `Argument`, `TensorForm`
    (a new tensor) and None.

    `new` counts the new tensors, `nbytes` their bytes.
    """

    results: Any
    new: int
    nbytes: int


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU: shape and dtype are here, its values are not."""

    handle: Handle
    form: TensorForm
    """As the engine has it."""
    _values_of: VirtualTensor
    """Whose values it has, where they were another tensor's: as long as it lives, so does their
    handle.
    """

    @staticmethod
    def __new__(
        cls: type[VirtualTensor], number: int, form: TensorForm, driver: Driver
    ) -> VirtualTensor:
        tensor = cls._wrapper(form)
        tensor.handle, tensor.form = Handle(number), form
        # Not at exit: the interpreter is then half gone, and the engine closes its books anyway.
        weakref.finalize(tensor, driver.let_go, number).atexit = False
        return tensor

    @classmethod
    def _wrapper(cls, form: TensorForm) -> VirtualTensor:
        """Return a tensor of this form that stands for nothing yet."""
        with torch.inference_mode(False):  # a tensor made in it could not be a view's base
            wrapper: VirtualTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                form.shape,
                strides=form.stride,
                storage_offset=form.offset,
                dtype=DTYPES[form.dtype],
                device=_DEVICE,
            )
        return wrapper

    def take_form(self, form: TensorForm) -> None:
        """Take the form that an operator has given this tensor in the engine: `t_` turns it, and
        one that grows as `out=` gets its shape there.
        """
        if form != self.form:
            torch.Tensor.data.__set__(self, self._wrapper(form))  # type: ignore[attr-defined]  # a C++ property
            self.form = form

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's own default is another function
        return _driver().run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]  # a C++ property

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Give the tensor another's values, as `module.half()` and the like do with parameters."""
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # as above
        if isinstance(value, VirtualTensor) and value.handle.number != self.handle.number:
            _driver().let_go(self.handle.number)
            self.handle, self.form, self._values_of = value.handle, value.form, value

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert virtual:0 device type tensor to numpy. Use Tensor.cpu() to copy the"
                " tensor to host memory first."
            )
        return self.detach().cpu().numpy()

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return format(self.item(), spec)
        return object.__format__(self, spec)


class Source:
    """A pinned tensor that the device has yet to read: a program that writes over it meanwhile
    sends what it did not mean to.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._storage = tensor.detach(), tensor.untyped_storage()
        self._before = plain_bytes(tensor).clone()

    def is_lost(self) -> bool:
        """Return True if the program can no longer write to it: only this object holds its memory,
        by its tensor and its storage.
        """
        return bool(torch._C._storage_Use_Count(self._storage._cdata) <= 2)

    def is_overwritten(self) -> bool:
        """Return True if it holds other values than when it was to be copied."""
        return not plain_bytes(self._tensor).equal(self._before)


class Call:
    """An operator's call as it travels. `args` and `kwargs` hold handles instead of tensors,
    `given` the tensors in the order in which they stand there.

    `signature` is the same for calls whose results look the same, where those are predictable.
    Raises RuntimeError for a mixture of devices, as a GPU does.
    """

    def __init__(self, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.function = function
        self.given: list[VirtualTensor] = []
        self._positions: dict[int, int] = {}
        self._key: list[Any] = [function]
        self.args = [self._plain(value) for value in args]
        self.kwargs = {}
        for name, value in kwargs.items():
            if name != "pin_memory":  # a matter of the host's
                self._key.append(name)
                self.kwargs[name] = self._plain(value)
        self.signature = tuple(self._key)

    def message(self, line: str) -> list[Any]:
        """Return name, overload, arguments and the program's line."""
        return [
            self.function.overloadpacket.__name__,
            self.function._overloadname,
            self.args,
            self.kwargs,
            line,
        ]

    def position(self, number: int) -> int | None:
        """Return the position of the tensor with this number among those given, or None."""
        return self._positions.get(number)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, VirtualTensor):
            return self._handle(value)
        if isinstance(value, list | tuple):
            self._key.append((len(value),))
            return [self._plain(each) for each in value]
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise NotModelled(f"{value.layout} is not available on the virtual GPU")
            # As on a GPU, a host's tensor is accepted only as a number without dimensions.
            if value.dim():
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found one on"
                    f" {value.device} and one on virtual:0 (in {self.function})."
                )
            self._key.append(("host", value.dtype))
            return value
        self._key += (type(value), value)  # 1, 1.0 and True are equal, but give different dtypes
        return value

    def _handle(self, tensor: VirtualTensor) -> Handle:
        handle = tensor.handle
        position = self._positions.setdefault(handle.number, len(self._positions))
        if position == len(self.given):
            self.given.append(tensor)
        self._key += (tensor.form, position)
        return handle


class Driver:
    """Sends what the program does to the engine. The engine's clock says what a call costs, not the
    time that this process waits for an answer.

    Where it knows what the result looks like, as in all but the first of many steps that are alike,
    it waits for no answer.
    """

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self._engine = Frames(sock)
        self._folder = str(folder)
        self.forked = False
        self._lock = threading.RLock()
        self._released: list[int] = []
        self._pinned: dict[int, Any] = {}
        """Weak references to storages in pinned memory, by their address."""
        self._under_way: dict[int, torch.Tensor] = {}
        """Targets of copies that the program has not waited for: until then, a target holds what it
        held.
        """
        self._sources: dict[int, Source] = {}
        """Pinned tensors that the device may not have read yet, by the number of the copy."""
        self._collections: list[int] = []
        self._predicted: dict[Any, PredictedResult] = {}
        self._free_bytes = 0
        """Of the device's memory at least."""
        self._steps = 0
        self._copies: dict[Any, int] = {}
        """The host's memory that has been copied to from the device, with the step of the first."""
        self._tf32 = Tf32()
        """As the engine has it."""
        self._lowest = 0
        """The last number of a tensor that the engine has not numbered: those are below zero."""

    def leave(self) -> None:
        """Let go of the engine in a forked process: its parent sends what is queued, and all
        later.
        """
        self.forked = True
        self._engine.sock.close()

    def let_go(self, number: int) -> None:
        """Note that a tensor has died; the engine hears of it with the next call."""
        self._released.append(number)

    def collected(self, generation: int) -> None:
        """Note that the program has collected a generation of garbage; the engine hears of it with
        the next call.
        """
        self._collections.append(generation)

    def begin_pass(self) -> None:
        """Begin a pass through the data."""
        self._steps, self._copies = 0, {}
        self.ask("begin_pass")

    def step(self, samples: int) -> None:
        """Begin a step with a batch, of which this thread has loaded `samples` samples itself."""
        self._steps += 1
        self._copies = {host: step for host, step in self._copies.items() if not host.expired()}
        self.ask("step", samples, Counter(self._copies.values()))

    def _note_copy(self, host: torch.Tensor) -> None:
        memory = StorageWeakRef(host.untyped_storage())  # type: ignore[no-untyped-call]  # torch has no types for it
        self._copies.setdefault(memory, self._steps)

    def ask(self, name: str, *args: Any) -> Any:
        """Return the engine's answer to a call. Raises what the operator raised."""
        with self._lock:
            self._engine.send(self._message(name, args))
            right, *answer = decode(self._engine.receive())
            if right:
                result, arrived, read, self._free_bytes = answer
                for number, data in arrived:
                    self._under_way.pop(number).copy_(data)
                for number in read:
                    self._sources.pop(number, None)
                return result
        kind, words = answer
        raise _ERRORS.get(kind, RuntimeError)(words)

    def _message(self, name: str, args: Sequence[Any]) -> bytes:
        released, self._released = self._released, []
        collections, self._collections = self._collections, []
        for number in [each for each, source in self._sources.items() if source.is_lost()]:
            del self._sources[number]
        # Before the call that comes now: the host's clock has not moved since the last one.
        overwritten = [each for each, source in self._sources.items() if source.is_overwritten()]
        for number in overwritten:
            del self._sources[number]
        return encode([name, released, collections, overwritten, *args])

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that has a tensor of the device, or makes one; return its result."""
        packet = function.overloadpacket
        if packet is aten._local_scalar_dense:
            return self._download(args[0], None, blocking=True).item()
        if packet is aten._to_copy:
            return self._to_copy(args[0], **kwargs)
        if packet is aten.copy_:
            return self._copy(*args, **kwargs)
        if packet is aten.is_pinned:
            return False
        if is_composite(function):
            # Only in inference mode, where autograd has not taken it apart.
            return function.decompose(*args, **kwargs)
        if packet in INDEXING:
            args = (args[0], [self._to_device(index) for index in args[1]], *args[2:])
        return self._call(Call(function, args, kwargs))

    def _to_device(self, index: torch.Tensor | None) -> torch.Tensor | None:
        """Return an index where its tensor is: as on a GPU, one from the host is copied there, and
        the host waits for that.
        """
        if index is None or isinstance(index, VirtualTensor):
            return index
        return self._to_copy(index)

    def _call(self, call: Call) -> Any:
        message = call.message(self.line())
        refuse_switches(call.function, {tensor.form.dtype for tensor in call.given})
        with self._lock:
            if factors(call.function) and (tf32 := switched_tf32()) != self._tf32:
                self.ask("set_tf32", tf32.matrices, tf32.convolutions)
                self._tf32 = tf32
            # Training repeats itself: from the second step on, nearly every call has a signature
            # whose result is known. One that might not fit the device must be asked, to raise here
            # as it would on a GPU.
            predicted = self._predicted.get(call.signature)
            if predicted and predicted.nbytes <= self._free_bytes:
                return self._launch(call, message, predicted)
            results, numbers = _results(self.ask("call", *message), call)
            if is_predictable(call.function) and (known := _predicted(results)):
                self._predicted[call.signature] = known
            return self._values(results, call, numbers)

    def _launch(self, call: Call, message: list[Any], predicted: PredictedResult) -> Any:
        """Send a call whose result is known, and do not wait for the engine."""
        # This is what makes the emulation as fast as it is: a step sends hundreds of operators, and
        # waiting for each would be two switches between processes. It is safe because the call can
        # neither fill the device nor be one that waits, after which a copy has arrived.
        numbers = range(self._lowest - 1, self._lowest - 1 - predicted.new, -1)
        self._engine.queue(self._message("launch", [*message, list(numbers)]))
        self._lowest -= predicted.new
        self._free_bytes -= predicted.nbytes
        return self._values(predicted.results, call, numbers)

    def _values(self, results: Any, call: Call, numbers: Iterable[int]) -> Any:
        """Return a nest of results as tensors: the argument itself where an operator worked in
        place; new ones have these numbers.
        """
        free = iter(numbers)

        def value(result: Any) -> Any:
            if isinstance(result, Argument):
                given = call.given[result.position]
                given.take_form(result.form)
                return given
            if isinstance(result, TensorForm):
                return VirtualTensor(next(free), result, self)
            return result

        return replace(results, value)

    def line(self) -> str:
        """Return the program's own line that is running, `file(line): function`: of the launching
        thread, also while autograd's runs.
        """
        return _own_line(
            sys._current_frames().get(threading.main_thread().ident or 0), self._folder
        )

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host's memory, which is pinned from now on. The launching thread
        pays for it; a loader's own thread does not.
        """
        if threading.current_thread() is threading.main_thread():
            self.ask("pin", tensor.nbytes, self.line())
        return self._mark_pinned(tensor)

    def _mark_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        for address, reference in list(self._pinned.items()):
            if reference.expired():
                self._pinned.pop(address, None)
        # A weak reference keeps the storage's address taken, though not its memory.
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch publishes no types for it
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return True for a tensor in memory that has been pinned."""
        if isinstance(tensor, VirtualTensor) or tensor.layout is not torch.strided:
            return False
        reference = self._pinned.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def _watch(self, number: int | None, source: torch.Tensor) -> None:
        """Watch the source of a copy that has yet to be read, until it has."""
        if number is not None:
            self._sources[number] = Source(source)

    def _to_copy(self, source: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        dtype, blocking = kwargs.get("dtype"), not kwargs.get("non_blocking", False)
        if not isinstance(source, VirtualTensor):
            pinned = self.is_pinned(source)
            with self._lock:
                answer, copy = self.ask("upload", source, dtype, pinned, blocking, self.line())
                self._watch(copy, source)
            number, form = _described(answer)
            return VirtualTensor(number, form, self)
        if device is not None and device.type != NAME:
            target = None
            if not blocking:
                target = self._mark_pinned(torch.zeros(source.shape, dtype=source.dtype))
            host = self._download(source, target, blocking=blocking)
            return host if dtype is None else host.to(dtype)
        kept = {
            key: kwargs[key] for key in ("dtype", "memory_format") if kwargs.get(key) is not None
        }
        copied: torch.Tensor = self._call(Call(aten._to_copy.default, [source], kept))
        return copied

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        blocking = not non_blocking
        if isinstance(target, VirtualTensor) and isinstance(source, VirtualTensor):
            self._call(Call(aten.copy_.default, [target, source], {}))
        elif isinstance(target, VirtualTensor):
            pinned, line = self.is_pinned(source), self.line()
            with self._lock:
                copy = self.ask("overwrite", target.handle, source, pinned, blocking, line)
                self._watch(copy, source)
        else:
            self._download(source, target, blocking=blocking or not self.is_pinned(target))
        return target

    def _download(
        self, source: Any, target: torch.Tensor | None, *, blocking: bool
    ) -> torch.Tensor:
        """Return the tensor's values on the host, in `target` if there is one. Not blocking: they
        will be there when the copy has arrived.
        """
        # Held over both: no other thread may learn that the copy has arrived before its target is
        # known.
        with self._lock:
            data = self.ask("download", source.handle, not blocking, blocking, self.line())
            if isinstance(data, torch.Tensor):
                host = data if target is None else target.copy_(data)
                self._note_copy(host)
                return host
            assert target is not None
            self._under_way[data] = target
            self._note_copy(target)
            return target


def _described(answer: list[Any]) -> tuple[int, TensorForm]:
    number, shape, stride, offset, dtype = answer
    return number, TensorForm(tuple(shape), tuple(stride), offset, dtype)


def _results(answer: Any, call: Call) -> tuple[Any, list[int]]:
    """Return an answer as a nest of `Argument`, `TensorForm` and values, a tuple where the operator
    has several results; and the numbers of its new tensors.
    """
    numbers: list[int] = []
    results = _read(answer, call, numbers)
    several = isinstance(results, list) and len(call.function._schema.returns) > 1
    return tuple(results) if several else results, numbers


def _read(answer: Any, call: Call, numbers: list[int]) -> Any:
    """Read one part of an answer; note the numbers of new tensors in `numbers`."""
    # A function of its own: one that calls itself from inside another is a cycle, and would keep
    # the call's tensors until the next collection, which the memory's books would show.
    if not isinstance(answer, list):
        return answer
    if len(answer) != 5 or not isinstance(answer[4], str):
        return [_read(each, call, numbers) for each in answer]
    number, form = _described(answer)
    if (position := call.position(number)) is not None:
        return Argument(position, form)
    numbers.append(number)
    return form


def _predicted(results: Any) -> PredictedResult | None:
    """Return what the same call will return next time; None if that cannot be known."""
    # A plain value (a number, a bool) may be another one then.
    parts = list(leaves(results))
    if not all(result is None or isinstance(result, Argument | TensorForm) for result in parts):
        return None
    new = [result for result in parts if isinstance(result, TensorForm)]
    return PredictedResult(results, len(new), sum(form.span_bytes() for form in new))


def _own_line(frame: FrameType | None, folder: str) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(folder):
            # Not by `Path`: every operator comes by here.
            name = file.rpartition("/")[2]
            return f"{name}({frame.f_lineno}): {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


_installed: list[Driver] = []


def _driver() -> Driver:
    return _installed[0]


def install(sock: socket.socket, folder: Path) -> Driver:
    """Make `torch.device("virtual")` work, on the engine at the other end of `sock`. Lines are
    those of files below `folder`.
    """
    driver = Driver(sock, folder)
    _installed[:] = [driver]
    module = DeviceModule(driver)
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch publishes no types for it
    library.fallback(
        lambda function, *args, **kwargs: driver.run(function, args, kwargs), "PrivateUse1"
    )
    # Where `torch.tensor` fills a tensor of the device, PyTorch does not find the fallback.
    copies: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # as above
    copies.impl(
        "_copy_from",
        lambda source, target, non_blocking=False: driver._copy(target, source, non_blocking),
        "PrivateUse1",
    )
    for function in (aten.rnn_tanh, aten.rnn_relu):
        for overload in ("input", "data"):
            whole = getattr(function, overload)
            name, run = f"{function.__name__}.{overload}", functools.partial(_run_rnn, whole)
            copies.impl(name, run, "AutogradPrivateUse1")
    _KEPT.extend((library, copies))
    os.register_at_fork(after_in_child=driver.leave)
    replace_shared_functions(module)
    replace_autocast(NAME)
    _replace_pinning(driver)
    _count_collections(driver)
    return driver


_KEPT: list[Any] = []
"""A library's registrations end with it."""


def _run_rnn(function: Any, *args: Any) -> Any:
    # One call of cuDNN's, in TF32; its parts would be hundreds of launches, in float32. Without
    # cuDNN a GPU runs those parts, too.
    if torch.backends.cudnn.enabled:
        raise NotModelled(
            "nn.RNN with cuDNN is not available on the virtual GPU; it is within"
            " torch.backends.cudnn.flags(enabled=False)"
        )
    return function.decompose(*args)


def _count_collections(driver: Driver) -> None:
    """Report the collections that the program asks for (`gc.collect()`)."""
    # Those that Python starts on its own depend on more than the program: counting them would make
    # the figures of two runs differ.
    collect = gc.collect

    def counted(generation: int = 2) -> int:
        driver.collected(generation)
        return collect(generation)

    gc.collect = counted


def _replace_pinning(driver: Driver) -> None:
    """Have `tensor.pin_memory()` and `is_pinned()` ask this device's driver, not CUDA's."""

    def pin_memory(self: torch.Tensor, _device: Any = None) -> torch.Tensor:
        return self if driver.is_pinned(self) else driver.pin(self.clone())

    def is_pinned(self: torch.Tensor, _device: Any = None) -> bool:
        return driver.is_pinned(self)

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]  # for every tensor
    torch.Tensor.is_pinned = is_pinned  # type: ignore[method-assign, assignment]  # as above

    def pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            return driver.pin(tensor) if pin_memory else tensor

        return functools.update_wrapper(made, make)

    # PyTorch's own functions would ask the backend for an allocator, which only C++ can give.
    for holder in (torch, torch.Tensor):
        for name in dir(holder):
            if name == "tensor" or _takes_pin_memory(getattr(aten, name, None)):
                setattr(holder, name, pinning(getattr(holder, name)))


def _takes_pin_memory(packet: Any) -> bool:
    """Return True for a packet of operators that can make a tensor in pinned memory."""
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    overloads: list[str] = packet.overloads()  # type: ignore[no-untyped-call]  # as above
    schemas = (getattr(packet, overload)._schema for overload in overloads)
    return any(each.name == "pin_memory" for schema in schemas for each in schema.arguments)
