"""The GPU that the virtual one stands for: its figures, as data with their source."""

from __future__ import annotations

import msgspec


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A modelled GPU and its host. Rates in FLOP/s and bytes/s, times in µs.

    `scale` is by how much the device is slower than the real one it stands for, so that a model
    small enough to be computed on a CPU takes the time that one `scale` times larger takes there.
    Host times (launch, wait, pinning) are not scaled.
    """

    stands_for: str
    source: str
    scale: float
    flops_per_s: float
    bytes_per_s: float
    kernel_us: float
    """The shortest kernel."""
    launch_us: float
    """Host time to launch one operator from Python."""
    wait_us: float
    """Host time that a synchronisation takes beyond the waiting itself."""
    link_bytes_per_s: float
    """The host link from pinned memory."""
    pageable_bytes_per_s: float
    """The host link from pageable memory, staged through the driver's buffer."""
    pin_us: float
    """Page-locking a fresh buffer, beside the copy into it."""
    malloc_us: float
    """Asking the driver for another block of memory, which waits for the device."""
    collect_us: float
    """A full collection of Python's garbage collector over the objects of a process that has
    PyTorch loaded.
    """
    capacity_bytes: int

    def kernel_time_us(self, flops: float, nbytes: float) -> float:
        """Return the roofline: the longer of computing and moving, and never shorter than the
        shortest kernel.
        """
        compute_us = flops / self.flops_per_s * self.scale * 1e6
        move_us = nbytes / self.bytes_per_s * self.scale * 1e6
        return max(self.kernel_us, compute_us, move_us)

    def copy_time_us(self, nbytes: float, *, pinned: bool) -> float:
        """Return the time, µs, of a copy over the host link; its bytes are scaled as the
        device's are.
        """
        rate = self.link_bytes_per_s if pinned else self.pageable_bytes_per_s
        return self.kernel_us + nbytes / rate * self.scale * 1e6

    def pin_time_us(self, nbytes: float) -> float:
        """Return the host's time, µs, for pinning a copy of a pageable tensor: page-locking, and
        one copy at the host's own speed.
        """
        return self.pin_us + nbytes / self.pageable_bytes_per_s * self.scale * 1e6


T4 = GpuSpec(
    stands_for="a T4-like GPU at a fifth of its speed",
    source=(
        "NVIDIA T4 data sheet: 8.1 TFLOP/s in fp32, 320 GB/s; PCIe 3.0 x16. Host times are of the"
        " order reported for eager PyTorch; none of this was measured here"
    ),
    scale=5,
    flops_per_s=8.1e12,
    bytes_per_s=320e9,
    kernel_us=2.5,
    launch_us=6.0,
    wait_us=16.0,
    link_bytes_per_s=12e9,
    pageable_bytes_per_s=5e9,
    pin_us=150.0,
    malloc_us=120.0,
    collect_us=30_000.0,
    capacity_bytes=1 << 30,
)
