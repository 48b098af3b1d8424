"""A compiled CUDA kernel, read from the texts of `cuobjdump`: no GPU is needed.

`-res-usage` says registers, stack and shared memory; the disassembly says how wide the global loads
are, whether tensor cores are used, and whether registers were spilled to local memory. Occupancy
follows from the published limits of an architecture. Nothing here is a measurement.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from bottleneck_lab.errors import CaptureError


class Architecture(msgspec.Struct, frozen=True):
    """The resources that the blocks of a multiprocessor share.

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Registers
    come in units of 256 a warp, shared memory in units of 128 bytes, and from compute capability
    8.0 on the system keeps 1 KiB a block for itself.
    """

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65536
    reserved_bytes: int = 1024


ARCHITECTURES = {
    75: Architecture(warps=32, blocks=16, shared_bytes=64 << 10, reserved_bytes=0),
    80: Architecture(warps=64, blocks=32, shared_bytes=164 << 10),
    86: Architecture(warps=48, blocks=16, shared_bytes=100 << 10),
    87: Architecture(warps=48, blocks=16, shared_bytes=164 << 10),
    89: Architecture(warps=48, blocks=24, shared_bytes=100 << 10),
    90: Architecture(warps=64, blocks=32, shared_bytes=228 << 10),
    100: Architecture(warps=64, blocks=32, shared_bytes=228 << 10),
    120: Architecture(warps=48, blocks=24, shared_bytes=100 << 10),
}
_REGISTER_UNIT, _SHARED_UNIT, _WARP_UNIT = 256, 128, 4
WIDEST_LOAD = 16
"""Bytes that one load of a thread can bring."""
USUAL_THREADS = 256
"""Threads per block if the kernel does not state a bound."""


class Occupancy(msgspec.Struct, frozen=True):
    """Blocks that fit on a multiprocessor at once, the share (0–1) of its warps that they are, and
    what there is too little of.
    """

    blocks: int
    share: float
    limit: str


class KernelReport(msgspec.Struct, frozen=True):
    """One kernel in the machine code. Bytes are a thread's (stack) or a block's (shared);
    instruction counts are static, not executed ones.
    """

    name: str
    arch: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    max_threads: int | None
    instructions: int
    global_load_bytes: dict[int, int]
    async_copies: dict[int, int]
    bulk_copies: int
    tensor_core: dict[str, int]
    local_loads: int
    local_stores: int

    @property
    def widest_load_bytes(self) -> int:
        """Bytes a thread of the widest load from global memory, asynchronous copies included; a
        bulk copy counts as 16, no load as 0.
        """
        return max(
            [*self.global_load_bytes, *self.async_copies, 16 * bool(self.bulk_copies)], default=0
        )

    @property
    def tensor_core_instructions(self) -> int:
        """Instructions that use the tensor cores."""
        return sum(self.tensor_core.values())

    def occupancy(self, threads: int | None = None, dynamic_shared_bytes: int = 0) -> Occupancy:
        """Return what fits with this many threads per block (default: the kernel's launch bound,
        else USUAL_THREADS).
        """
        return occupancy(
            self.arch,
            self.registers,
            self.shared_bytes + dynamic_shared_bytes,
            threads or self.max_threads or USUAL_THREADS,
        )


def occupancy(arch: str, registers: int, shared_bytes: int, threads: int) -> Occupancy:
    """Theoretical occupancy of a kernel with these resources a thread and a block. Raises
    CaptureError for an unknown architecture.

    `shared_bytes` is static and dynamic shared memory without the system's reserve.
    """
    limits = ARCHITECTURES.get(int(re.sub(r"\D", "", arch)))
    if limits is None:
        raise CaptureError(
            f"The limits of sm_{arch} are not known here.",
            f"Choose one of {', '.join(map(str, ARCHITECTURES))}.",
        )
    warps = -(-threads // 32)
    by_warps = limits.warps // warps
    # Registers are handed out to whole warps in units, and shared memory to blocks; the hardware
    # rounds up each request (NVIDIA's occupancy calculator has the same units).
    a_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = limits.blocks
    if registers:
        by_registers = limits.registers // a_warp // _WARP_UNIT * _WARP_UNIT // warps
    a_block = -(-(shared_bytes + limits.reserved_bytes) // _SHARED_UNIT) * _SHARED_UNIT
    by_shared = limits.shared_bytes // a_block if a_block else limits.blocks
    fits = {
        "registers": by_registers,
        "shared memory": by_shared,
        "threads": by_warps,
        "blocks": limits.blocks,
    }
    limit = min(fits, key=lambda what: fits[what])
    return Occupancy(fits[limit], fits[limit] * warps / limits.warps, limit)


_RESOURCES = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_ARCH = re.compile(r"\bsm_(\d+[a-z]?)\b")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_BOUND = re.compile(r"\.nv\.info\.(\S+)(.*?)(?=\.nv\.info\.|\Z)", re.DOTALL)
_MAX_THREADS = re.compile(
    r"EIATTR_MAX_THREADS\s+Format:\s+\S+\s+Value:\s+(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+(0x[0-9a-f]+)"
)
_TENSOR = (
    "HMMA",
    "HGMMA",
    "QGMMA",
    "IGMMA",
    "BGMMA",
    "QMMA",
    "IMMA",
    "BMMA",
    "DMMA",
    "OMMA",
    "UTCHMMA",
    "UTCQMMA",
    "UTCIMMA",
    "UTCOMMA",
)
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""Bytes a thread, by the modifier of an access."""
_BULK = ("UTMALDG", "UBLKCP")
"""Copies of whole tiles by Hopper's copy engine: of a tensor map, and of plain bytes."""


