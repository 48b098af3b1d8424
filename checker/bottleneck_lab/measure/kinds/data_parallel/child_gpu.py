"""One rank of a job on real GPUs (or, for tests, on the CPU with gloo), started by torchrun.

`torchrun … -m bottleneck_lab.measure.kinds.data_parallel.child_gpu '{"world": …}'`. No time that it
reports is believed: the verifier's clock runs from handing out the seed of the batches after the
warm-up to the digest of the parameters that training on them has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from bottleneck_lab.measure.kinds.data_parallel.protocol import DONE, SECRET_BYTES, CudaJob
from bottleneck_lab.measure.worker import load_module


def batches(
    job: CudaJob, rank: int, device: torch.device, secret: Callable[[], int]
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield every step's micro-batches of this rank: labels change, samples once. From the end of
    the warm-up on they are drawn from the secret.
    """
    generator = torch.Generator().manual_seed(job.seed + rank)
    shape = (job.samples, *job.shape)
    if job.tokens:
        samples = torch.randint(job.tokens, shape, generator=generator).to(device)
    else:
        samples = torch.randn(shape, generator=generator).to(device)
    for step in range(job.steps):
        if step == job.warmup:
            seed = secret() + rank
            generator.manual_seed(seed)
            samples = samples.roll(1 + seed % (job.shape[-1] - 1), -1)
        labels = [
            torch.randint(job.classes, (job.samples,), generator=generator).to(device)
            for _ in range(job.micro_batches)
        ]
        yield [(samples, part) for part in labels]


def main() -> None:
    """Entry point: train. Rank 0 sends the digest of the parameters' change, and leaves it in a
    file.
    """
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
    verifier = socket.socket(socket.AF_UNIX)
    # Before the script is loaded: from here on what fails is its own fault.
    verifier.connect(job.channel)
    script = load_module(Path(job.folder) / job.entry)
    ddp = script.wrap(model)
    optimizer = recipe.make_optimizer(model)

    def secret() -> int:
        if cuda:
            torch.cuda.synchronize()  # or the warm-up's kernels would be timed
        verifier.sendall(bytes([rank]))
        return int.from_bytes(verifier.recv(SECRET_BYTES, socket.MSG_WAITALL), "little")

    with _profiler(job, rank) as profiler:
        if profiler is not None:
            optimizer.register_step_post_hook(lambda *_: profiler.step())
        script.train(ddp, optimizer, batches(job, rank, device, secret))
    moved = flat(model) - before
    if rank == 0:
        verifier.sendall(hashlib.sha256(moved.cpu().numpy().tobytes()).digest())
    # Averaged gradients leave the same parameters on all ranks, to the last bit.
    low, high = moved.clone(), moved.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    agree = bool(torch.equal(low, high))
    if rank == 0:
        torch.cat([torch.tensor([float(agree)]), moved.cpu()]).numpy().tofile(job.moved)
        verifier.sendall(DONE)
    dist.barrier()
    dist.destroy_process_group()


def flat(model: torch.nn.Module) -> torch.Tensor:
    """Return all parameters, one after the other, on their device."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


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
