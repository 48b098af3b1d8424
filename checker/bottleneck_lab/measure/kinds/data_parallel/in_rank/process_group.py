"""Inside a rank: the process group that carries real payloads to the fabric and back. It knows no
time.

A script may replace or forge anything in here, being in the same process; the fabric believes only
payloads it can check.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.in_rank.watch import HostWatch
from bottleneck_lab.measure.kinds.data_parallel.protocol import REDUCTIONS, EventKind

BACKEND = "emulated"


class _Done(dist.Work):
    """A collective whose payload is exchanged when the call returns. When it *would* have been is
    the fabric's business, which hears of every wait for it.
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
        """Return the finished future. Taking it counts as waiting: nothing here sees when it is
        used.
        """
        self.watch.wait(self.collective)
        return self.future


class EmulatedGroup(dist.ProcessGroup):
    """Some ranks of the job, or all, over the fabric. Collectives that it does not model are
    refused by name.
    """

    def __init__(self, rank: int, ranks: Sequence[int], client: Client, watch: HostWatch) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg, unused-ignore]  # torch 2.14's stubs know one constructor of two
        self.ranks = list(ranks)
        self.client = client
        self.watch = watch

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return BACKEND

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Reduce over the ranks in place: sum, mean, minimum or maximum."""
        operation = _reduction(opts.reduceOp)
        with self.watch, torch.no_grad():
            for tensor in tensors:
                self._exchange(EventKind.ALLREDUCE, tensor.detach(), [tensor.detach()], operation)
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Copy the source rank's values to every rank. The others have nothing to send, and need no
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
        """Copy every rank's values to every rank, one tensor each."""
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
        """Wait for every rank, and the host with it."""
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
    "reduce", "gather", "scatter", "send", "recv", "recv_anysource", "alltoall", "alltoall_base",
    "all_to_all_single", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather_single",
    "gather_into_tensor", "monitored_barrier",
):  # fmt: skip
    _refuse(_name)


def _reduction(operation: Any) -> int:
    """Return the number of a reduction in the protocol. Raises ValueError for an unknown one."""
    for number, name in enumerate(REDUCTIONS):
        if operation == getattr(dist.ReduceOp, name.upper()):
            return number
    # Bitwise or of flags that are 0 or 1 is their maximum; likewise for and.
    if operation == dist.ReduceOp.BOR:
        return REDUCTIONS.index("max")
    if operation == dist.ReduceOp.BAND:
        return REDUCTIONS.index("min")
    raise ValueError(f"the emulated fabric does not reduce by {operation}")