def read_reports(resources: str, sass: str, elf: str = "") -> list[KernelReport]:
    """Join the texts of `cuobjdump -res-usage`, `-sass` and `-elf` into one row per kernel. Raises
    CaptureError when there is none.
    """
    arch = _ARCH.search(sass) or _ARCH.search(resources)
    kernels = _RESOURCES.findall(resources)
    if arch is None or not kernels:
        raise CaptureError(
            "There is no kernel in this machine code.",
            "Does the source define a __global__ function that is used?",
        )
    # Opcodes with their modifiers (LDG.E.128) of every function in the disassembly.
    parts = re.split(r"Function : (\S+)", sass)
    code = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        code[name] = _INSTRUCTION.findall(body)
    # The largest block of each kernel that states one (__launch_bounds__).
    bounds = {}
    for name, body in _BOUND.findall(elf):
        if match := _MAX_THREADS.search(body):
            bounds[name] = int(match[1], 16) * int(match[2], 16) * int(match[3], 16)
    return [
        _report(
            name,
            arch[1],
            (int(registers), int(stack), int(shared)),
            code.get(name, []),
            bounds.get(name),
        )
        for name, registers, stack, shared in kernels
    ]


def _report(
    name: str,
    arch: str,
    resources: tuple[int, int, int],
    opcodes: list[str],
    max_threads: int | None,
) -> KernelReport:
    registers, stack, shared = resources
    bare = Counter(opcode.split(".")[0] for opcode in opcodes)
    capability = int(re.sub(r"\D", "", arch))
    reserved = ARCHITECTURES.get(capability, ARCHITECTURES[80]).reserved_bytes
    # Hopper's compiler counts the system's reserve as the kernel's own; older ones do not.
    if capability >= 90 and shared >= reserved:
        shared -= reserved
    return KernelReport(
        name=name,
        arch=arch,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=shared,
        max_threads=max_threads,
        instructions=len(opcodes) - bare["NOP"],
        global_load_bytes=_widths(opcodes, "LDG"),
        async_copies=_widths(opcodes, "LDGSTS"),
        bulk_copies=sum(bare[opcode] for opcode in _BULK),
        tensor_core={opcode: bare[opcode] for opcode in _TENSOR if bare[opcode]},
        local_loads=bare["LDL"],
        local_stores=bare["STL"],
    )


