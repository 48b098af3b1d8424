"""Pinned memory of the host, and the copies that the device has yet to read from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bottleneck_lab.measure.virtual_gpu.codec import plain_bytes
from bottleneck_lab.measure.virtual_gpu.tensor import VirtualTensor

if TYPE_CHECKING:
    from bottleneck_lab.measure.virtual_gpu.backend import Driver


class Source:
    """A pinned tensor that the device has yet to read: a program that writes over it meanwhile
    sends what it did not mean to.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._storage = tensor.detach(), tensor.untyped_storage()
        self._before = plain_bytes(tensor).clone()
        # How often PyTorch has written to it, which it does not count of inference tensors.
        self._version = None if self._tensor.is_inference() else self._tensor._version

    def is_touched(self) -> bool:
        """Return True if PyTorch may have written to it. It does not know of writes past it, such
        as NumPy's.
        """
        return self._version is None or self._version != self._tensor._version

    def is_lost(self) -> bool:
        """Return True if the program can no longer write to it: only this object holds its memory,
        by its tensor and its storage.
        """
        return bool(torch._C._storage_Use_Count(self._storage._cdata) <= 2)

    def is_overwritten(self) -> bool:
        """Return True if it holds other values than when it was to be copied."""
        return not plain_bytes(self._tensor).equal(self._before)


class PinnedMemory:
    """The program's pinned memory, and the parts that the device may still have to read."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}
        """Weak references to storages in pinned memory, by their address."""
        self._sources: dict[int, Source] = {}
        """By the number of the copy."""

    def mark(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host's memory, which counts as pinned from now on."""
        for address, reference in list(self._storages.items()):
            if reference.expired():
                self._storages.pop(address, None)
        # A weak reference keeps the storage's address taken, though not its memory.
        storage = tensor.untyped_storage()
        # torch publishes no types for it.
        self._storages[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True for a tensor in memory that has been pinned."""
        if isinstance(tensor, VirtualTensor) or tensor.layout is not torch.strided:
            return False
        reference = self._storages.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def sends(
        self, tensor: torch.Tensor, dtype: torch.dtype, strides: tuple[int, ...] | None = None
    ) -> bool:
        """Return True for pinned memory that a copy to the device reads as it lies. `strides`: of a
        target that is there already.

        For a part with gaps, or another dtype, PyTorch first makes a temporary on the host, which
        is not pinned (aten/src/ATen/native/cuda/Copy.cu).
        """
        as_it_lies = _is_dense(tensor) and strides in (None, tensor.stride())
        return as_it_lies and dtype == tensor.dtype and self.holds(tensor)

    def watch(self, number: int, source: torch.Tensor) -> None:
        """Watch the source of a copy that has yet to be read, until it has."""
        self._sources[number] = Source(source)

    def forget(self, numbers: Iterable[int]) -> None:
        """Watch no longer what these copies have read."""
        for number in numbers:
            self._sources.pop(number, None)

    def take_overwritten(self, *, all_writes: bool) -> list[int]:
        """Return the copies whose source the program has written over, each once: whoever wrote, or
        only where PyTorch knows of it.
        """
        overwritten = [
            number
            for number, source in self._sources.items()
            if (all_writes or source.is_touched()) and source.is_overwritten()
        ]
        if all_writes:
            self.forget([number for number, source in self._sources.items() if source.is_lost()])
        self.forget(overwritten)
        return overwritten


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return True for a tensor without gaps, whatever the order of its dimensions."""
    elements = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != elements:
            return False
        elements *= size
    return True


def replace_pinning(driver: Driver) -> None:
    """Have `tensor.pin_memory()` and `is_pinned()` ask this device's driver, not CUDA's."""

    def pin_memory(self: torch.Tensor, _device: Any = None) -> torch.Tensor:
        return self if driver.pinned.holds(self) else driver.pin(self.clone())

    def is_pinned(self: torch.Tensor, _device: Any = None) -> bool:
        return driver.pinned.holds(self)

    # For every tensor of the program.
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]
    torch.Tensor.is_pinned = is_pinned  # type: ignore[method-assign, assignment]

    def pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            return driver.pin(tensor) if pin_memory else tensor

        return functools.update_wrapper(made, make)

    # PyTorch's own functions would ask the backend for an allocator, which only C++ can give.
    for holder in (torch, torch.Tensor):
        for name in dir(holder):
            if name == "tensor" or _takes_pin_memory(getattr(torch.ops.aten, name, None)):
                setattr(holder, name, pinning(getattr(holder, name)))


def _takes_pin_memory(packet: Any) -> bool:
    """Return True for a packet of operators that can make a tensor in pinned memory."""
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    overloads: list[str] = packet.overloads()  # type: ignore[no-untyped-call]  # as above
    schemas = (getattr(packet, overload)._schema for overload in overloads)
    return any(each.name == "pin_memory" for schema in schemas for each in schema.arguments)
