"""The messages of ranks: events of one fixed size for the fabric, and the job of a rank on a real
GPU. No event carries a time; the fabric alone knows how long anything takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import msgspec

EVENT = struct.Struct("<BBHIQQ")
"""kind, flag, which, number, amount, group: 24 bytes."""
BATCH = struct.Struct("<II")
"""Element type and number of dimensions; none end the training. The dimensions follow
(micro-batches, samples, a sample's own), samples, labels (int64).
"""
DIMENSION = struct.Struct("<I")
OK = b"\x01"
FACTOR = struct.Struct("<d")
"""One for each part of a micro-batch: the answer to a backward whose module `needs_factor`."""
_FACTOR_EVERY = 20


def needs_factor(module: int) -> bool:
    """Return True if a rank must report a module's backward before it goes on: the fabric answers
    with a secret factor for the gradient of its output.
    """
    # So a rank cannot report backward once all of it has run, in an order that suits it.
    return module % _FACTOR_EVERY == 0


class EventKind(IntEnum):
    """Kinds of events on a rank."""

    FETCH = 1  # wants the next step's micro-batches; answered
    FORWARD = 2  # which: module, number: samples
    BACKWARD = 3  # flag: micro-batch, which: module, number: samples; answered where `needs_factor`
    OPTIMIZER = 4
    SYNC = 5  # the host waits for the device
    HOST = 6  # amount: nanoseconds of work on the host
    WRITE = 7  # number: lines printed
    DEVICE = 8  # an operation of the script's own; amount: bytes it touches
    # Collectives, with their payload in the arena, are answered. flag: element type, number: 1 if
    # the script gets a handle to wait for it by, amount: elements that a rank sends.
    ALLREDUCE = 9  # which: reduction
    BROADCAST = 10  # which: source rank
    ALLGATHER = 11
    BARRIER = 12
    PARAMETERS = 13  # training is over; amount: float32 elements in the arena
    START = 14  # the parameters before training, from rank 0; answered
    WAIT = 15  # the compute stream waits for a collective; number: which of the rank's, from 0
    REDUCESCATTER = 16  # which: reduction; each rank gets its part of the sum
    REDUCE = 17  # which: reduction; the rank that wants the sum takes it
    TRAINED_WITH = 18  # amount: float32 elements in the arena, as this step's forward saw them
    UNMODELLED = 19  # which: of `UNMODELLED`; nothing follows


class RankEvent(NamedTuple):
    """One event of one rank. `group`: whom a collective is for, a bit a rank."""

    kind: EventKind
    flag: int = 0
    which: int = 0
    number: int = 0
    amount: int = 0
    group: int = 0

    def pack(self) -> bytes:
        """Encode the event in 24 bytes."""
        return EVENT.pack(*self)


def unpack(raw: bytes) -> RankEvent:
    """Decode the event in these 24 bytes. Raises ValueError if the kind is unknown."""
    kind, *rest = EVENT.unpack(raw)
    return RankEvent(EventKind(kind), *rest)


DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool", "int8"]
ITEM_BYTES = [4, 2, 2, 8, 4, 8, 1, 1, 1]
FLOATING = {0, 1, 2, 3}


def group_of(ranks: Iterable[int]) -> int:
    """Return these ranks as an event names them."""
    return sum(1 << rank for rank in ranks)


def members(group: int) -> list[int]:
    """Return the ranks that an event names, in their order."""
    return [rank for rank in range(group.bit_length()) if group >> rank & 1]


REDUCTIONS = ["sum", "avg", "max", "min", "product"]
UNMODELLED = [
    "send",
    "receive",
    "gather to one rank",
    "scatter",
    "all-to-all",
    "monitored barrier",
    "bitwise and premultiplied reductions",
    "element types beside float16, bfloat16, float32, float64, int8, int32, int64, uint8 and bool",
    "payloads of more than a copy of the model from each rank",
]
"""Right work may need these; the emulation lacks them. A check that meets one is an ERROR."""


SECRET_BYTES = 7
"""Of the seed that a job's ranks get: with a rank's number added it is still an int64."""
DONE = b"\x01"
"""Sent by rank 0 once its file is complete."""


class CudaJob(msgspec.Struct, frozen=True):
    """The options of a job on real GPUs. `samples`, each of `shape`: of a micro-batch; `channel`:
    the path of the verifier's socket, which hands out the seed of the batches after `warmup` steps;
    `moved`: the file for the parameters' change.
    """

    world: int
    backend: str
    folder: str
    entry: str
    channel: str
    moved: str
    seed: int
    warmup: int
    steps: int
    samples: int
    shape: tuple[int, ...]
    classes: int
    tokens: int
    micro_batches: int
    trace: str = ""
