"""What one warp's addresses do to memory, by following its integer arithmetic through a kernel's
PTX: sectors per request, passes a bank.

Nothing is measured and no data are read: what depends on them is unknown, and so is every
floating-point number. A branch that hangs on such a value is not taken, and an access to such an
address is not counted.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (sectors of 32 bytes)
and "Shared Memory and Memory Banks" (32 banks of 4 bytes); accesses of 8 and 16 bytes per thread
are served for half and quarter warps at a time, `ldmatrix` for 8 rows of 16 bytes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.machine_code.ptx import Instruction, Kernel

LANES = 32
SECTOR, BANKS, BANK = 32, 32, 4
MOST_INSTRUCTIONS = 150_000
"""A warp is followed so far: a second or two."""
SHARED_WINDOW = 1 << 40
"""Where shared memory lies among generic addresses."""

Lanes = NDArray[np.int64]
Space = Literal["global", "shared"]
What = Literal["loads", "stores", "copies", "ldmatrix"]
_Key = tuple[int, int, Space, What, int]
"""Line, caller, space, what and bytes of an access."""


class Launch(msgspec.Struct, frozen=True):
    """How a kernel is launched: threads per block and blocks in x, y, z, dynamic shared memory, and
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
    """What the instructions of one line (inlined into `caller`, else 0) and kind did. `cost` is in
    sectors (global) or passes (shared), summed over `requests`; `least` is what the same bytes need
    at least.
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
        """Whether the same bytes would need clearly less."""
        return self.cost > 1.25 * self.least


class WarpAccesses(msgspec.Struct, frozen=True):
    """The accesses of the first warp of the first block, by line. Not `whole`: something in it
    could not be followed, or it was too long.
    """

    accesses: list[Access]
    whole: bool


def follow(kernel: Kernel, launch: Launch) -> WarpAccesses:
    """Runs the integer part of the first warp of block 0."""
    warp = _Warp(kernel, launch)
    warp.run()
    return WarpAccesses(_by_line(warp.seen), warp.whole)


def _by_line(seen: list[tuple[_Key, int, int]]) -> list[Access]:
    """Sums over what was seen. Where the compiler has forgotten some of a line's callers, they are
    one.
    """
    forgotten = {
        (line, space, what, size) for (line, caller, space, what, size), _, _ in seen if not caller
    }
    sums: dict[_Key, list[int]] = {}
    for (line, caller, space, what, size), cost, least in seen:
        known = 0 if (line, space, what, size) in forgotten else caller
        found = sums.setdefault((line, known, space, what, size), [0, 0, 0])
        found[:] = found[0] + 1, found[1] + cost, found[2] + least
    return [Access(*key, *figures) for key, figures in sorted(sums.items())]


def sectors(addresses: Lanes, size: int) -> tuple[int, int]:
    """(32-byte sectors that a request of `size` bytes a lane touches, the fewest that could hold as
    many different bytes).
    """
    different = np.unique(addresses)
    touched = np.unique((different[:, None] + np.arange(0, size, min(size, 4))) // SECTOR)
    return len(touched), -(-len(different) * size // SECTOR)


def passes(lanes: NDArray[np.intp], addresses: Lanes, size: int) -> tuple[int, int]:
    """(passes through the banks for the accesses of these lanes, the fewest possible): a bank gives
    one word at a time, the same one to all who ask.
    """
    groups = lanes // max(1, LANES * BANK // max(size, BANK))
    total = 0
    for group in np.unique(groups):
        words = np.unique(
            addresses[groups == group][:, None] // BANK + np.arange(max(1, size // BANK))
        )
        total += int(np.bincount(words % BANKS).max())
    return total, len(np.unique(groups))


def _signed(value: Lanes, bits: int) -> Lanes:
    if bits >= 64:
        return value
    sign = 1 << (bits - 1)
    return ((value & ((1 << bits) - 1)) ^ sign) - sign


def _unsigned(value: Lanes, bits: int) -> Lanes:
    return value if bits >= 64 else value & ((1 << bits) - 1)


def _divided(a: Lanes, b: Lanes) -> Lanes:
    """As C divides: towards zero; 0 where the divisor is 0."""
    safe = np.where(b == 0, 1, b)
    quotient: Lanes = np.where(b == 0, 0, np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe))
    return quotient


_TWO: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "rem": lambda a, b: a - _divided(a, b) * b,
    "min": np.minimum,
    "max": np.maximum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMPARE: dict[str, Callable[[Lanes, Lanes], NDArray[np.bool_]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
_FOLLOWED = ("bra", "ret", "exit", "ld", "st", "cp", "ldmatrix", "stmatrix", "call")
"""What the picture of a warp's accesses is not whole without."""
_REGISTER = re.compile(r"%\w+(?:\.[xyz])?")
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]")


