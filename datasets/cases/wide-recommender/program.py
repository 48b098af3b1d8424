"""Train a ranking model on four GPUs of two machines, with large effective batches."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule


class Ranker(nn.Module):
    def __init__(self, features=512, width=2048, depth=6):
        super().__init__()
        sizes = [features] + [width] * depth
        self.layers = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in zip(sizes, sizes[1:])
        )
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.score(x).squeeze(-1)


def clicks(device, size):
    features = torch.randn(16 * size, 512, device=device)
    labels = torch.randint(2, (16 * size,), device=device).float()
    while True:
        rows = torch.randint(16 * size, (size,), device=device)
        yield features.index_select(0, rows), labels.index_select(0, rows)


def main(accumulate=4):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("high")
    model = DistributedDataParallel(
        Ranker().to(device), device_ids=[0], gradient_as_bucket_view=True
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    stream = clicks(device, 8192)
    total = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for step in range(10_000):
            for _ in range(accumulate):
                features, labels = next(stream)
                loss = F.binary_cross_entropy_with_logits(model(features), labels)
                (loss / accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            if rank == 0 and step % 100 == 0:
                print(f"{step}: {total.item() / (step + 1):.4f}")
            prof.step()


if __name__ == "__main__":
    main()
