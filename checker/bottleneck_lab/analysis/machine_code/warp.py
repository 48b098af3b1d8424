"""The accesses of one warp to memory, by following its integer arithmetic through a kernel's PTX:
sectors per request, passes a bank.

Nothing is measured and no data are read: what depends on them is unknown, and so is every
floating-point number. A branch that hangs on such a value is not taken, and an access to such an
address is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.machine_code.integers import (
    BINARY,
    COMPARE,
    LANES,
    Lanes,
    as_signed,
    as_unsigned,
    result_of,
)
from bottleneck_lab.analysis.machine_code.ptx import Instruction, Kernel
from bottleneck_lab.analysis.machine_code.transactions import matrix_passes, passes, sectors

MOST_INSTRUCTIONS = 150_000
"""A warp is followed so far: a second or two."""
SHARED_WINDOW = 1 << 40
"""Where shared memory lies among generic addresses."""

Space = Literal["global", "shared"]
What = Literal["loads", "stores", "copies", "ldmatrix"]
_Key = tuple[int, int, Space, What, int]
"""Line, caller, space, what and bytes of an access."""


class Launch(msgspec.Struct, frozen=True):
    """A kernel's launch: threads per block and blocks in x, y, z, dynamic shared memory, and
    each parameter's bytes, little-endian.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    arguments: list[bytes]

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]


class Access(msgspec.Struct, frozen=True):
    """The accesses of one kind by the instructions of one line (inlined into `caller`, else 0).

    `cost` is in sectors (global) or passes (shared), summed over `requests`; `least` is what the
    same bytes need at least.
    """

    line: int
    caller: int
    space: Space
    what: What
    bytes: int
    requests: int
    cost: int
    least: int

    @property
    def wasteful(self) -> bool:
        """True if the same bytes would need clearly less."""
        return self.cost > 1.25 * self.least


class WarpAccesses(msgspec.Struct, frozen=True):
    """The accesses of the first warp of the first block, by line. Not `whole`: something in it
    could not be followed, or it was too long.
    """

    accesses: list[Access]
    whole: bool


def follow(kernel: Kernel, launch: Launch) -> WarpAccesses:
    """Run the integer part of the first warp of block 0 and return its accesses to memory."""
    warp = _Warp(kernel, launch)
    warp.run()
    # Where the compiler has forgotten some of a line's callers, they count as one.
    forgotten = {
        (line, space, what, size)
        for (line, caller, space, what, size), _, _ in warp.seen
        if not caller
    }
    sums: dict[_Key, list[int]] = {}
    for (line, caller, space, what, size), cost, least in warp.seen:
        known = 0 if (line, space, what, size) in forgotten else caller
        totals = sums.setdefault((line, known, space, what, size), [0, 0, 0])
        totals[0] += 1
        totals[1] += cost
        totals[2] += least
    accesses = [Access(*key, *totals) for key, totals in sorted(sums.items())]
    return WarpAccesses(accesses, warp.whole)


_FOLLOWED = ("bra", "ret", "exit", "ld", "st", "cp", "ldmatrix", "stmatrix", "call")
"""Instructions without which the picture of a warp's accesses is not whole."""
_REGISTER = re.compile(r"%\w+(?:\.[xyz])?")
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")


def _bits(type_: str, default: int) -> int:
    """Return the width in a type's name: 32 for `u32`, `default` where it has none."""
    return int(re.sub(r"\D", "", type_) or default)


