"""The worker: one process imports torch and the trusted recipe, then forks a rank each, which loads the script under test and trains.

`python -I -m bottleneck_lab.measure.ranks.rank '{"world": …}'`, with sockets and shared memory inherited by number.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from bottleneck_lab.measure.ranks.group import BACKEND, Client, EmulatedGroup
from bottleneck_lab.measure.ranks.protocol import Kind
from bottleneck_lab.measure.ranks.watch import HostWatch, Interceptor, watch_host, watch_modules, watch_passes
from bottleneck_lab.measure.wire import Arena
from bottleneck_lab.measure.worker import explain, load_module

_PR_SET_PDEATHSIG = 1


class RankJob(msgspec.Struct, frozen=True):
    """What the worker is started with: file descriptors by rank, and the script's folder."""

    world: int
    sockets: list[int]
    arenas: list[int]
    result: int
    folder: str
    entry: str


def train(rank: int, job: RankJob, recipe: ModuleType, model: torch.nn.Module) -> None:
    """Everything one rank does; returns when the script's training is over and its parameters lie in shared memory."""
    client = Client(socket.socket(fileno=job.sockets[rank]), Arena.attach(job.arenas[rank]), Arena.attach(job.result))
    watch = HostWatch(client.tell)
    dist.Backend.register_backend(
        BACKEND, lambda _store, rank, size, _timeout: EmulatedGroup(rank, size, client, watch), devices=["cpu"]
    )
    dist.init_process_group(BACKEND, store=HashStore(), rank=rank, world_size=job.world)
    watch_modules(model, client.tell)
    if rank == 0:
        client.place(model)
        client.exchange(Kind.START, None, [])
    script = load_module(Path(job.folder) / job.entry)
    ddp = script.wrap(model)
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError("wrap must return the model in a DistributedDataParallel")
    optimizer = recipe.make_optimizer(model)
    watch_passes(ddp, optimizer, watch)
    watch_host(watch)
    with Interceptor(watch):
        script.train(ddp, optimizer, client.batches())
    client.tell(Kind.PARAMETERS, 0, 0, 0, client.place(model))


def run_rank(rank: int, job: RankJob, recipe: ModuleType, model: torch.nn.Module) -> None:
    """A forked child: keeps only its own descriptors, trains, and leaves without running anybody's exit handlers."""
    for other in range(job.world):
        if other != rank:
            os.close(job.sockets[other])
            os.close(job.arenas[other])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world))
    try:
        train(rank, job, recipe, model)
    except BaseException:  # the script's own, whatever it is
        traceback.print_exc()
        sys.stderr.write(f"\x1eRank {rank}: {explain(Path(job.folder))}\x1e")
        sys.stderr.flush()
        os._exit(70)
    sys.stdout.flush()
    os._exit(0)


def warm_up() -> None:
    """Has torch import what it imports late, once here instead of in every rank."""
    import torch._dynamo

    tensor = torch.zeros(1)
    tensor.grad = torch.zeros(1)
    torch.optim.SGD([tensor], lr=0.1, momentum=0.9).step()


def main() -> None:
    """Entry point of the worker."""
    job = msgspec.json.decode(sys.argv[1], type=RankJob)
    torch.set_num_threads(1)
    warm_up()
    recipe = load_module(Path(job.folder) / "recipe.py")
    model = recipe.make_model()
    gc.freeze()  # forked ranks share these pages as long as nobody touches them
    children = []
    for rank in range(job.world):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            run_rank(rank, job, recipe, model)
        children.append(child)
    for descriptor in (*job.sockets, *job.arenas, job.result):
        os.close(descriptor)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
