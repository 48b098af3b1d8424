"""What a rank tells the fabric: events of one fixed size. None carries a time; the fabric alone
knows how long anything takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

EVENT = struct.Struct("<BBHIQQ")
"""kind, flag, which, number, amount, group: 24 bytes."""
BATCH = struct.Struct("<II")
"""Element type and number of dimensions; none end the training. The dimensions follow
(micro-batches, samples, a sample's own), samples, labels (int64).
"""
DIMENSION = struct.Struct("<I")
OK = b"\x01"
FACTOR = struct.Struct("<d")
"""The answer to a backward that is asked about, see `needs_factor`."""
_ASKED_EVERY = 20


def needs_factor(module: int) -> bool:
    """Whether a module's backward must be told before it goes on: the fabric answers with a secret
    factor for the gradient of its output.

    So backward cannot be told when all of it has run, in an order that suits whoever tells it.
    """
    return module % _ASKED_EVERY == 0


class EventKind(IntEnum):
    """What happened on a rank."""

    FETCH = 1  # wants the next step's micro-batches; answered
    FORWARD = 2  # which: module, number: samples
    BACKWARD = 3  # flag: micro-batch, which: module, number: samples; answered where `needs_factor`
    OPTIMIZER = 4
    SYNC = 5  # the host waits for the device
    HOST = 6  # amount: nanoseconds of work on the host
    WRITE = 7  # number: lines printed
    DEVICE = 8  # an operation of the script's own; amount: bytes it touches
    ALLREDUCE = (
        9  # flag: element type, which: reduction, amount: elements; payload in the arena; answered
    )
    BROADCAST = 10  # which: source rank
    ALLGATHER = 11
    BARRIER = 12
    PARAMETERS = 13  # training is over; amount: float32 elements in the arena
    START = 14  # the parameters before training, from rank 0; answered
    WAIT = 15  # the compute stream waits for a collective; number: which of the rank's, from 0


class RankEvent(NamedTuple):
    """One event of one rank. `group`: whom a collective is for, a bit a rank."""

    kind: EventKind
    flag: int = 0
    which: int = 0
    number: int = 0
    amount: int = 0
    group: int = 0

    def pack(self) -> bytes:
        return EVENT.pack(*self)


def unpack(raw: bytes) -> RankEvent:
    """The event in these 24 bytes. Raises ValueError if the kind is unknown."""
    kind, *rest = EVENT.unpack(raw)
    return RankEvent(EventKind(kind), *rest)


DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"]
ITEM_BYTES = [4, 2, 2, 8, 4, 8, 1, 1]
FLOATING = {0, 1, 2, 3}


def group_of(ranks: Iterable[int]) -> int:
    """These ranks as an event names them."""
    return sum(1 << rank for rank in ranks)


def members(group: int) -> list[int]:
    """The ranks that an event names, in their order."""
    return [rank for rank in range(group.bit_length()) if group >> rank & 1]


REDUCTIONS = ["sum", "avg", "max", "min"]
