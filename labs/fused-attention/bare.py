"""Launches the CUDA kernel without PyTorch, its arrays allocated to the byte, so that
compute-sanitizer sees every stray access:

    compute-sanitizer --tool memcheck python bare.py        # and --tool racecheck

A check runs it too. Awkward lengths, both head dimensions, masks and formats; answers are compared
with float64. Triton cannot launch without PyTorch: its kernel is given PyTorch's arrays, each
allocated on its own.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable

import attention
import numpy as np

SHAPES = [(2, 1, 64, 1, 0), (1, 65, 64, 0, 1), (2, 130, 128, 1, 0), (1, 97, 128, 0, 0)]
"""Heads, sequence length, head dimension, mask, bfloat16."""
TOLERANCE = 0.05
COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class Driver:
    """Memory of the first GPU, through the CUDA driver alone."""

    def __init__(self, library) -> None:
        self.library = library
        self.call("cuInit", 0)
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments) -> None:
        """One function of the driver. Raises RuntimeError with its number for an error."""
        if status := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def capability(self) -> tuple[int, int]:
        """Major and minor compute capability."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        for number, attribute in zip((major, minor), COMPUTE_CAPABILITY):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self.device)
        return major.value, minor.value

    def put(self, array: np.ndarray) -> ctypes.c_uint64:
        """The array in memory of exactly its size."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        self.call(
            "cuMemcpyHtoD_v2",
            address,
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )
        return address

    def get(self, array: np.ndarray, address: ctypes.c_uint64) -> None:
        """Waits for the GPU, then copies back."""
        self.call("cuCtxSynchronize")
        self.call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(array.ctypes.data),
            address,
            ctypes.c_size_t(array.nbytes),
        )

    def free(self, address: ctypes.c_uint64) -> None:
        """Gives memory back: what touches it later is found."""
        self.call("cuMemFree_v2", address)


Launch = Callable[[list, tuple, int, int], np.ndarray]
"""Takes q, k and v as 16-bit patterns, their shape, mask and whether they are bfloat16; returns the
answer's bits.
"""


def with_driver(driver: Driver, forward) -> Launch:
    """Launches of the CUDA C++ kernel."""

    def launch(inputs: list, shape: tuple, causal: int, bf16: int) -> np.ndarray:
        out = np.full(shape, 0x7FFF, np.uint16)
        pointers = [driver.put(array) for array in (*inputs, out)]
        attention.launch_cuda(
            forward, *(pointer.value for pointer in pointers), shape, causal, bf16, None
        )
        driver.get(out, pointers[3])
        for pointer in pointers:
            driver.free(pointer)
        return out

    return launch


def with_torch() -> Launch:
    """Launches of the Triton kernel."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import attention_triton
    import torch

    def launch(inputs: list, shape: tuple, causal: int, bf16: int) -> np.ndarray:
        dtype = torch.bfloat16 if bf16 else torch.float16
        arrays = [*inputs, np.full(shape, 0x7FFF, np.uint16)]
        tensors = [torch.from_numpy(array.view(np.int16)).cuda().view(dtype) for array in arrays]
        attention_triton.forward(*tensors, causal)
        return tensors[3].view(torch.int16).cpu().numpy().view(np.uint16)

    return launch


def check(launch: Launch) -> float:
    """The largest distance from float64 over all shapes."""
    return max(_distance(launch, *shape) for shape in SHAPES)


def _distance(launch: Launch, heads: int, seq: int, dim: int, causal: int, bf16: int) -> float:
    generator = np.random.default_rng(seq)
    inputs = [
        _bits(generator.standard_normal((heads, seq, dim), dtype=np.float32), bf16)
        for _ in range(3)
    ]
    got = _values(launch(inputs, (heads, seq, dim), causal, bf16), bf16)
    q, k, v = (_values(array, bf16) for array in inputs)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(dim)
    scores = np.where(np.tri(seq, dtype=bool) | (not causal), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    distance = np.abs(got - weights @ v / weights.sum(-1, keepdims=True)).max()
    return float(distance) if np.isfinite(distance) else float("inf")


def _bits(array: np.ndarray, bf16: int) -> np.ndarray:
    return (
        (array.view(np.uint32) >> 16).astype(np.uint16)
        if bf16
        else array.astype(np.float16).view(np.uint16)
    )


def _values(bits: np.ndarray, bf16: int) -> np.ndarray:
    exact = (bits.astype(np.uint32) << 16).view(np.float32) if bf16 else bits.view(np.float16)
    return exact.astype(np.float64)


def main() -> int:
    """Exit status 0 when all answers are right."""
    if re.search(
        r"^ENABLED\s*=\s*True",
        (attention.HERE / "attention_triton.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        launch = with_torch()
    else:
        driver = Driver(ctypes.CDLL("libcuda.so.1"))
        launch = with_driver(driver, attention.build_cuda(*driver.capability()).attention_forward)
    apart = check(launch)
    print(f"largest distance from float64: {apart:.2g}")
    return 0 if apart <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