class _Warp:
    """32 lanes with a program counter each; the lanes that are furthest behind go first, so that
    they meet again after a branch.
    """

    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self.kernel = kernel
        self.whole = True
        self.seen: list[tuple[_Key, int, int]] = []
        self.registers: dict[str, Lanes | None] = {**_special(launch)}
        self.parameters = {
            parameter.name: value
            for parameter, value in zip(kernel.parameters, launch.arguments, strict=False)
        }
        self.names = _shared_places(kernel)
        self.at = np.where(np.arange(LANES) < launch.threads, 0, len(kernel.code))
        self.active = np.arange(LANES)

    def run(self) -> None:
        """Until every lane has ended, or the warp has gone on for too long."""
        for _ in range(MOST_INSTRUCTIONS):
            place = int(self.at.min())
            if place >= len(self.kernel.code):
                return
            here = np.flatnonzero(self.at == place)
            self.at[here] = place + 1
            self._step(self.kernel.code[place], here)
        self.whole = False

    def _step(self, instruction: Instruction, here: NDArray[np.intp]) -> None:
        if instruction.guard:
            guard = self.value(instruction.guard, 1)
            if guard is None:
                self.whole &= not self._matters(instruction, int(self.at[here[0]]))
                self._forget(instruction)
                return
            here = here[(guard[here] != 0) != instruction.negated]
        if not len(here):
            return
        self.active = here
        kind = instruction.parts[0]
        handler = getattr(self, f"_do_{kind}", None)
        if handler is not None:
            handler(instruction)
        else:
            self._compute(instruction, kind)

    def _matters(self, instruction: Instruction, following: int) -> bool:
        """Whether what is left out because its guard is unknown could change the picture: a jump
        over mere arithmetic does not.
        """
        if instruction.parts[0] != "bra":
            return instruction.parts[0] in _FOLLOWED
        to = self.kernel.labels[instruction.operands[0]]
        between = self.kernel.code[following:to]
        return to < following or any(skipped.parts[0] in _FOLLOWED for skipped in between)

    # ---- Registers ----

    def value(self, text: str, bits: int, *, signed: bool = False) -> Lanes | None:
        """An operand's 32 values, read as a number of so many bits; None if they are not known."""
        if text.startswith("%"):
            found = self.registers.get(text)
        elif re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", text):
            number = int(text.rstrip("U"), 0)
            found = np.full(LANES, number - (1 << 64) if number >= 1 << 63 else number)
        else:
            found = np.full(LANES, self.names[text]) if text in self.names else None
        if found is None:
            return None
        return _signed(found, bits) if signed else _unsigned(found, bits)

    def put(self, name: str, value: Lanes | None) -> None:
        """Gives a register new values in the active lanes."""
        for register in _REGISTER.findall(name) if name.startswith("{") or "|" in name else [name]:
            old = self.registers.get(register)
            if value is None or len(self.active) == LANES:
                self.registers[register] = value
            else:
                merged = np.zeros(LANES, np.int64) if old is None else old.copy()
                merged[self.active] = value[self.active]
                self.registers[register] = merged

    def _forget(self, instruction: Instruction) -> None:
        if instruction.operands and not instruction.operands[0].startswith("["):
            self.put(instruction.operands[0], None)

    # ---- Arithmetic ----

    def _compute(self, instruction: Instruction, kind: str) -> None:
        """One that gives its first operand a value. What is not integer arithmetic gives an unknown
        one.
        """
        type_ = re.fullmatch(r"([subp])(\d+|red)", instruction.parts[-1])
        if type_ is None or not instruction.operands:
            self._forget(instruction)
            return
        signed, bits = type_[1] == "s", 1 if type_[2] == "red" else int(type_[2])
        sources = [self.value(text, bits, signed=signed) for text in instruction.operands[1:]]
        if any(source is None for source in sources):
            self._forget(instruction)
            return
        known = [source for source in sources if source is not None]
        self.put(
            instruction.operands[0],
            self._result(kind, instruction.parts, known, bits, signed=signed),
        )

    def _result(
        self, kind: str, parts: list[str], known: list[Lanes], bits: int, *, signed: bool
    ) -> Lanes | None:
        if kind in ("mul", "mad") and "hi" in parts:
            high = [int(a) * int(b) >> bits for a, b in zip(known[0], known[1], strict=True)]
            found = np.array(high, dtype=np.int64)
            return _unsigned(found + known[2] if kind == "mad" else found, bits)
        wide = 2 * bits if "wide" in parts else bits
        if kind == "mad":
            return _unsigned(known[0] * known[1] + known[2], wide)
        if kind in _TWO and len(known) == 2:
            return _unsigned(_TWO[kind](known[0], known[1]), wide)
        if kind in ("shl", "shr"):
            shift = np.minimum(known[1], bits - 1) if signed else known[1]
            moved = (
                known[0] << np.minimum(shift, 63)
                if kind == "shl"
                else known[0] >> np.minimum(shift, 63)
            )
            return np.where(shift >= bits, 0, _unsigned(moved, bits))
        return _other(kind, known, bits)

    def _do_mov(self, instruction: Instruction) -> None:
        to, source = instruction.operands
        bits = int(re.sub(r"\D", "", instruction.parts[-1]) or 1)
        if to.startswith("{") or source.startswith("{"):
            self._move_parts(to, source, bits)
        else:
            self.put(to, self.value(source, bits))

    def _move_parts(self, to: str, source: str, bits: int) -> None:
        """`mov.b64 {low, high}, whole` and its reverse."""
        whole, parts = (
            (source, _REGISTER.findall(to))
            if to.startswith("{")
            else (to, _REGISTER.findall(source))
        )
        each = bits // max(1, len(parts))
        if to.startswith("{"):
            value = self.value(whole, bits)
            for place, part in enumerate(parts):
                self.put(part, None if value is None else _unsigned(value >> place * each, each))
            return
        values = [self.value(part, each) for part in parts]
        known = [value << place * each for place, value in enumerate(values) if value is not None]
        self.put(
            whole, sum(known, np.zeros(LANES, np.int64)) if len(known) == len(values) else None
        )

    def _do_setp(self, instruction: Instruction) -> None:
        to, left, right, *with_ = instruction.operands
        type_ = instruction.parts[-1]
        compare = _COMPARE.get(instruction.parts[1])
        if compare is None or type_[0] not in "sub":
            self.put(to, None)
            return
        bits, signed = int(type_[1:]), type_[0] == "s"
        a, b = self.value(left, bits, signed=signed), self.value(right, bits, signed=signed)
        other = self.value(with_[0].lstrip("!"), 1) if with_ else np.ones(LANES, np.int64)
        if a is None or b is None or other is None:
            self.put(to, None)
            return
        found = compare(a, b).astype(np.int64)
        if with_:
            other = 1 - other if with_[0].startswith("!") else other
            found = _TWO[instruction.parts[2]](found, other)
        self.put(to.split("|")[0], found)

    def _do_selp(self, instruction: Instruction) -> None:
        to, left, right, which = instruction.operands
        bits = int(re.sub(r"\D", "", instruction.parts[-1]))
        a, b, chosen = self.value(left, bits), self.value(right, bits), self.value(which, 1)
        self.put(
            to, None if a is None or b is None or chosen is None else np.where(chosen != 0, a, b)
        )

    def _do_cvt(self, instruction: Instruction) -> None:
        to, source = instruction.operands[:2]
        types = [re.fullmatch(r"([su])(\d+)", part) for part in instruction.parts[-2:]]
        if types[0] is None or types[1] is None:
            self.put(to, None)
            return
        value = self.value(source, int(types[1][2]), signed=types[1][1] == "s")
        self.put(to, None if value is None else _unsigned(value, int(types[0][2])))

    def _do_cvta(self, instruction: Instruction) -> None:
        """To a generic address, or from one."""
        value = self.value(instruction.operands[1], 64)
        offset = SHARED_WINDOW if "shared" in "".join(instruction.parts) else 0
        sign = -1 if "to" in instruction.parts else 1
        self.put(instruction.operands[0], None if value is None else value + sign * offset)

    def _do_shfl(self, instruction: Instruction) -> None:
        to, source, by = instruction.operands[0].split("|")[0], *instruction.operands[1:3]
        value, lane = self.value(source, 32), self.value(by, 32)
        mode = next(
            (part for part in instruction.parts if part in ("bfly", "idx", "up", "down")), ""
        )
        if value is None or lane is None or not mode:
            self.put(to, None)
            return
        own = np.arange(LANES)
        sources = {"bfly": own ^ lane, "idx": lane, "up": own - lane, "down": own + lane}[mode]
        self.put(to, value[np.where((sources >= 0) & (sources < LANES), sources, own)])

    def _do_elect(self, instruction: Instruction) -> None:
        self.put(
            instruction.operands[0].split("|")[-1],
            (np.arange(LANES) == self.active[0]).astype(np.int64),
        )

    # ---- Control ----

    def _do_bra(self, instruction: Instruction) -> None:
        self.at[self.active] = self.kernel.labels[instruction.operands[0]]

    def _do_ret(self, _: Instruction) -> None:
        self.at[self.active] = len(self.kernel.code)

    _do_exit = _do_trap = _do_ret

    def _do_call(self, instruction: Instruction) -> None:
        self.whole = False
        self._forget(instruction)

    # ---- Memory ----

    def _do_ld(self, instruction: Instruction) -> None:
        to, source = instruction.operands[:2]
        if "param" in instruction.parts:
            self.put(to, self._parameter(source, instruction.parts[-1]))
            return
        self._touch(instruction, source, "loads")
        self.put(to, None)

    _do_ldu = _do_ld

    def _do_st(self, instruction: Instruction) -> None:
        self._touch(instruction, instruction.operands[0], "stores")

    def _do_ldmatrix(self, instruction: Instruction) -> None:
        self._matrices(instruction, instruction.operands[1])
        self.put(instruction.operands[0], None)

    def _do_stmatrix(self, instruction: Instruction) -> None:
        self._matrices(instruction, instruction.operands[0])

    def _do_cp(self, instruction: Instruction) -> None:
        """`cp.async`: a load from global memory that is a store to shared memory. Bulk copies are
        not made by lanes.
        """
        if "bulk" in instruction.parts or len(instruction.operands) < 3:
            return
        to, source, size = instruction.operands[:3]
        self._count(instruction, "global", "copies", self._address(source), int(size))
        self._count(instruction, "shared", "copies", self._address(to), int(size))

    def _parameter(self, source: str, type_: str) -> Lanes | None:
        match = _ADDRESS.match(source)
        held = self.parameters.get(match[1]) if match else None
        if match is None or held is None or type_[0] == "f":
            return None
        begin, size = int(match[2] or 0), int(re.sub(r"\D", "", type_)) // 8
        return np.full(LANES, int.from_bytes(held[begin : begin + size], "little", signed=True))

    def _address(self, text: str) -> Lanes | None:
        match = _ADDRESS.match(text)
        base = self.value(match[1], 64) if match else None
        return None if match is None or base is None else base + int(match[2] or 0)

    def _touch(self, instruction: Instruction, where: str, what: What) -> None:
        parts, address = instruction.parts, self._address(where)
        vector = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
        size = vector * int(re.sub(r"\D", "", parts[-1]) or 32) // 8
        spaces = {part.split("::")[0] for part in parts}
        if (
            not spaces & {"global", "shared", "local", "const"} and address is not None
        ):  # a generic address
            inside = bool((address[self.active] >= SHARED_WINDOW).all())
            self._count(
                instruction,
                "shared" if inside else "global",
                what,
                address - SHARED_WINDOW * inside,
                size,
            )
        elif "global" in spaces:
            self._count(instruction, "global", what, address, size)
        elif "shared" in spaces:
            self._count(instruction, "shared", what, address, size)

    def _count(
        self, instruction: Instruction, space: Space, what: What, address: Lanes | None, size: int
    ) -> None:
        if address is None:
            self.whole = False
            return
        mine = address[self.active]
        cost, least = sectors(mine, size) if space == "global" else passes(self.active, mine, size)
        self.seen.append(((instruction.line, instruction.caller, space, what, size), cost, least))

    def _matrices(self, instruction: Instruction, where: str) -> None:
        """Lane 8i + r points at row r of matrix i: 16 bytes, four banks."""
        address, count = (
            self._address(where),
            int(next(part for part in instruction.parts if part in ("x1", "x2", "x4"))[1]),
        )
        if address is None:
            self.whole = False
            return
        rows = address[: 8 * count].reshape(count, 8) // 16
        cost = sum(int(np.bincount(np.unique(matrix) % 8).max()) for matrix in rows)
        self.seen.append(
            ((instruction.line, instruction.caller, "shared", "ldmatrix", 16), cost, count)
        )


