"""The worker: one process imports torch and the trusted recipe, then forks a rank each, which loads
the script under test and trains.

`python -I -m bottleneck_lab.measure.kinds.data_parallel.child '{"world": …}'`, with sockets and
shared memory inherited by number.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d  # type: ignore[attr-defined]  # public, though not in its __all__
from torch.nn.parallel import DistributedDataParallel

from bottleneck_lab.lifetime import end_with_parent
from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.in_rank.as_one import normalise_apart
from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.in_rank.isolation import (
    leave_others,
    take_own_files,
)
from bottleneck_lab.measure.kinds.data_parallel.in_rank.process_group import BACKEND, EmulatedGroup
from bottleneck_lab.measure.kinds.data_parallel.in_rank.watch import (
    HostWatch,
    Interceptor,
    watch_host,
    watch_modules,
    watch_passes,
)
from bottleneck_lab.measure.kinds.data_parallel.protocol import OK, EventKind
from bottleneck_lab.measure.worker import explain, load_module

_LR_OF_MANY_STEPS = 0.1
"""Of the lab's. Over many steps small differences grow, as between a sum and the same in bfloat16;
but a step has to move parameters by far more than their rounding.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_END_WITH = """
from posix import _exit, close, waitpid, waitstatus_to_exitcode
from sys import argv
child, line = map(int, argv[1:])
close(line)
_exit(waitstatus_to_exitcode(waitpid(child, 0)[1]) & 0xFF)
"""
"""A program that closes a descriptor once it runs, and ends as its child does.

Unlike a fork of the worker it holds none of its memory, which would be counted page by page while
ranks run.
"""


class RankJob(msgspec.Struct, frozen=True):
    """The worker's options: sockets by run and rank, memory by rank, the line on which a byte
    starts each run, and the script's folder. The first run trains the recipe's small model if
    `many_steps`, and compares the parameters of every step. A run whose number in `parts` is not 0
    has one rank, whose micro-batches are made of so many.

    `apart`: ranks get namespaces of their own, in which they see the folders of `readable`.
    """

    sockets: list[list[int]]
    arenas: list[int]
    result: int
    go: int
    many_steps: bool
    parts: list[int]
    folder: str
    entry: str
    apart: bool
    readable: list[str]


def train(
    rank: int, sockets: list[int], job: RankJob, recipe: ModuleType, model: torch.nn.Module
) -> None:
    """Train as one rank. Returns when the script's training is over and its parameters lie in
    shared memory.

    Raises TypeError if `wrap` returns no DistributedDataParallel, and whatever the script raises.
    """
    client = Client(
        socket.socket(fileno=sockets[rank]),
        Arena.attach(job.arenas[rank]),
        Arena.attach(job.result, writable=False),
        rank,
        len(sockets),
    )
    run = job.sockets.index(sockets)
    client.parts = job.parts[run] or 1
    watch = HostWatch(client.tell)
    everyone = range(len(sockets))

    def group(options: Any, _: Any) -> EmulatedGroup:
        return EmulatedGroup(
            options.group_rank, options.global_ranks_in_group or everyone, client, watch
        )

    with watch:  # work before the training is not charged
        dist.Backend.register_backend(BACKEND, group, extended_api=True, devices=["cpu"])
        # Each rank's store is its own. Groups need no agreement through one: every collective names
        # its ranks to the fabric.
        setattr(distributed_c10d, "_store_based_barrier", lambda *_, **__: None)  # noqa: B010 - an assignment is what the type checker forbids
        dist.init_process_group(BACKEND, store=HashStore(), rank=rank, world_size=len(sockets))
        if job.many_steps and run == 0:
            client.trained_with = torch.zeros(sum(part.numel() for part in model.parameters()))
            # To prepare a convolution of a few small samples for oneDNN costs more than to run it.
            torch.backends.mkldnn.set_flags(client.parts > 1)  # type: ignore[no-untyped-call]  # torch has no types
        watch_modules(model, client, watch)
        if rank == 0:
            client.place(model)
            client.exchange(EventKind.START, [], [])
        script = load_module(Path(job.folder) / job.entry)
        ddp = script.wrap(model)
        if not isinstance(ddp, DistributedDataParallel):
            raise TypeError("wrap must return the model in a DistributedDataParallel")
        optimizer = recipe.make_optimizer(model)
        if client.trained_with is not None:
            for parameters in optimizer.param_groups:
                parameters["lr"] *= _LR_OF_MANY_STEPS
        watch_passes(ddp, optimizer, watch, client)
    watch_host(watch, client)
    # Only the times of few steps count: of many, small operations would be too many events.
    with Interceptor(watch) if client.trained_with is None else nullcontext():
        script.train(ddp, optimizer, client.batches())
    client.tell(EventKind.PARAMETERS, 0, 0, 0, client.place(model))


