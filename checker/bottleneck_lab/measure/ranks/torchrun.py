"""One rank of a job on real GPUs (or, for tests, on the CPU with gloo), started by torchrun.

`torchrun … -m bottleneck_lab.measure.ranks.torchrun '{"world": …}'`. Nothing that it says of time is believed: it only ticks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from bottleneck_lab.measure.ranks.cuda import TICK, CudaJob
from bottleneck_lab.measure.worker import load_module


def batches(job: CudaJob, rank: int, device: torch.device) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Every step's micro-batches of this rank, drawn from the verifier's seed; pixels are kept, labels change."""
    generator = torch.Generator().manual_seed(job.seed % (1 << 60) + rank)
    pixels = torch.randn(job.images, 3, job.size, job.size, generator=generator).to(device)
    for _ in range(job.steps):
        labels = [
            torch.randint(job.classes, (job.images,), generator=generator).to(device) for _ in range(job.micro_batches)
        ]
        yield [(pixels, part) for part in labels]


def main() -> None:
    """Entry point: trains, ticks after every step from rank 0, leaves in a file how far the parameters went."""
    job = msgspec.json.decode(sys.argv[1], type=CudaJob)
    rank = int(os.environ["RANK"])
    cuda = job.backend == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(job.backend)
    recipe = load_module(Path(job.folder) / "recipe.py")
    model = recipe.make_model().to(device)
    before = flat(model)
    script = load_module(Path(job.folder) / job.entry)
    ddp = script.wrap(model)
    optimizer = recipe.make_optimizer(model)
    ticks = _connect(job.ticks) if rank == 0 else None

    def tick(*_: object) -> None:
        if cuda:
            torch.cuda.synchronize()
        if ticks is not None:
            ticks.sendall(TICK)

    optimizer.register_step_post_hook(tick)
    with _profiler(job, rank) as profiler:
        if profiler is not None:
            optimizer.register_step_post_hook(lambda *_: profiler.step())
        script.train(ddp, optimizer, batches(job, rank, device))
    moved = flat(model) - before
    agree = _all_equal(moved)
    if rank == 0:
        torch.cat([torch.tensor([float(agree)]), moved.cpu()]).numpy().tofile(job.moved)
    dist.barrier()
    if ticks is not None:
        ticks.sendall(TICK)
    dist.destroy_process_group()


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, one after the other, on their device."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _all_equal(values: torch.Tensor) -> bool:
    low, high = values.clone(), values.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(torch.equal(low, high))


@contextlib.contextmanager
def _profiler(job: CudaJob, rank: int) -> Iterator[torch.profiler.profile | None]:
    if not job.trace:
        yield None
        return
    schedule = torch.profiler.schedule(wait=2, warmup=2, active=max(1, job.steps - 6), repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        yield profiler
    profiler.export_chrome_trace(f"{job.trace}-rank{rank}.json.gz")


if __name__ == "__main__":
    main()
