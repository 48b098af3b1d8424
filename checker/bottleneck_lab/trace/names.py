"""Meaning of names: which kernels communicate, which way a copy goes, which operators are really
ranges. One place for all readers.
"""

from __future__ import annotations

import re

from bottleneck_lab.trace.timeline import Direction, HostMemory, Timeline, different

MODELLED_HOST = "modelled_host"
"""The fact of a trace whose host is modelled, too: all of its times are the same in every run."""

CALIBRATED = "calibratedNs"
"""The fact of a trace whose device was set by this machine's speed when it was recorded: ns that a
full batch takes there.
"""

FIXED_PRICE = re.compile(r"\(modelled\)$")
"""Ends the names of ranges for which the model of a host charges the same whatever runs."""

STEP = "ProfilerStep#"
"""Begins the names of torch.profiler's steps."""
STEP_NAME = re.compile(
    r"^(?:ProfilerStep#|(?:train[_ ]?|training[_ ]?)?(?:step|iteration|iter)(?:[ _#:-]*)?)(\d+)$",
    re.IGNORECASE,
)
"""The names of ranges that mark a step, with its number."""

_COMMUNICATION = re.compile(
    r"^(?:void )?(?:[\w:]*::)?"
    r"(?:nccl(?:DevKernel|Kernel|_)?|rccl|msccl|oneccl|nvshmem|cross_device_reduce)"
    r"|^emulated: "
    r"(?:nccl|comm|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|broadcast|all[_-]?to[_-]?all"
    r"|send|recv)",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DataParallel\.|## )"
)
_WAYS = (
    (re.compile(r"HtoD|HostToDevice", re.IGNORECASE), Direction.H2D),
    (re.compile(r"DtoH|DeviceToHost", re.IGNORECASE), Direction.D2H),
    (re.compile(r"PtoP|PeerToPeer", re.IGNORECASE), Direction.P2P),
    (re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE), Direction.D2D),
    (re.compile(r"HtoH|HostToHost", re.IGNORECASE), Direction.H2H),
)
_EMULATED_WAYS = {"h2d": Direction.H2D, "d2h": Direction.D2H}


# What a collective sends, as `DeviceTable.dtype` counts it.
DTYPES = (
    "",
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int8",
    "uint8",
    "bool",
    "float8",
)
DTYPE_BYTES = (0, 8, 4, 2, 2, 8, 4, 1, 1, 1, 1)
_DTYPES = {
    "double": 1,
    "float": 2,
    "half": 3,
    "bfloat16": 4,
    "long": 5,
    "int": 6,
    "char": 7,
    "byte": 8,
    "bool": 9,
    **{name: number for number, name in enumerate(DTYPES)},
}


def dtype_of(name: str | None) -> int:
    """Return the number of a type that a profiler names, c10's or NumPy's; 0 for one that is not
    known.
    """
    plain = (name or "").lower()
    if plain.startswith("float8"):
        return _DTYPES["float8"]
    return _DTYPES.get(plain, 0)


# How the track of a thread's lines of Python is called in captures that `lab profile --stack`
# made, before the thread's own number.
LINES_OF = "lines of "


def is_communication(name: str) -> bool:
    """Return True if a kernel with this name moves data between ranks."""
    return bool(_COMMUNICATION.search(name))


_COLLECTIVES = (
    (re.compile(r"all[_-]?reduce", re.IGNORECASE), "all-reduce"),
    (re.compile(r"reduce[_-]?scatter", re.IGNORECASE), "reduce-scatter"),
    (re.compile(r"all[_-]?gather", re.IGNORECASE), "all-gather"),
    (re.compile(r"all[_-]?to[_-]?all", re.IGNORECASE), "all-to-all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"send[_-]?recv|send|recv", re.IGNORECASE), "send and receive"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)


def collective_of(name: str) -> str:
    """Return the collective that a communicating kernel performs; its own name where that is
    unknown.
    """
    return next((called for pattern, called in _COLLECTIVES if pattern.search(name)), name)


def is_range(name: str) -> bool:
    """Return True if a row recorded as an operator is a range that a program or torch put around
    operators.
    """
    return bool(_RANGE.match(name))


def copy_of(name: str) -> tuple[int, int]:
    """Return (Direction, HostMemory) of a copy called for instance "Memcpy HtoD (Pageable ->
    Device)".
    """
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
    if "pinned" in low:
        return HostMemory.PINNED
    return HostMemory.UNKNOWN


def is_host_modelled(timeline: Timeline) -> bool:
    """Return True if the times of the host are modelled, too: the same in every run. The trace says
    so, or every thread that runs operators is called emulated.
    """
    if MODELLED_HOST in timeline.facts:
        return True
    threads = [timeline.threads[thread].name for thread in different(timeline.operators.thread)]
    return bool(threads) and all(name.endswith("(emulated)") for name in threads)
