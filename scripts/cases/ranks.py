"""torch.distributed between machines of one process: ranks are threads that meet in collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from scripts.cases.machine import COMMUNICATION, COMPUTE, Machine

FIRST_BUCKET_BYTES = 1 << 20


class Meeting:
    """Where the ranks of one run meet: each brings a moment, all leave with the last one."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=120)
        self._moments = [0.0] * ranks

    def last(self, rank: int, moment: float) -> float:
        """Return the latest of all ranks' moments."""
        self._moments[rank] = moment
        self._barrier.wait()
        latest = max(self._moments)
        self._barrier.wait()
        return latest

    def abort(self) -> None:
        """Let nobody wait for a rank that has ended."""
        self._barrier.abort()


_meetings: dict[int, Meeting] = {}


def meet(runs: list[Machine]) -> None:
    """Let these machines be each other's ranks."""
    meeting = Meeting(len(runs))
    for run in runs:
        _meetings[id(run)] = meeting


def abort(run: Machine) -> None:
    """Release the ranks that wait for this one."""
    _meetings[id(run)].abort()


def _machine() -> Machine:
    from scripts.cases.pretend import machine

    return machine()


def _transfer(name: str, nbytes: float, *, ready: float | None = None) -> float:
    """Run a collective on the communication stream; return when it ends."""
    run = _machine()
    ranks = run.setting.ranks
    begin = max(run.host, run.tail[COMMUNICATION], run.tail[COMPUTE] if ready is None else ready)
    times = 2.0 if name == "allreduce" else 1.0
    us = times * (ranks - 1) / ranks * nbytes / (run.setting.network_gb_per_s * 1e3)
    us += run.setting.latency_us
    end = _meetings[id(run)].last(run.rank, begin) + us
    run.collective(name, begin, end, int(nbytes))
    return end


class _Work:
    """A collective under way."""

    def wait(self) -> None:
        """Let the compute stream wait for it."""
        _machine().join_streams()


def _all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    _transfer("allreduce", tensor.nbytes)
    if async_op:
        return _Work()
    _machine().join_streams()
    return None


def _barrier(*_args: Any, **_options: Any) -> None:
    _transfer("allreduce", 4)
    _machine().join_streams()
    _machine().wait()


def _all_gather(tensors: Any, tensor: Any, **_options: Any) -> None:
    _transfer("allgather", tensor.nbytes * len(tensors))
    _machine().join_streams()


class DataParallel(torch.nn.Module):
    """DistributedDataParallel: gradients are summed in buckets while backward goes on."""

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        **_options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self._unused, self._buffers_too = find_unused_parameters, broadcast_buffers
        self._syncs = True
        self._buckets: list[list[torch.nn.Parameter]] = [[]]
        size, limit = 0, FIRST_BUCKET_BYTES
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            if size > limit:
                self._buckets.append([])
                size, limit = 0, int(bucket_cap_mb * (1 << 20))
            self._buckets[-1].append(parameter)
            size += parameter.nbytes
        self._missing = [len(bucket) for bucket in self._buckets]
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self._arrived(number))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        run = _machine()
        with run.range("DistributedDataParallel.forward", "cpu_op"):
            buffers = [each for each in self.module.buffers() if each.is_floating_point()]
            if buffers and self._buffers_too and self._syncs:
                _transfer("broadcast", sum(each.nbytes for each in buffers))
                run.join_streams()
            result = self.module(*args, **kwargs)
        if self._unused and self._syncs:
            # The graph is searched for parameters that took no part.
            run.work(12.0 * sum(map(len, self._buckets)))
        self._missing = [len(bucket) for bucket in self._buckets]
        return result

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients inside."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def _arrived(self, number: int) -> Callable[[Any], None]:
        def hook(_parameter: Any) -> None:
            self._missing[number] -= 1
            if self._syncs and not self._missing[number]:
                _transfer("allreduce", sum(each.nbytes for each in self._buckets[number]))
                if not any(self._missing):
                    _machine().join_streams()

        return hook


def fully_shard(
    module: torch.nn.Module, *, reshard_after_forward: bool = True, **_options: Any
) -> torch.nn.Module:
    """Shard a module's own parameters: gathered before it runs, scattered after its backward."""
    own = [
        parameter for parameter in module.parameters() if not getattr(parameter, "sharded", False)
    ]
    for parameter in own:
        parameter.sharded = True  # type: ignore[attr-defined]  # a mark of ours
    # Parameters are kept in fp32 and gathered in the type that they are computed in.
    nbytes = sum(parameter.nbytes for parameter in own)

    def gather(*_args: Any) -> None:
        run = _machine()
        end = _transfer("allgather", nbytes, ready=0.0)
        run.tail[COMPUTE] = max(run.tail[COMPUTE], end)

    def scatter(*_args: Any) -> None:
        _transfer("reduce_scatter", nbytes)

    module.register_forward_pre_hook(gather)
    if reshard_after_forward:
        module.register_full_backward_pre_hook(gather)
    remaining = [len(own)]

    def arrived(_parameter: Any) -> None:
        remaining[0] -= 1
        if not remaining[0]:
            remaining[0] = len(own)
            scatter()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(arrived)
    return module


REPLACED: dict[str, Any] = {
    "torch.distributed.init_process_group": lambda *_args, **_options: None,
    "torch.distributed.destroy_process_group": lambda: None,
    "torch.distributed.is_initialized": lambda: True,
    "torch.distributed.get_rank": lambda *_: _machine().rank,
    "torch.distributed.get_world_size": lambda *_: _machine().setting.ranks,
    "torch.distributed.all_reduce": _all_reduce,
    "torch.distributed.all_gather": _all_gather,
    "torch.distributed.barrier": _barrier,
    "torch.nn.parallel.DistributedDataParallel": DataParallel,
    "torch.distributed.fsdp.fully_shard": fully_shard,
}
