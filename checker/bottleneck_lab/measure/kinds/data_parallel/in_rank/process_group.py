"""Inside a rank: the process group that carries real payloads to the fabric and back. It knows no
time.

A script may replace or forge anything in here, being in the same process; the fabric believes only
payloads it can check.
"""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.in_rank.watch import HostWatch
from bottleneck_lab.measure.kinds.data_parallel.protocol import (
    BATCH,
    DIMENSION,
    DTYPES,
    FACTOR,
    OK,
    REDUCTIONS,
    EventKind,
    RankEvent,
    group_of,
    needs_factor,
)

BACKEND = "emulated"


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
        with warnings.catch_warnings():  # it is only read, as the kernel sees to
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self.result = torch.frombuffer(result.memory, dtype=torch.uint8)

    def tell(self, kind: EventKind, *fields: int) -> None:
        self.sock.sendall(RankEvent(kind, *fields).pack())

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes from the fabric. Raises ConnectionError if it is gone."""
        raw = bytearray()
        while len(raw) < size:
            chunk = self.sock.recv(size - len(raw))
            if not chunk:
                raise ConnectionError("the emulated fabric is gone")
            raw += chunk
        return bytes(raw)

    def micro_batch(self, samples: torch.Tensor) -> int | None:
        """Which micro-batch of its step these are, by their values: a script may take them in any
        order, layout and precision. None if no micro-batch has as many numbers.
        """
        distances = [
            (float(torch.dist(samples.detach().flatten().float(), one.flatten().float())), index)
            for step in self.handed_out
            for index, one in enumerate(step)
            if one.numel() == samples.numel()
        ]
        return min(distances)[1] if distances else None

    def factor(self, micro_batch: int, module: int, samples: int) -> float:
        """Tells of a module's backward, and what the gradient of its output is to be multiplied
        with.
        """
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
        """A collective of `ranks`: `send` into shared memory, wait for them all, then the result
        back into `receive`, one after the other.

        The whole world reads one result; of any fewer ranks each gets its own, since others may
        exchange something meanwhile. Raises ConnectionError if the fabric is gone.
        """
        ranks = self.world if ranks is None else ranks
        result = self.result if len(ranks) == len(self.world) else self.arena
        dtype = (
            DTYPES.index(
                str((send if send is not None else receive[0]).dtype).removeprefix("torch.")
            )
            if send is not None or receive
            else 0
        )
        elements = send.numel() if send is not None else sum(tensor.numel() for tensor in receive)
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
        """Puts the model's parameters into shared memory, one after the other, and returns how many
        there are.
        """
        offset = elements = 0
        for parameter in model.parameters():
            flat = parameter.detach().reshape(-1)
            _typed(self.arena[offset:], flat.dtype, flat.numel()).copy_(flat)
            offset += flat.numel() * flat.element_size()
            elements += flat.numel()
        return elements

    def batches(self) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Steps as the verifier hands them out, until it has no more."""
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
        """An array from the fabric, which may be written to."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(bytearray(self.read(size)), dtype).reshape(shape)


def _typed(raw: torch.Tensor, dtype: torch.dtype, elements: int) -> torch.Tensor:
    size = elements * dtype.itemsize
    if size > raw.numel():
        raise ValueError(
            f"a collective of {size} bytes does not fit the emulated link's {raw.numel()}"
        )
    return raw[:size].view(dtype)


class _Done(dist.Work):
    """The payload is exchanged when a collective returns; when it *would* have been is the fabric's
    business, which is told who waits for it.
    """

    def __init__(self, tensors: list[torch.Tensor], collective: int, watch: HostWatch) -> None:
        super().__init__()
        self.collective = collective
        self.watch = watch
        self.future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self.future.set_result(tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - torch's signature
        self.watch.wait(self.collective)
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        """Whoever takes it uses it: nothing here sees when."""
        self.watch.wait(self.collective)
        return self.future


class EmulatedGroup(dist.ProcessGroup):
    """Some ranks of the job, or all, over the fabric. What it does not model it refuses by name."""

    def __init__(self, rank: int, ranks: Sequence[int], client: Client, watch: HostWatch) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg, unused-ignore]  # torch 2.14's stubs know one constructor of two
        self.ranks = list(ranks)
        self.client = client
        self.watch = watch

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return BACKEND

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Sum, mean, minimum or maximum over the ranks, in place."""
        operation = next(
            (
                i
                for i, name in enumerate(REDUCTIONS)
                if opts.reduceOp == getattr(dist.ReduceOp, name.upper())
            ),
            None,
        )
        if operation is None:
            operation = _bitwise(opts.reduceOp)
        with self.watch, torch.no_grad():
            for tensor in tensors:
                self._exchange(EventKind.ALLREDUCE, tensor.detach(), [tensor.detach()], operation)
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """The source rank's values on every rank; the others have nothing to send, and need no
        shared memory for it.
        """
        with self.watch, torch.no_grad():
            for tensor in tensors:
                send = tensor.detach() if self.rank() == opts.rootRank else None
                self._exchange(
                    EventKind.BROADCAST, send, [tensor.detach()], self.ranks[opts.rootRank]
                )
        return self._done(tensors)

    def allgather(  # type: ignore[override]
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any,  # noqa: ARG002 - torch's signature
    ) -> _Done:
        """Every rank's values on every rank, one tensor each."""
        with self.watch, torch.no_grad():
            for output, tensor in zip(outputs, inputs, strict=True):
                self._exchange(
                    EventKind.ALLGATHER, tensor.detach(), [part.detach() for part in output]
                )
        return self._done([part for output in outputs for part in output])

    def _allgather_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        opts: Any = None,  # noqa: ARG002 - torch's signature
    ) -> _Done:
        with self.watch, torch.no_grad():
            self._exchange(EventKind.ALLGATHER, tensor.detach(), [output.detach()])
        return self._done([output])

    all_gather_single = _allgather_base  # type: ignore[assignment]  # newer torch's name; it names the second argument otherwise

    def barrier(self, opts: Any = None) -> _Done:  # noqa: ARG002 - torch's signature
        """Waits for every rank, and the host with it."""
        with self.watch:
            self._exchange(EventKind.BARRIER, None, [])
        return self._done([])

    def _exchange(
        self,
        kind: EventKind,
        send: torch.Tensor | None,
        receive: list[torch.Tensor],
        index: int = 0,
    ) -> None:
        self.client.exchange(kind, send, receive, index, self.ranks)
        self.client.collectives += 1

    def _done(self, tensors: list[torch.Tensor]) -> _Done:
        return _Done(tensors, self.client.collectives - 1, self.watch)


def _refuse(name: str) -> None:
    def refused(_group: EmulatedGroup, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            f"the emulated fabric does not model {name.strip('_')}: it has all-reduce, broadcast,"
            " all-gather and barrier"
        )

    setattr(EmulatedGroup, name, refused)


for _name in (
    *(
        "reduce",
        "gather",
        "scatter",
        "send",
        "recv",
        "recv_anysource",
        "alltoall",
        "alltoall_base",
        "all_to_all_single",
    ),
    *(
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
    ),
    *("reduce_scatter_tensor_coalesced", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single_coalesced", "gather_single", "gather_into_tensor", "monitored_barrier"),
):
    _refuse(_name)


def _bitwise(operation: Any) -> int:
    """Bitwise or of flags that are 0 or 1 is their maximum; likewise for and."""
    if operation == dist.ReduceOp.BOR:
        return REDUCTIONS.index("max")
    if operation == dist.ReduceOp.BAND:
        return REDUCTIONS.index("min")
    raise ValueError(f"the emulated fabric does not reduce by {operation}")
