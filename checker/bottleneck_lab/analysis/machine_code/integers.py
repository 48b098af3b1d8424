"""Integer arithmetic of 32 lanes at once, as PTX defines it."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LANES = 32
Lanes = NDArray[np.int64]


def as_signed(value: Lanes, bits: int) -> Lanes:
    """Return values read as signed numbers of so many bits."""
    if bits >= 64:
        return value
    # Flipping the sign bit and taking it off again extends it over the upper bits.
    sign = 1 << (bits - 1)
    return ((value & ((1 << bits) - 1)) ^ sign) - sign


def as_unsigned(value: Lanes, bits: int) -> Lanes:
    """Return values read as unsigned numbers of so many bits."""
    if bits >= 64:
        return value
    return value & ((1 << bits) - 1)


def _divided(a: Lanes, b: Lanes) -> Lanes:
    """Divide as C does: towards zero; 0 where the divisor is 0."""
    safe = np.where(b == 0, 1, b)
    quotient: Lanes = np.where(b == 0, 0, np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe))
    return quotient


BINARY: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
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
COMPARE: dict[str, Callable[[Lanes, Lanes], NDArray[np.bool_]]] = {
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


def result_of(
    kind: str, parts: list[str], sources: list[Lanes], bits: int, *, signed: bool
) -> Lanes | None:
    """Return the result of an operation on known values; None if it is not integer arithmetic."""
    if kind in ("mul", "mad") and "hi" in parts:
        # The product has up to 128 bits: Python's integers hold it.
        high = [int(a) * int(b) >> bits for a, b in zip(sources[0], sources[1], strict=True)]
        product = np.array(high, dtype=np.int64)
        return as_unsigned(product + sources[2] if kind == "mad" else product, bits)
    wide = 2 * bits if "wide" in parts else bits
    if kind == "mad":
        return as_unsigned(sources[0] * sources[1] + sources[2], wide)
    if kind in BINARY and len(sources) == 2:
        return as_unsigned(BINARY[kind](sources[0], sources[1]), wide)
    if kind in ("shl", "shr"):
        # An arithmetic shift by too much leaves the sign, any other leaves 0.
        shift = np.minimum(sources[1], bits - 1) if signed else sources[1]
        by = np.minimum(shift, 63)
        moved = sources[0] << by if kind == "shl" else sources[0] >> by
        return np.where(shift >= bits, 0, as_unsigned(moved, bits))
    return _of_bits(kind, sources, bits)


def _of_bits(kind: str, sources: list[Lanes], bits: int) -> Lanes | None:
    """Return the result of an operation of one source, or on fields of bits."""
    if kind == "not":
        return as_unsigned(~sources[0], bits)
    if kind == "neg":
        return as_unsigned(-sources[0], bits)
    if kind == "abs":
        return np.abs(sources[0])
    if kind == "bfi":  # insert `length` bits of a field at `begin`
        inserted, base, begin, length = sources
        mask = ((1 << length) - 1) << begin
        return as_unsigned((base & ~mask) | (inserted << begin & mask), bits)
    if kind == "bfe":
        value, begin, length = sources
        field: Lanes = value >> begin & ((1 << length) - 1)
        return field
    return None
