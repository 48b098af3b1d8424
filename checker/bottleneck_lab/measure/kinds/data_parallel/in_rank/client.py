"""Inside a rank: its end of the socket to the fabric, and its shared memory."""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.protocol import (
    BATCH,
    DIMENSION,
    DTYPES,
    FACTOR,
    OK,
    EventKind,
    RankEvent,
    group_of,
    needs_factor,
)


class Client:
    """One rank's end of the socket and its shared memory."""

    def __init__(self, sock: socket.socket, arena: Arena, result: Arena, world: int) -> None:
        self.sock = sock
        self.world = range(world)
        self.collectives = 0
        """Entered so far, in groups of any size."""
        self.handed_out: list[list[torch.Tensor]] = []
        """The samples of each step's micro-batches so far."""
        self.arena = torch.frombuffer(arena.memory, dtype=torch.uint8)
        with warnings.catch_warnings():  # it is only read: the kernel allows no more
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self.result = torch.frombuffer(result.memory, dtype=torch.uint8)

    def tell(self, kind: EventKind, *fields: int) -> None:
        """Send an event that is not answered."""
        self.sock.sendall(RankEvent(kind, *fields).pack())

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes from the fabric. Raises ConnectionError if it is gone."""
        raw = bytearray()
        while len(raw) < size:
            chunk = self.sock.recv(size - len(raw))
            if not chunk:
                raise ConnectionError("the emulated fabric is gone")
            raw += chunk
        return bytes(raw)

    def micro_batch(self, samples: torch.Tensor) -> int | None:
        """Return the number of the micro-batch of its step that these samples are; None if no
        micro-batch has as many numbers.
        """
        # By their values: a script may take them in any order, layout and precision.
        distances = [
            (float(torch.dist(samples.detach().flatten().float(), one.flatten().float())), index)
            for step in self.handed_out
            for index, one in enumerate(step)
            if one.numel() == samples.numel()
        ]
        return min(distances)[1] if distances else None

    def factor(self, micro_batch: int, module: int, samples: int) -> float:
        """Report a module's backward. Returns the factor for the gradient of its output."""
        self.tell(EventKind.BACKWARD, micro_batch, module, samples)
        return float(FACTOR.unpack(self.read(FACTOR.size))[0]) if needs_factor(module) else 1.0

    def exchange(
        self,
        kind: EventKind,
        send: torch.Tensor | None,
        receive: list[torch.Tensor],
        index: int = 0,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Take part in a collective of `ranks`: put `send` into shared memory, wait for them all,
        then copy the result into `receive`, one tensor after the other. Raises ConnectionError if
        the fabric is gone.
        """
        if ranks is None:
            ranks = self.world
        # The whole world reads one result; of any fewer ranks each gets its own, since others may
        # exchange something meanwhile.
        result = self.result if len(ranks) == len(self.world) else self.arena
        payload = receive if send is None else [send]
        dtype = DTYPES.index(str(payload[0].dtype).removeprefix("torch.")) if payload else 0
        elements = sum(tensor.numel() for tensor in payload)
        if send is not None:
            _typed(self.arena, send.dtype, send.numel()).copy_(send.reshape(-1))
        self.tell(kind, dtype, index, 0, elements, group_of(ranks))
        if self.read(1) != OK:
            raise ConnectionError("the emulated fabric refused a collective")
        offset = 0
        for tensor in receive:
            flat = _typed(result[offset:], tensor.dtype, tensor.numel())
            tensor.copy_(flat.view(tensor.shape))
            offset += tensor.numel() * tensor.element_size()

    def place(self, model: torch.nn.Module) -> int:
        """Put the model's parameters into shared memory, one after the other. Returns their
        number.
        """
        offset = elements = 0
        for parameter in model.parameters():
            flat = parameter.detach().reshape(-1)
            _typed(self.arena[offset:], flat.dtype, flat.numel()).copy_(flat)
            offset += flat.numel() * flat.element_size()
            elements += flat.numel()
        return elements

    def batches(self) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Yield steps as the verifier hands them out, until it has no more."""
        while True:
            self.tell(EventKind.FETCH)
            dtype, dimensions = BATCH.unpack(self.read(BATCH.size))
            if not dimensions:
                return
            shape = [DIMENSION.unpack(self.read(DIMENSION.size))[0] for _ in range(dimensions)]
            samples, labels = self._array(DTYPES[dtype], shape), self._array("int64", shape[:2])
            self.handed_out.append(list(torch.from_numpy(samples)))
            yield list(zip(self.handed_out[-1], torch.from_numpy(labels), strict=True))

    def _array(self, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
        """Read an array from the fabric, which may be written to."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(bytearray(self.read(size)), dtype).reshape(shape)


def _typed(raw: torch.Tensor, dtype: torch.dtype, elements: int) -> torch.Tensor:
    size = elements * dtype.itemsize
    if size > raw.numel():
        raise ValueError(
            f"a collective of {size} bytes does not fit the emulated link's {raw.numel()}"
        )
    return raw[:size].view(dtype)