class _Warp:
    """32 lanes with a program counter each; the lanes that are furthest behind go first, so that
    they meet again after a branch.

    A register holds 32 values of 64 bits, or None where they are not known.
    """

    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self.kernel = kernel
        self.whole = True
        self.seen: list[tuple[_Key, int, int]] = []
        self.registers: dict[str, Lanes | None] = {**_special_registers(launch)}
        self.parameters = {
            parameter.name: value
            for parameter, value in zip(kernel.parameters, launch.arguments, strict=False)
        }
        # Shared variables lie in the order of their declaration, the one that is sized at launch
        # behind them.
        self.shared: dict[str, int] = {}
        end = 0
        for variable in sorted(kernel.shared, key=lambda variable: variable.size == 0):
            end = -(-end // variable.align) * variable.align
            self.shared[variable.name] = end
            end += variable.size
        # A block of fewer threads than a warp leaves lanes that never run.
        self.at = np.where(np.arange(LANES) < launch.threads, 0, len(kernel.code))
        self.active = np.arange(LANES)

    def run(self) -> None:
        """Go on until every lane has ended, or the warp has gone on for too long."""
        for _ in range(MOST_INSTRUCTIONS):
            position = int(self.at.min())
            if position >= len(self.kernel.code):
                return
            lanes = np.flatnonzero(self.at == position)
            self.at[lanes] = position + 1
            self.step(self.kernel.code[position], lanes)
        self.whole = False

    def step(self, instruction: Instruction, lanes: NDArray[np.intp]) -> None:
        """Carry out one instruction in those of the lanes whose guard lets it."""
        if instruction.guard:
            guard = self.value(instruction.guard, 1)
            if guard is None:
                self.whole &= not self.matters(instruction, int(self.at[lanes[0]]))
                self.forget(instruction)
                return
            lanes = lanes[(guard[lanes] != 0) != instruction.negated]
        if not len(lanes):
            return
        self.active = lanes
        kind = instruction.parts[0]
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, instruction)
        else:
            self.compute(instruction, kind)

    def matters(self, instruction: Instruction, following: int) -> bool:
        """Return True if leaving the instruction out, its guard being unknown, could change the
        picture: a jump over mere arithmetic does not.
        """
        if instruction.parts[0] != "bra":
            return instruction.parts[0] in _FOLLOWED
        target = self.kernel.labels[instruction.operands[0]]
        skipped = self.kernel.code[following:target]
        return target < following or any(each.parts[0] in _FOLLOWED for each in skipped)

    # ---- Registers ----

    def value(self, text: str, bits: int, *, signed: bool = False) -> Lanes | None:
        """Return an operand's 32 values, read as numbers of so many bits; None if not known."""
        values: Lanes | None = None
        if text.startswith("%"):
            values = self.registers.get(text)
        elif _NUMBER.fullmatch(text):
            number = int(text.rstrip("U"), 0)
            if number >= 1 << 63:  # kept as its two's complement: lanes are signed 64-bit
                number -= 1 << 64
            values = np.full(LANES, number)
        elif text in self.shared:
            values = np.full(LANES, self.shared[text])
        if values is None:
            return None
        return as_signed(values, bits) if signed else as_unsigned(values, bits)

    def put(self, name: str, value: Lanes | None) -> None:
        """Give a register, or each of `{a, b}` and `a|b`, new values in the active lanes."""
        registers = [name]
        if name.startswith("{") or "|" in name:
            registers = _REGISTER.findall(name)
        for register in registers:
            old = self.registers.get(register)
            if value is None or len(self.active) == LANES:
                self.registers[register] = value
            else:
                merged = np.zeros(LANES, np.int64) if old is None else old.copy()
                merged[self.active] = value[self.active]
                self.registers[register] = merged

    def forget(self, instruction: Instruction) -> None:
        """Make the instruction's result unknown."""
        if instruction.operands and not instruction.operands[0].startswith("["):
            self.put(instruction.operands[0], None)

    # ---- Arithmetic ----

    def compute(self, instruction: Instruction, kind: str) -> None:
        """Give the first operand the result of integer arithmetic, or make it unknown."""
        # Signed, unsigned, bits or a predicate (`pred`); of floating point nothing is followed.
        type_ = re.fullmatch(r"([subp])(\d+|red)", instruction.parts[-1])
        if type_ is None or not instruction.operands:
            self.forget(instruction)
            return
        signed, bits = type_[1] == "s", 1 if type_[2] == "red" else int(type_[2])
        sources = []
        for text in instruction.operands[1:]:
            source = self.value(text, bits, signed=signed)
            if source is None:
                self.forget(instruction)
                return
            sources.append(source)
        self.put(
            instruction.operands[0],
            result_of(kind, instruction.parts, sources, bits, signed=signed),
        )

    def mov(self, instruction: Instruction) -> None:
        """Move a value, or `mov.b64 {low, high}, whole` and its reverse."""
        to, source = instruction.operands
        bits = _bits(instruction.parts[-1], 1)
        if to.startswith("{"):
            parts = _REGISTER.findall(to)
            each = bits // max(1, len(parts))
            value = self.value(source, bits)
            for number, part in enumerate(parts):
                self.put(part, None if value is None else as_unsigned(value >> number * each, each))
        elif source.startswith("{"):
            parts = _REGISTER.findall(source)
            each = bits // max(1, len(parts))
            values = [self.value(part, each) for part in parts]
            whole = np.zeros(LANES, np.int64)
            for number, value in enumerate(values):
                if value is not None:
                    whole = whole + (value << number * each)
            self.put(to, None if any(value is None for value in values) else whole)
        else:
            self.put(to, self.value(source, bits))

    def setp(self, instruction: Instruction) -> None:
        """Set a predicate by a comparison, combined with another predicate where one is named."""
        # `setp.lt.and.s32 %p1, a, b, !%p2`: comparison, combination, type.
        to, left, right, *with_ = instruction.operands
        type_ = instruction.parts[-1]
        compare = COMPARE.get(instruction.parts[1])
        if compare is None or type_[0] not in "sub":
            self.put(to, None)
            return
        bits, signed = int(type_[1:]), type_[0] == "s"
        a, b = self.value(left, bits, signed=signed), self.value(right, bits, signed=signed)
        other = self.value(with_[0].lstrip("!"), 1) if with_ else np.ones(LANES, np.int64)
        if a is None or b is None or other is None:
            self.put(to, None)
            return
        holds = compare(a, b).astype(np.int64)
        if with_:
            if with_[0].startswith("!"):
                other = 1 - other
            holds = BINARY[instruction.parts[2]](holds, other)
        self.put(to.split("|")[0], holds)

    def selp(self, instruction: Instruction) -> None:
        """Select one of two values by a predicate."""
        to, left, right, which = instruction.operands
        bits = _bits(instruction.parts[-1], 0)
        a, b, chosen = self.value(left, bits), self.value(right, bits), self.value(which, 1)
        if a is None or b is None or chosen is None:
            self.put(to, None)
        else:
            self.put(to, np.where(chosen != 0, a, b))

    def cvt(self, instruction: Instruction) -> None:
        """Convert between integers; from or to floating point the result is unknown."""
        to, source = instruction.operands[:2]
        types = [re.fullmatch(r"([su])(\d+)", part) for part in instruction.parts[-2:]]
        if types[0] is None or types[1] is None:
            self.put(to, None)
            return
        value = self.value(source, int(types[1][2]), signed=types[1][1] == "s")
        self.put(to, None if value is None else as_unsigned(value, int(types[0][2])))

    def cvta(self, instruction: Instruction) -> None:
        """Convert to a generic address, or from one (`cvta.to`)."""
        value = self.value(instruction.operands[1], 64)
        if value is not None and "shared" in "".join(instruction.parts):
            value = value + (-SHARED_WINDOW if "to" in instruction.parts else SHARED_WINDOW)
        self.put(instruction.operands[0], value)

    def shfl(self, instruction: Instruction) -> None:
        """Take a value from another lane."""
        # `%r1|%p1`: the predicate says if the source lane was there, and is left unknown.
        to, source, by = instruction.operands[0].split("|")[0], *instruction.operands[1:3]
        value, lane = self.value(source, 32), self.value(by, 32)
        modes = [part for part in instruction.parts if part in ("bfly", "idx", "up", "down")]
        if value is None or lane is None or not modes:
            self.put(to, None)
            return
        own = np.arange(LANES)
        sources = {"bfly": own ^ lane, "idx": lane, "up": own - lane, "down": own + lane}
        other = sources[modes[0]]
        self.put(to, value[np.where((other >= 0) & (other < LANES), other, own)])

    def elect(self, instruction: Instruction) -> None:
        """Set a predicate in the first active lane."""
        first = (np.arange(LANES) == self.active[0]).astype(np.int64)
        self.put(instruction.operands[0].split("|")[-1], first)

    # ---- Control ----

    def bra(self, instruction: Instruction) -> None:
        """Jump to a label."""
        self.at[self.active] = self.kernel.labels[instruction.operands[0]]

    def ret(self, _: Instruction) -> None:
        """End the active lanes."""
        self.at[self.active] = len(self.kernel.code)

    def call(self, instruction: Instruction) -> None:
        """Leave a function out: what it does to memory is not known."""
        self.whole = False
        self.forget(instruction)

    # ---- Memory ----

    def ld(self, instruction: Instruction) -> None:
        """Load: a parameter's value is known, what lies in memory is not."""
        to, source = instruction.operands[:2]
        if "param" not in instruction.parts:
            self.touch(instruction, source, "loads")
            self.put(to, None)
            return
        match = _ADDRESS.match(source)
        held = self.parameters.get(match[1]) if match else None
        type_ = instruction.parts[-1]
        if match is None or held is None or type_[0] == "f":
            self.put(to, None)
            return
        begin, size = int(match[2] or 0), _bits(type_, 0) // 8
        number = int.from_bytes(held[begin : begin + size], "little", signed=True)
        self.put(to, np.full(LANES, number))

    def st(self, instruction: Instruction) -> None:
        """Store."""
        self.touch(instruction, instruction.operands[0], "stores")

    def ldmatrix(self, instruction: Instruction) -> None:
        """Load 8x8 matrices from shared memory."""
        self.touch_matrices(instruction, instruction.operands[1])
        self.put(instruction.operands[0], None)

    def stmatrix(self, instruction: Instruction) -> None:
        """Store 8x8 matrices to shared memory."""
        self.touch_matrices(instruction, instruction.operands[0])

    def cp(self, instruction: Instruction) -> None:
        """Count `cp.async`: a load from global memory that is a store to shared memory."""
        # Bulk copies are made by the copy engine, not by lanes.
        if "bulk" in instruction.parts or len(instruction.operands) < 3:
            return
        to, source, size = instruction.operands[:3]
        self.count(instruction, "global", "copies", self.address(source), int(size))
        self.count(instruction, "shared", "copies", self.address(to), int(size))

    def address(self, text: str) -> Lanes | None:
        """Return the lanes' addresses in `[base + offset]`, None if they are not known."""
        match = _ADDRESS.match(text)
        base = self.value(match[1], 64) if match else None
        if match is None or base is None:
            return None
        return base + int(match[2] or 0)

    def touch(self, instruction: Instruction, where: str, what: What) -> None:
        """Count an access whose space the instruction names, or the address gives away."""
        # `ld.global.v4.u32`: space, number of elements, element. Spaces may be narrowed further, as
        # in `shared::cta`.
        parts, address = instruction.parts, self.address(where)
        vector = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
        size = vector * _bits(parts[-1], 32) // 8
        spaces = {part.split("::")[0] for part in parts}
        if spaces & {"global", "shared", "local", "const"}:
            for space in ("global", "shared"):
                if space in spaces:
                    self.count(instruction, space, what, address, size)
        elif address is not None:  # a generic address
            if (address[self.active] >= SHARED_WINDOW).all():
                self.count(instruction, "shared", what, address - SHARED_WINDOW, size)
            else:
                self.count(instruction, "global", what, address, size)

    def count(
        self, instruction: Instruction, space: Space, what: What, address: Lanes | None, size: int
    ) -> None:
        """Add an access of the active lanes; at an unknown address the picture is not whole."""
        if address is None:
            self.whole = False
            return
        mine = address[self.active]
        cost, least = sectors(mine, size) if space == "global" else passes(self.active, mine, size)
        self.seen.append(((instruction.line, instruction.caller, space, what, size), cost, least))

    def touch_matrices(self, instruction: Instruction, where: str) -> None:
        """Count the passes of `ldmatrix` or `stmatrix`."""
        address = self.address(where)
        matrices = int(next(part for part in instruction.parts if part in ("x1", "x2", "x4"))[1])
        if address is None:
            self.whole = False
            return
        key: _Key = (instruction.line, instruction.caller, "shared", "ldmatrix", 16)
        self.seen.append((key, matrix_passes(address, matrices), matrices))


