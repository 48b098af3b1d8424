"""The memory of a virtual GPU: what live tensors hold, and what the allocator has reserved for
them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

BLOCK_BYTES = 2 << 20
"""Bytes that the allocator requests from the device at a time, as PyTorch's does for small tensors.
"""
ROUND_BYTES = 512


class OutOfMemory(Exception):  # noqa: N818 - what PyTorch calls it
    """The device has no room for a tensor."""


class MemoryChange(msgspec.Struct, frozen=True, array_like=True):
    """A storage allocated (`nbytes` > 0) or released, at a time of the logical clock, with what is
    allocated after it and the program's line, at an allocation with those that called it.
    """

    at_us: float
    storage: int
    nbytes: int
    allocated: int
    stack: str


@dataclass
class Memory:
    """Bytes of the storages that handles keep alive. A storage is known by its address and counts
    once, however many tensors share it.

    `reserved` never shrinks but by `empty_cache`. Fragmentation is not modelled.
    """

    capacity_bytes: int
    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    step_bytes: list[int] = field(default_factory=list)
    """Bytes allocated when each step began."""
    _holders: Counter[int] = field(default_factory=Counter)
    _sizes: dict[int, int] = field(default_factory=dict)

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.allocated

    def hold(self, storage: int, nbytes: int) -> int:
        """Put one more tensor into this storage, and return the blocks requested for it. Raises
        OutOfMemory, and then holds nothing more.
        """
        size = -(-nbytes // ROUND_BYTES) * ROUND_BYTES
        known, before = self._sizes.get(storage, 0), self.reserved
        # A view's storage is held already; one that an operator has enlarged costs the difference.
        more = max(0, size - known)
        if self.allocated + more > self.capacity_bytes:
            raise OutOfMemory(self.message(nbytes))
        self._sizes[storage] = known + more
        self._holders[storage] += 1
        self.allocated += more
        self.peak = max(self.peak, self.allocated)
        # Like PyTorch's allocator, it keeps what tensors let go of: only growth asks the driver.
        self.reserved = max(self.reserved, -(-self.allocated // BLOCK_BYTES) * BLOCK_BYTES)
        return (self.reserved - before) // BLOCK_BYTES

    def release(self, storage: int) -> bool:
        """Take one tensor out of this storage; with the last one its bytes are free. Returns True
        then.
        """
        self._holders[storage] -= 1
        if not self._holders[storage]:
            del self._holders[storage]
            self.allocated -= self._sizes.pop(storage)
        return storage not in self._sizes

    def empty_cache(self) -> None:
        """Give back what is reserved and not allocated."""
        self.reserved = -(-self.allocated // BLOCK_BYTES) * BLOCK_BYTES

    def step(self) -> None:
        """Begin a new step."""
        self.step_bytes.append(self.allocated)

    def message(self, nbytes: int) -> str:
        """Return PyTorch's own message for it, with these figures."""
        mib = 1 << 20
        return (
            f"virtual GPU out of memory. Tried to allocate {nbytes / mib:.2f} MiB. The device has a"
            f" total capacity of {self.capacity_bytes / mib:.2f} MiB, of which"
            f" {self.free_bytes / mib:.2f} MiB are free; {self.allocated / mib:.2f} MiB are"
            " allocated."
        )