def _widths(opcodes: list[str], operation: str) -> dict[int, int]:
    """Count instructions by bytes a thread, widest first. Without a width in its name an access is
    of 4 bytes.
    """
    widths: Counter[int] = Counter()
    for opcode in opcodes:
        kind, *modifiers = opcode.split(".")
        if kind == operation:
            # LDG.E.128 loads 16 bytes a thread, LDG.E.U8 one.
            widths[min((_WIDTHS[word] for word in modifiers if word in _WIDTHS), default=4)] += 1
    return dict(sorted(widths.items(), reverse=True))


def describe(
    report: KernelReport, threads: int | None = None, dynamic_shared_bytes: int = 0
) -> list[str]:
    """Return what a learner should know about a kernel, one sentence each, the gravest first.
    `threads` a block: as many as it may have, unless given.
    """
    return [
        *faults(report),
        *_resources(report, threads or report.max_threads or USUAL_THREADS, dynamic_shared_bytes),
    ]


def faults(report: KernelReport) -> list[str]:
    """Return what in the machine code holds a matrix kernel back, the gravest first; empty when
    nothing can be seen.
    """
    return [judged.sentence for judged in judge(report) if not judged.good]


class Expectation(msgspec.Struct, frozen=True):
    """Something that a matrix kernel's machine code ought to have, and whether it does."""

    good: bool
    sentence: str


def judge(report: KernelReport) -> list[Expectation]:
    """Judge what a matrix kernel's machine code ought to have, the gravest to miss first."""
    spills = Expectation(True, "No registers are spilled to local memory.")
    if report.local_loads + report.local_stores:
        spills = Expectation(
            False,
            f"{report.local_loads} loads from and {report.local_stores} stores to local memory:"
            " registers were spilled, or an array is indexed at run time.",
        )
    cores = Expectation(True, "The products run on tensor cores.")
    if not report.tensor_core_instructions:
        cores = Expectation(
            False, "No tensor-core instruction: the products run on the ordinary arithmetic units."
        )
    widest = report.widest_load_bytes
    loads = Expectation(True, f"Loads from global memory are {widest} bytes wide.")
    if widest < WIDEST_LOAD:
        loads = Expectation(
            False,
            f"The widest load from global memory is {widest} bytes per thread; {WIDEST_LOAD}"
            " are possible.",
        )
    copies = Expectation(True, "Copies to shared memory are asynchronous.")
    if not report.async_copies and not report.bulk_copies:
        copies = Expectation(
            False, "No asynchronous copy: loads and arithmetic cannot overlap within a warp."
        )
    return [spills, cores, loads, copies]


def _resources(report: KernelReport, threads: int, dynamic_shared_bytes: int) -> list[str]:
    """Describe tensor-core instructions, registers and shared memory, and how many blocks they let
    on a multiprocessor.
    """
    fit = report.occupancy(threads, dynamic_shared_bytes)
    shared = f"{report.shared_bytes + dynamic_shared_bytes:,} bytes of shared memory per block"
    at_launch = "" if dynamic_shared_bytes else " plus what the launch asks for"
    cores = (
        f"{report.tensor_core_instructions} tensor-core instructions"
        f" ({', '.join(report.tensor_core)})."
    )
    return [
        *([cores] if report.tensor_core else []),
        f"{report.registers} registers per thread, {shared}{at_launch}.",
        (
            f"At {threads} threads per block {fit.blocks}"
            f" {'block fits' if fit.blocks == 1 else 'blocks fit'} a multiprocessor of"
            f" sm_{report.arch}: {fit.share:.0%} of its warps, limited by {fit.limit}."
        ),
    ]
