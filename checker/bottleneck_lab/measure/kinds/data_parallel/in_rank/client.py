"""Inside a rank: its end of the socket to the fabric, and its shared memory."""

from __future__ import annotations

import math
import socket
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.kinds.data_parallel.protocol import (
    BATCH,
    DIMENSION,
    DTYPES,
    FACTOR,
    OK,
    UNMODELLED,
    EventKind,
    RankEvent,
    group_of,
    needs_factor,
)


class Client:
    """One rank's end of the socket and its shared memory."""

    def __init__(
        self, sock: socket.socket, arena: Arena, result: Arena, rank: int, world: int
    ) -> None:
        self.sock = sock
        self.rank = rank
        self.world = range(world)
        self.collectives = 0
        """Entered so far, in groups of any size."""
        self.on_their_way: weakref.WeakSet[Any] = weakref.WeakSet()
        """Collectives that the script holds a handle of."""
        self.trained_with: torch.Tensor | None = None
        """The parameters that the step's forward used, if each step's are compared."""
        self.parts = 1
        """Of how many micro-batches each of this rank's is made."""
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

    def factors(self, micro_batch: int, module: int, samples: int) -> list[float]:
        """Report a module's backward. Returns the factors for the gradient of its output, one for
        each part of the micro-batch, if there are any.
        """
        self.tell(EventKind.BACKWARD, micro_batch, module, samples)
        if not needs_factor(module):
            return []
        return [factor for (factor,) in FACTOR.iter_unpack(self.read(self.parts * FACTOR.size))]

    def exchange(
        self,
        kind: EventKind,
        send: list[torch.Tensor],
        receive: list[torch.Tensor],
        index: int = 0,
        ranks: Sequence[int] | None = None,
        *,
        by_script: bool = False,
    ) -> None:
        """Take part in a collective of `ranks`: put `send` into shared memory, one tensor after the
        other, wait for them all, then copy the result into `receive` likewise. `by_script`: the
        script gets a handle to wait by. Raises ConnectionError if the fabric is gone.
        """
        if ranks is None:
            ranks = self.world
        # The whole world reads one result; of any fewer ranks each gets its own, since others may
        # exchange something meanwhile.
        result = self.result if len(ranks) == len(self.world) else self.arena
        payload = send or receive
        name = str(payload[0].dtype).removeprefix("torch.") if payload else DTYPES[0]
        if name not in DTYPES:
            self.lacks(UNMODELLED[-2])
        elements = sum(tensor.numel() for tensor in payload)
        if max(sum(map(_bytes, send)), sum(map(_bytes, receive))) > self.arena.numel():
            self.lacks(UNMODELLED[-1])
        for tensor, memory in _laid_out(send, self.arena):
            memory.copy_(tensor)
        self.tell(kind, DTYPES.index(name), index, int(by_script), elements, group_of(ranks))
        if self.read(1) != OK:
            raise ConnectionError("the emulated fabric refused a collective")
        # Of a sum that is scattered, the shared result holds everybody's parts.
        if kind is EventKind.REDUCESCATTER and result is self.result:
            result = result[self.rank * sum(map(_bytes, receive)) :]
        for tensor, memory in _laid_out(receive, result):
            tensor.copy_(memory)

    def lacks(self, what: str) -> NoReturn:
        """Report that the emulation does not have `what`. The fabric ends the run."""
        self.tell(EventKind.UNMODELLED, 0, UNMODELLED.index(what))
        self.read(1)
        raise NotModelled(f"the emulation does not model: {what}")

    def place(self, model: torch.nn.Module) -> int:
        """Put the model's parameters into shared memory, one after the other. Returns their
        number.
        """
        parameters = [parameter.detach() for parameter in model.parameters()]
        for parameter, memory in _laid_out(parameters, self.arena):
            memory.copy_(parameter)
        return sum(parameter.numel() for parameter in parameters)

    def updated(self) -> None:
        """Report an update, and before it what the step trained with, if that is compared."""
        if self.trained_with is not None:
            self.arena.view(torch.float32)[: self.trained_with.numel()].copy_(self.trained_with)
            self.tell(EventKind.TRAINED_WITH, 0, 0, 0, self.trained_with.numel())
            self.read(1)
        self.tell(EventKind.OPTIMIZER)

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


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _laid_out(
    tensors: list[torch.Tensor], memory: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with its part of the memory, one after the other."""
    for tensor in tensors:
        part, memory = memory[: _bytes(tensor)], memory[_bytes(tensor) :]
        yield tensor, part.view(tensor.dtype).view(tensor.shape)