def run_rank(
    rank: int, sockets: list[int], job: RankJob, recipe: ModuleType, model: torch.nn.Module
) -> None:
    """Be a rank, in a forked child: keep only its own descriptors, train, and leave without running
    anybody's exit handlers.
    """
    # Sockets of this run and of those that come after it are still open.
    runs = job.sockets[job.sockets.index(sockets) :]
    inherited = {job.go, *job.arenas, *chain(*runs)}
    for descriptor in inherited - {sockets[rank], job.arenas[rank]}:
        os.close(descriptor)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(sockets)))
    try:
        train(rank, sockets, job, recipe, model)
    except BaseException:  # the script's own, whatever it is
        traceback.print_exc()
        sys.stderr.write(f"⟦Rank {rank}: {explain(Path(job.folder))}⟧")
        sys.stderr.flush()
        os._exit(70)
    sys.stdout.flush()
    os._exit(0)


def live_apart(job: RankJob) -> None:
    """Fork, and return in a grandchild that shares nothing with other ranks."""
    leave_others()
    # A child would be process 1 of its namespace, which signals do not end: it waits, as does the
    # process that was forked for the rank.
    for _ in range(2):
        parent_runs, line = os.pipe()
        if child := os.fork():
            os.set_inheritable(line, True)
            os.execv(
                sys.executable, [sys.executable, "-I", "-S", "-c", _END_WITH, str(child), str(line)]
            )
        end_with_parent()
        os.close(line)
        os.read(parent_runs, 1)  # its Python may lie in a folder that is emptied below
        os.close(parent_runs)
    take_own_files(Path(job.folder).parent, [Path(folder) for folder in job.readable])


def warm_up() -> None:
    """Have torch do its late imports once here instead of in every rank."""
    import torch._dynamo

    tensor = torch.zeros(1)
    tensor.grad = torch.zeros(1)
    torch.optim.SGD([tensor], lr=0.1, momentum=0.9).step()


def keep_memory() -> None:
    """Have the allocator keep freed memory for the next step: to get it from the kernel again costs
    a tenth of a step.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def open_gates(model: torch.nn.Module) -> None:
    """Give weights that start at zero other values, small ones. All that they are multiplied with
    has no gradients worth the name before, as in a block that starts as the identity, and nobody
    would see that one is missing.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.any() and not name.endswith("bias"):
                parameter.uniform_(0.05, 0.15, generator=generator)


def fork_ranks(
    sockets: list[int], job: RankJob, recipe: ModuleType, model: torch.nn.Module
) -> list[int]:
    """Fork one child a rank; their sockets are theirs alone from here on. Returns their process
    ids.
    """
    children = []
    for rank in range(len(sockets)):
        child = os.fork()
        if child == 0:
            end_with_parent()
            if job.apart:
                live_apart(job)
            run_rank(rank, sockets, job, recipe, model)
        children.append(child)
    for descriptor in sockets:
        os.close(descriptor)
    return children


def end_ranks(children: list[int]) -> None:
    """End the ranks of a run: the verifier has all that it needs of them."""
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    """Entry point of the worker: one run after the other, each when the verifier says so."""
    job = msgspec.json.decode(sys.argv[1], type=RankJob)
    for descriptor in (job.go, job.result, *job.arenas, *chain(*job.sockets)):
        os.set_inheritable(descriptor, False)
    torch.set_num_threads(1)
    keep_memory()
    warm_up()
    recipe = load_module(Path(job.folder) / "recipe.py")
    models = [recipe.make_model() for _ in job.sockets]
    if job.many_steps and hasattr(recipe, "make_small_model"):
        models[0] = recipe.make_small_model()
    for model, parts in zip(models, job.parts, strict=True):
        open_gates(model)
        if parts:
            normalise_apart(model, parts)
    gc.freeze()  # forked ranks share these pages as long as nobody touches them
    children: list[int] = []
    for sockets, model in zip(job.sockets, models, strict=True):
        if not os.read(job.go, 1):
            break
        end_ranks(children)
        os.write(job.go, OK)  # from now on the script runs: what fails is its own fault
        children = fork_ranks(sockets, job, recipe, model)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
