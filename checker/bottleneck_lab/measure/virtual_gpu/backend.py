"""The program's side of a virtual GPU: a torch device called `virtual`, whose tensors are handles
to the verifier's engine.

`install(sock)` registers it; from then on `tensor.to("virtual")`, modules, autograd and optimizers
work as on any device, and `torch.virtual` answers what `torch.cuda` answers of memory and
synchronisation.

PyTorch hands every operator that has a tensor of the device to `Driver.run`. Copies between host
and device have ways of their own there; all else is a `Call`, which is answered the first time and
only launched when the like of it has been seen.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.arithmetic import Tf32, refuse_switches, switched_tf32
from bottleneck_lab.measure.virtual_gpu.autocast import replace_autocast
from bottleneck_lab.measure.virtual_gpu.backward import Failures, Guard
from bottleneck_lab.measure.virtual_gpu.calls import (
    Argument,
    Call,
    PredictedResult,
    predict,
    read_results,
)
from bottleneck_lab.measure.virtual_gpu.codec import decode, encode, form_of, replace
from bottleneck_lab.measure.virtual_gpu.frames import Frames
from bottleneck_lab.measure.virtual_gpu.imports import leave_out_needless_imports
from bottleneck_lab.measure.virtual_gpu.module import (
    NAME,
    DeviceModule,
    replace_shared_functions,
)
from bottleneck_lab.measure.virtual_gpu.operators import WITH_KERNELS, traits_of
from bottleneck_lab.measure.virtual_gpu.pinned import PinnedMemory, replace_pinning
from bottleneck_lab.measure.virtual_gpu.tensor import TensorForm, VirtualTensor
from bottleneck_lab.trace.stacks import join_lines

aten = torch.ops.aten
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

MOST_LINES = 8
"""Of those that called one another: a program may call itself."""


class Driver:
    """Sends what the program does to the engine. The engine's clock says what a call costs, not the
    time that this process waits for an answer.

    Where it knows what the result looks like, as in all but the first of many steps that are alike,
    it waits for no answer.
    """

    def __init__(self, sock: socket.socket, entry: Path) -> None:
        self._engine = Frames(sock)
        self._lock = threading.RLock()
        """Held over a call and its answer: a loader's thread pins, and autograd's launches."""
        # With the slash: the package may lie in a folder whose name begins like the program's.
        self._folder = f"{entry.parent}/"
        self.forked = False
        self.pinned = PinnedMemory()
        self._released: dict[str, list[int]] = {}
        """Tensors that have died since the last call, by the program's line then."""
        self._collections: list[tuple[int, str]] = []
        """Generations of garbage that the program has had collected since the last call, with its
        line then.
        """
        self._under_way: dict[int, torch.Tensor] = {}
        """Targets of copies that the program has not waited for: until then, a target holds what it
        held.
        """
        self._predicted: dict[Any, PredictedResult] = {}
        """By the call's signature."""
        self._free_bytes = 0
        """Of the device's memory at least."""
        self._steps = 0
        self._copies: dict[Any, tuple[int, str, str]] = {}
        """The host's memory that has been copied to from the device: step, lines and form of the
        first copy.
        """
        self._tf32 = Tf32()
        """As the engine has it."""
        self._files: dict[str, str] = {}
        """Of each file's path its name, empty for a file that is not the program's."""
        self.failures = Failures()
        self._lowest = 0
        """The last number of a tensor or copy that the engine has not numbered: those are below
        zero.
        """

    def leave(self) -> None:
        """Let go of the engine in a forked process: its parent sends what is queued, and all
        later.
        """
        self.forked = True
        self._engine.sock.close()

    def let_go(self, number: int) -> None:
        """Note that a tensor has died; the engine hears of it with the next call."""
        # The line by now: `zero_grad` frees on a line of its own, which makes no call.
        self._released.setdefault(self.line(), []).append(number)

    def collected(self, generation: int) -> None:
        """Note that the program has collected a generation of garbage; the engine hears of it with
        the next call.
        """
        self._collections.append((generation, self.line()))

    def begin_pass(self) -> None:
        """Begin a pass through the data."""
        self._steps, self._copies = 0, {}
        self.tell("begin_pass")

    def step(self, samples: int, *, at_once: bool = False) -> None:
        """Begin a step with a batch, of which this thread has loaded `samples` samples itself, one
        after the other or `at_once`.
        """
        self._steps += 1
        self._copies = {host: copy for host, copy in self._copies.items() if not host.expired()}
        counts = Counter(self._copies.values())
        self.tell("step", samples, at_once, [[*copy, count] for copy, count in counts.items()])

    def _note_copy(self, host: torch.Tensor) -> None:
        memory = StorageWeakRef(host.untyped_storage())  # type: ignore[no-untyped-call]  # torch has no types for it
        if memory not in self._copies:
            self._copies[memory] = self._steps, self.stack(), f"{form_of(host)} on the host"

    def ask(self, name: str, *args: Any) -> Any:
        """Return the engine's answer to a call. Raises what the operator raised."""
        with self._lock:
            self._engine.send(self._message(name, args, awaited=True))
            right, *answer = decode(self._engine.receive())
            if right:
                result, arrived, read, self._free_bytes = answer
                for number, data in arrived:
                    self._under_way.pop(number).copy_(data)
                self.pinned.forget(read)
                return result
        kind, words = answer
        raise _ERRORS.get(kind, RuntimeError)(words)

    def tell(self, name: str, *args: Any) -> None:
        """Make a call whose answer is of no interest, and do not wait for it. What goes wrong is
        the answer to the next question.
        """
        with self._lock:
            self._engine.queue(self._message(name, args, awaited=False))

    def _message(
        self, name: str, args: Sequence[Any], *, awaited: bool, may_wait: bool = True
    ) -> bytes:
        released, self._released = self._released, {}
        collections, self._collections = self._collections, []
        # Before the call that comes now: the host has waited for nothing since the last one. Where
        # this one cannot wait either, a comparison of all bytes can be left for the next.
        overwritten = self.pinned.take_overwritten(all_writes=may_wait)
        return encode([name, awaited, list(released.items()), collections, overwritten, *args])

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that has a tensor of the device, or makes one; return its result."""
        try:
            return self._run(function, args, kwargs)
        except Exception as error:
            self.failures.note(error)
            raise

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        traits = traits_of(function)
        packet = traits.packet
        if packet is aten._local_scalar_dense:
            return self._download(args[0], None, "item", blocking=True).item()
        if packet in (aten._to_copy, aten.copy_):
            copy = self._copy if packet is aten.copy_ else self._to_copy
            return copy(*args, **kwargs)
        if packet is aten.is_pinned:
            return False
        if traits.is_composite:
            # Only in inference mode, where autograd has not taken it apart.
            return function.decompose(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type != NAME:
            return self._made_on_host(function, args, kwargs)
        if traits.indexes:
            args = (args[0], [self._to_device(index) for index in args[1]], *args[2:])
        return self._call(Call(traits, args, kwargs))

    def _to_device(self, index: torch.Tensor | None) -> torch.Tensor | None:
        """Return an index where its tensor is: as on a GPU, one from the host is copied there, and
        the host waits for that.
        """
        if index is None or isinstance(index, VirtualTensor):
            return index
        return self._to_copy(index)

    def _call(self, call: Call) -> Any:
        traits, stack = call.traits, self.stack()
        refuse_switches(traits, call.given)
        with self._lock:
            if traits.factors and (tf32 := switched_tf32()) != self._tf32:
                self.tell("set_tf32", tf32.matrices, tf32.convolutions)
                self._tf32 = tf32
            # Training repeats itself: from the second step on, nearly every call has a signature
            # whose result is known. One that might not fit the device must be asked, to raise here
            # as it would on a GPU.
            predicted = self._predicted.get(call.signature)
            if predicted and predicted.nbytes <= self._free_bytes:
                return self._launch(call, stack, predicted)
            template = None
            if traits.is_predictable:
                template = predicted.template if predicted else len(self._predicted)
            answer = self.ask("call", *call.message(), stack, template)
            results, numbers = read_results(answer, call)
            if template is not None and (known := predict(results, template)):
                self._predicted[call.signature] = known
            return self._values(results, call, numbers)

    def _launch(self, call: Call, stack: str, predicted: PredictedResult) -> Any:
        """Send a call whose result is known, and do not wait for the engine."""
        # This is what makes the emulation as fast as it is: a step sends hundreds of operators, and
        # waiting for each would be two switches between processes. It is safe because the call can
        # neither fill the device nor be one that waits, after which a copy has arrived.
        numbers = range(self._lowest - 1, self._lowest - 1 - predicted.new, -1)
        args = predicted.template, call.numbers, stack, list(numbers)
        waits = call.traits.may_wait
        self._engine.queue(self._message("launch", args, awaited=False, may_wait=waits))
        self._lowest -= predicted.new
        self._free_bytes -= predicted.nbytes
        return self._values(predicted.results, call, numbers)

    def _values(self, results: Any, call: Call, numbers: Iterable[int]) -> Any:
        """Return a nest of results as tensors: the argument itself where an operator worked in
        place; new ones have these numbers.
        """
        free = iter(numbers)

        def value(result: Any) -> Any:
            if isinstance(result, TensorForm):
                return VirtualTensor(next(free), result)
            if isinstance(result, Argument):
                given = call.given[result.position]
                assert isinstance(given, VirtualTensor)
                given.take_form(result.form)
                return given
            return result

        return replace(results, value)

    def line(self) -> str:
        """Return the program's own line that is running, `file(line): function`: of the calling
        thread, or of the main one where that runs none, as autograd's does.
        """
        return self.stack(1)

    def stack(self, most: int = MOST_LINES) -> str:
        """Return the program's own line that is running, as `line` does, with those that have
        called it, as `trace.stacks` joins them: `most` in all.
        """
        lines = self._lines_from(sys._getframe(), most)
        if not lines:
            # Not by a name: all threads' frames include this one, so it would hold itself, and the
            # frames below it would keep the call's tensors until the next collection.
            lines = self._lines_from(
                sys._current_frames().get(threading.main_thread().ident or 0), most
            )
        return join_lines(lines)

    def _lines_from(self, frame: FrameType | None, most: int) -> list[str]:
        # Every operator comes by here, and every tensor that dies.
        files, lines = self._files, list[str]()
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in files:
                mine = path.startswith(self._folder)
                files[path] = path.rpartition("/")[2] if mine else ""
            if file := files[path]:
                lines.append(f"{file}({frame.f_lineno}): {frame.f_code.co_name}")
                if len(lines) == most:
                    break
            frame = frame.f_back
        return lines

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host's memory, which is pinned from now on. The launching thread
        pays for it; a loader's own thread does not.
        """
        if threading.current_thread() is threading.main_thread():
            self.tell("pin", tensor.nbytes, self.line())
        return self.pinned.mark(tensor)

    def _to_copy(self, source: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        dtype, blocking = kwargs.get("dtype"), not kwargs.get("non_blocking", False)
        if not isinstance(source, VirtualTensor):
            form = TensorForm.contiguous(source.shape, dtype or source.dtype)
            pinned = self.pinned.sends(source, dtype or source.dtype)
            args, nbytes = (dtype, source), form.span_bytes()
            number = self._copy_in("upload", args, pinned=pinned, blocking=blocking, nbytes=nbytes)
            return VirtualTensor(number, form)
        if device is not None and device.type != NAME:
            target = None
            if not blocking:
                target = self.pinned.mark(torch.zeros(source.shape, dtype=source.dtype))
            host = self._download(source, target, "copy_", blocking=blocking)
            return host if dtype is None else host.to(dtype)
        kept = {
            key: kwargs[key] for key in ("dtype", "memory_format") if kwargs.get(key) is not None
        }
        copied: torch.Tensor = self._call(Call(traits_of(aten._to_copy.default), [source], kept))
        return copied

    def _made_on_host(self, function: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """Return a tensor of the host's memory that is like one of the device in form alone, such
        as that of `empty_like(x, device="cpu", pin_memory=True)`.
        """
        forms = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
            if isinstance(each, VirtualTensor)
            else each
            for each in args
        ]
        kept = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        made: torch.Tensor = function(*forms, **kept)
        return self.pin(made) if kwargs.get("pin_memory") else made

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        blocking = not non_blocking
        if isinstance(target, VirtualTensor) and isinstance(source, VirtualTensor):
            self._call(Call(traits_of(aten.copy_.default), [target, source], {}))
        elif isinstance(target, VirtualTensor):
            pinned = self.pinned.sends(source, target.dtype, target.stride())
            args = target.handle, source
            self._copy_in("overwrite", args, pinned=pinned, blocking=blocking)
        else:
            pinned = target.is_contiguous() and self.pinned.holds(target)
            self._download(source, target, "copy_", blocking=blocking or not pinned)
        return target

    def _copy_in(
        self, name: str, args: Sequence[Any], *, pinned: bool, blocking: bool, nbytes: int = 0
    ) -> int:
        """Make a call that copies a tensor of the host's, the last of `args`, to the device, where
        it takes up to `nbytes` more. Returns the number that the copy and a new tensor have.
        """
        waits = blocking or not pinned
        with self._lock:
            self._lowest -= 1
            # The answer says what has arrived now, or that the device is full.
            answered = (waits and self._under_way) or nbytes > self._free_bytes
            call = self.ask if answered else self.tell
            call(name, *args, pinned, blocking, self.stack(), self._lowest)
            if not answered:
                self._free_bytes -= nbytes
            if not waits:
                self.pinned.watch(self._lowest, args[-1])
            return self._lowest

    def _download(
        self, source: Any, target: torch.Tensor | None, operator: str, *, blocking: bool
    ) -> torch.Tensor:
        """Return the tensor's values on the host, in `target` if there is one, for an operator of
        this name. Not blocking: they will be there when the copy has arrived.
        """
        # Held over both: no other thread may learn that the copy has arrived before its target is
        # known.
        with self._lock:
            pinned = not blocking
            data = self.ask("download", source.handle, operator, pinned, blocking, self.line())
            if isinstance(data, torch.Tensor):
                host = data if target is None else target.copy_(data)
                self._note_copy(host)
                return host
            assert target is not None
            self._under_way[data] = target
            self._note_copy(target)
            return target


def install(sock: socket.socket, entry: Path) -> Driver:
    """Make `torch.device("virtual")` work, on the engine at the other end of `sock`. Lines are
    those of files below the folder of `entry`, the program's own file.
    """
    leave_out_needless_imports()
    driver = Driver(sock, entry)
    VirtualTensor.driver = driver
    driver.failures.install()
    module = DeviceModule(driver)
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=module, device_guard=Guard()
    )
    library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch publishes no types for it
    library.fallback(
        lambda function, *args, **kwargs: driver.run(function, args, kwargs), "PrivateUse1"
    )
    # Where `torch.tensor` fills a tensor of the device, PyTorch does not find the fallback.
    own: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # as above
    own.impl(
        "_copy_from",
        lambda source, target, non_blocking=False: driver._copy(target, source, non_blocking),
        "PrivateUse1",
    )
    for function in (aten.rnn_tanh, aten.rnn_relu):
        for overload in ("input", "data"):
            whole = getattr(function, overload)
            name, run = f"{function.__name__}.{overload}", functools.partial(_run_rnn, whole)
            own.impl(name, run, "AutogradPrivateUse1")
    for packet in WITH_KERNELS:
        run = functools.partial(_run_whole, driver, packet.default)
        own.impl(packet.__name__, run, "PrivateUse1")
    _KEPT.extend((library, own))
    # A thread of autograd's own would let go of a graph a little after the program has gone on:
    # sooner or later than its next step begins, as this machine has it.
    torch.autograd.set_multithreading_enabled(False)
    os.register_at_fork(after_in_child=driver.leave)
    replace_shared_functions(module)
    replace_autocast(NAME)
    replace_pinning(driver)
    _count_collections(driver)
    return driver


_KEPT: list[Any] = []
"""A library's registrations end with it."""


def _run_whole(driver: Driver, function: Any, *args: Any) -> Any:
    return driver.run(function, args, {})


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
