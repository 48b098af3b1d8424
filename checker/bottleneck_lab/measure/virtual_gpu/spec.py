"""The GPU that the virtual one stands for: its figures, as data with their source."""

from __future__ import annotations

from typing import Literal

import msgspec

from bottleneck_lab.errors import SITE

Arithmetic = Literal["full", "tf32", "half"]
"""How a product reads its factors: all bits of float32 or float64; the 10 bits of a float32's
mantissa that TF32 has; as float16 or bfloat16. The latter two run on tensor cores.
"""


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A modelled GPU and its host. Rates in FLOP/s and bytes/s, times in µs.

    `scale` is by how much the device is slower than the real one it stands for, so that a model
    small enough to be computed on a CPU takes the time that one `scale` times larger takes there.
    Host times (batch, loop, launch, wait, pinning) are not scaled: they don't depend on a model's
    size.
    """

    stands_for: str
    source: str
    flops_per_s: float
    tf32_flops_per_s: float
    half_flops_per_s: float
    """In float16 and bfloat16."""
    bytes_per_s: float
    kernel_us: float
    """A kernel's time besides its work, where that is elementwise."""
    reduction_us: float
    """The same for products and reductions, which have more to set up."""
    start_us: float
    """From the end of a launch to the start of its kernel on an idle device."""
    sample_us: float
    """Host time to load one sample of a batch on the launching thread."""
    fetch_us: float
    """Host time to load a whole batch there at once, beside its samples."""
    slice_us: float
    """Host time for each sample of such a batch."""
    batch_us: float
    """Host time to take a batch from a loader's worker."""
    loop_us: float
    """Other host time of a step besides its launches: the optimizer's Python, the loop."""
    launch_us: float
    """Host time to launch one operator: Python, dispatcher, autograd and the driver's call."""
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
    collect_young_us: float
    """The same over the objects made since the last one (`gc.collect(0)` and `gc.collect(1)`)."""
    capacity_bytes: int
    scale: float = 1.0

    def at_scale(self, scale: float) -> GpuSpec:
        """Return the same device for a model `scale` times as large."""
        return msgspec.structs.replace(self, scale=scale)

    @property
    def name(self) -> str:
        """The GPU that the device stands for, with its scale."""
        if self.scale == 1.0:
            return self.stands_for
        return f"{self.stands_for}, the GPU at 1/{self.scale:g} of its speed"

    def kernel_time_us(
        self,
        flops: float,
        nbytes: float,
        *,
        reduces: bool = False,
        arithmetic: Arithmetic = "full",
    ) -> float:
        """Return a kernel's time: a fixed part, then the longer of computing and moving.

        The sum, not the longer of fixed part and roofline, is what fits kernels of 2 to 20 µs.
        """
        rates = {"tf32": self.tf32_flops_per_s, "half": self.half_flops_per_s}
        compute_us = flops / rates.get(arithmetic, self.flops_per_s) * self.scale * 1e6
        move_us = nbytes / self.bytes_per_s * self.scale * 1e6
        return (self.reduction_us if reduces else self.kernel_us) + max(compute_us, move_us)

    def copy_time_us(self, nbytes: float, *, pinned: bool) -> float:
        """Return the time, µs, of a copy over the host link; its bytes are scaled as the
        device's are.
        """
        rate = self.link_bytes_per_s if pinned else self.pageable_bytes_per_s
        return self.kernel_us + nbytes / rate * self.scale * 1e6

    def pin_time_us(self, nbytes: float) -> float:
        """Return the host time for pinning a copy of a pageable tensor: page-locking, and one copy
        at the host's own speed.
        """
        return self.pin_us + nbytes / self.pageable_bytes_per_s * self.scale * 1e6


H200 = GpuSpec(
    stands_for="an H200 and its host",
    source=(
        "Prices were fitted to an NVIDIA H200 (Xeon host, torch 2.11);"
        f" {SITE}/emulation.html has each with its source"
    ),
    # Trainings of 0.15 to 2.5 TFLOP a step on the H200 took 5.0 to 53 ms of kernels: 50 TFLOP/s in
    # fp32 (data sheet: 67) and 2 TB/s (4.8), together with the fixed times below, come within 6%.
    flops_per_s=50e12,
    # Not measured: half of the data sheet's 495 and 989, as libraries reach them. A device of a
    # compute capability below 8.0 would have no TF32, and ignore the switches for it.
    tf32_flops_per_s=250e12,
    half_flops_per_s=500e12,
    bytes_per_s=2e12,
    # Medians of small kernels in captures of two trainings on the H200.
    kernel_us=1.0,
    reduction_us=2.4,
    # Median from a launch's end to its kernel's start there.
    start_us=1.8,
    # Unprofiled trainings there: 4.05 and 5.58 ms a step for 128 and 224 operators that nothing
    # waits for. That is 20 µs an operator, of which the driver's call takes 7, and 1.5 ms a step.
    # Under the profiler, where all takes 1.66 times as long, a loader without a worker takes 22 and
    # 29 µs a sample there.
    sample_us=13.0,
    # Not measured there. On another host, batches of 16 to 256 samples took 32 to 147 µs at once,
    # and 71 to 795 µs sample by sample: this is as much less here.
    fetch_us=90.0,
    slice_us=1.7,
    batch_us=560.0,
    loop_us=940.0,
    launch_us=20.0,
    # cudaStreamSynchronize of an empty queue: median there.
    wait_us=6.1,
    # Data sheet: PCIe 5.0 x16. Not measured.
    link_bytes_per_s=50e9,
    pageable_bytes_per_s=10e9,
    pin_us=150.0,
    # cudaMalloc: median there.
    malloc_us=266.0,
    # Not measured there: 30 ms were measured on another host.
    collect_us=30_000.0,
    # Likewise: what a step of a small training leaves.
    collect_young_us=6.0,
    capacity_bytes=1 << 30,
)
