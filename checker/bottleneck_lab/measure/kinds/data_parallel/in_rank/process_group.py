"""Inside a rank: the process group that carries real payloads to the fabric and back. It knows no
time.

A script may replace or forge anything in here, being in the same process; the fabric believes only
payloads it can check.
"""

from __future__ import annotations

import sys
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
    """A collective whose payload has been exchanged. When it *would* have been is the fabric's
    business, which hears of every wait for it.

    `values`: what `into` will hold once the script waits; until then a GPU would read the old ones.
    """

    def __init__(
        self,
        group: EmulatedGroup,
        tensors: list[torch.Tensor],
        into: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> None:
        super().__init__()
        self.collective = group.client.collectives - 1
        self.watch = group.watch
        self.tensors = tensors
        self.into = into
        self.values = values

    def arrive(self) -> None:
        """Put the values where the script reads them."""
        with self.watch, torch.no_grad():
            for tensor, value in zip(self.into, self.values, strict=True):
                tensor.copy_(value)
        self.into, self.values = [], []

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - torch's signature
        self.watch.wait(self.collective)
        self.arrive()
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def get_future(self) -> Any:
        """Return the finished future. Taking it counts as waiting: nothing here sees when it is
        used.
        """
        self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self.tensors)
        return future


class EmulatedGroup(dist.ProcessGroup):
    """Some ranks of the job, or all, over the fabric. What the emulation lacks is reported to the
    fabric, which ends the run: it is no fault of the script.
    """

    def __init__(self, rank: int, ranks: Sequence[int], client: Client, watch: HostWatch) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg, unused-ignore]  # torch 2.14's stubs know one constructor of two
        self.ranks = list(ranks)
        self.client = client
        self.watch = watch

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return BACKEND

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Reduce over the ranks in place, all tensors in one message."""
        return self._exchange(
            EventKind.ALLREDUCE, tensors, tensors, _reduction(opts.reduceOp, self.client)
        )

    allreduce_coalesced = allreduce  # type: ignore[assignment]  # its base names arguments otherwise

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Reduce over the ranks, in place on one of them."""
        here = tensors if self.rank() == opts.rootRank else []
        return self._exchange(
            EventKind.REDUCE, tensors, here, _reduction(opts.reduceOp, self.client)
        )

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Done:  # type: ignore[override]  # as the C++ side calls it
        """Copy the source rank's values to every rank. The others have nothing to send, and need no
        shared memory for it.
        """
        send = tensors if self.rank() == opts.rootRank else []
        return self._exchange(EventKind.BROADCAST, send, tensors, self.ranks[opts.rootRank])

    def allgather(  # type: ignore[override]  # as the C++ side calls it
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any
    ) -> _Done:
        """Copy every rank's values to every rank, one tensor each; several inputs go in one
        message.
        """
        by_rank = [part for parts in zip(*outputs, strict=True) for part in parts]
        return self._exchange(EventKind.ALLGATHER, inputs, by_rank)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any
    ) -> _Done:
        """Do the same; here `outputs` has one list a rank."""
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *_: Any
    ) -> _Done:
        """Copy every rank's values into one tensor, for each input."""
        return self.allgather([self._parts(output) for output in outputs], inputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, *_: Any) -> _Done:
        return self.allgather_into_tensor_coalesced([output], [tensor])

    def reduce_scatter(  # type: ignore[override]  # as the C++ side calls it
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> _Done:
        """Reduce over the ranks, of which each gets its own part of the result."""
        by_rank = [part for parts in zip(*inputs, strict=True) for part in parts]
        return self._exchange(
            EventKind.REDUCESCATTER, by_rank, outputs, _reduction(opts.reduceOp, self.client)
        )

    def reduce_scatter_tensor_coalesced(  # type: ignore[override]  # as the C++ side calls it
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> _Done:
        """Do the same with one tensor for all parts, for each output."""
        return self.reduce_scatter(outputs, [self._parts(tensor) for tensor in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> _Done:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    # Newer torch's names; it names arguments otherwise.
    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> _Done:  # noqa: ARG002 - torch's signature
        """Wait for every rank, and the host with it."""
        return self._exchange(EventKind.BARRIER, [], [])

    def _parts(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return a view of each rank's part of a tensor."""
        return list(tensor.detach().view(-1).view(self.size(), -1))

    def _exchange(
        self,
        kind: EventKind,
        send: list[torch.Tensor],
        receive: list[torch.Tensor],
        index: int = 0,
    ) -> _Done:
        # Only torch's Python functions hand the script a handle to wait by. What the reducer calls
        # from C++ it waits for itself, without a call that could be seen here.
        caller = sys._getframe(1)
        while caller.f_globals is globals() and caller.f_back:
            caller = caller.f_back
        by_script = caller.f_globals.get("__name__") == dist.distributed_c10d.__name__
        with self.watch, torch.no_grad():
            sent = [tensor.detach() for tensor in send]
            into = [tensor.detach() for tensor in receive]
            values = [torch.empty_like(tensor) for tensor in into] if by_script else into
            self.client.exchange(kind, sent, values, index, self.ranks, by_script=by_script)
        self.client.collectives += 1
        if not by_script:
            return _Done(self, receive, [], [])
        work = _Done(self, receive, into, values)
        self.client.on_their_way.add(work)
        return work


def _refuse(what: str) -> Any:
    return lambda group, *_, **__: group.client.lacks(what)


for _lacking, _names in {
    "send": ["send"],
    "receive": ["recv", "recv_anysource"],
    "gather to one rank": ["gather", "gather_single", "gather_into_tensor"],
    "scatter": ["scatter"],
    "all-to-all": ["alltoall", "alltoall_base", "all_to_all_single"],
    "monitored barrier": ["monitored_barrier"],
}.items():
    for _name in _names:
        setattr(EmulatedGroup, _name, _refuse(_lacking))


def _reduction(operation: Any, client: Client) -> int:
    """Return the number of a reduction in the protocol."""
    for number, name in enumerate(REDUCTIONS):
        if operation == getattr(dist.ReduceOp, name.upper()):
            return number
    # Bitwise or of flags that are 0 or 1 is their maximum; likewise for and.
    if operation == dist.ReduceOp.BOR:
        return REDUCTIONS.index("max")
    if operation == dist.ReduceOp.BAND:
        return REDUCTIONS.index("min")
    return client.lacks("bitwise and premultiplied reductions")