_HANDLERS: dict[str, Callable[[_Warp, Instruction], None]] = {
    "mov": _Warp.mov,
    "setp": _Warp.setp,
    "selp": _Warp.selp,
    "cvt": _Warp.cvt,
    "cvta": _Warp.cvta,
    "shfl": _Warp.shfl,
    "elect": _Warp.elect,
    "bra": _Warp.bra,
    "ret": _Warp.ret,
    "exit": _Warp.ret,
    "trap": _Warp.ret,
    "call": _Warp.call,
    "ld": _Warp.ld,
    "ldu": _Warp.ld,
    "st": _Warp.st,
    "ldmatrix": _Warp.ldmatrix,
    "stmatrix": _Warp.stmatrix,
    "cp": _Warp.cp,
}
"""Instructions that are more than integer arithmetic on their sources."""


def _special_registers(launch: Launch) -> dict[str, Lanes]:
    """Return the registers that tell a thread of block 0 which one it is."""
    thread = np.arange(LANES, dtype=np.int64)  # in x first, as hardware makes warps
    x, y = launch.block[0], launch.block[1]
    registers = {
        "%tid.x": thread % x,
        "%tid.y": thread // x % y,
        "%tid.z": thread // (x * y),
        "%laneid": thread,
        "%warpid": np.zeros(LANES, np.int64),
    }
    for axis, blocks, threads in zip("xyz", launch.grid, launch.block, strict=True):
        registers[f"%ctaid.{axis}"] = np.zeros(LANES, np.int64)
        registers[f"%nctaid.{axis}"] = np.full(LANES, blocks)
        registers[f"%ntid.{axis}"] = np.full(LANES, threads)
    return registers