def _other(kind: str, known: list[Lanes], bits: int) -> Lanes | None:
    """Operations of one source, and on fields of bits."""
    if kind == "not":
        return _unsigned(~known[0], bits)
    if kind == "neg":
        return _unsigned(-known[0], bits)
    if kind == "abs":
        return np.abs(known[0])
    if kind == "bfi":
        field, base, begin, length = known
        mask = ((1 << length) - 1) << begin
        return _unsigned((base & ~mask) | (field << begin & mask), bits)
    if kind == "bfe":
        value, begin, length = known
        return value >> begin & ((1 << length) - 1)
    return None


def _special(launch: Launch) -> dict[str, Lanes]:
    """The registers that tell a thread who it is: of block 0, in x first, as hardware makes warps."""
    thread = np.arange(LANES, dtype=np.int64)
    x, y = launch.block[0], launch.block[1]
    found = {
        "%tid.x": thread % x,
        "%tid.y": thread // x % y,
        "%tid.z": thread // (x * y),
        "%laneid": thread,
    }
    for axis, blocks, threads in zip("xyz", launch.grid, launch.block, strict=True):
        found |= {
            f"%ctaid.{axis}": np.zeros(LANES, np.int64),
            f"%nctaid.{axis}": np.full(LANES, blocks),
        }
        found[f"%ntid.{axis}"] = np.full(LANES, threads)
    return {**found, "%warpid": np.zeros(LANES, np.int64)}


def _shared_places(kernel: Kernel) -> dict[str, int]:
    """Where shared variables lie: in the order of their declaration, what is sized at launch behind
    them.
    """
    places, end = {}, 0
    for variable in sorted(kernel.shared, key=lambda variable: variable.size == 0):
        end = -(-end // variable.align) * variable.align
        places[variable.name] = end
        end += variable.size
    return places
