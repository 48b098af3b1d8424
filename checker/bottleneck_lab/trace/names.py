"""What names tell: which kernels communicate, which way a copy goes, which operators are really ranges. One place for all readers."""

from __future__ import annotations

import re

from bottleneck_lab.trace.timeline import Direction, HostMemory

_COMMUNICATION = re.compile(
    r"^(?:void )?(?:[\w:]*::)?(?:nccl(?:DevKernel|Kernel|_)?|rccl|msccl|oneccl|nvshmem|cross_device_reduce)"
    r"|^emulated: (?:nccl|comm|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|broadcast|all[_-]?to[_-]?all|send|recv)",
    re.IGNORECASE,
)
_RANGE = re.compile(r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DataParallel\.|## )")
_WAYS = (
    (re.compile(r"HtoD|HostToDevice", re.IGNORECASE), Direction.H2D),
    (re.compile(r"DtoH|DeviceToHost", re.IGNORECASE), Direction.D2H),
    (re.compile(r"PtoP|PeerToPeer", re.IGNORECASE), Direction.P2P),
    (re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE), Direction.D2D),
    (re.compile(r"HtoH|HostToHost", re.IGNORECASE), Direction.H2H),
)
_EMULATED_WAYS = {"h2d": Direction.H2D, "d2h": Direction.D2H}


LINES_OF = "lines of "
"""How the track of a thread's lines of Python is called in captures that `lab profile --stack` made, before the thread's own number."""


def is_communication(name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return bool(_COMMUNICATION.search(name))


def is_range(name: str) -> bool:
    """Whether a row recorded as an operator is a range that a program or torch put around operators."""
    return bool(_RANGE.match(name))


def copy_of(name: str) -> tuple[int, int]:
    """(Direction, HostMemory) of a copy called for instance "Memcpy HtoD (Pageable -> Device)"."""
    for pattern, way in _WAYS:
        if pattern.search(name):
            return int(way), int(_host_memory(name))
    for word, way in _EMULATED_WAYS.items():
        if name.lower().removeprefix("emulated: ").startswith(word):
            return int(way), int(_host_memory(name))
    return int(Direction.UNKNOWN), int(HostMemory.UNKNOWN)


def _host_memory(name: str) -> HostMemory:
    low = name.lower()
    if "pageable" in low:
        return HostMemory.PAGEABLE
    return HostMemory.PINNED if "pinned" in low else HostMemory.UNKNOWN
