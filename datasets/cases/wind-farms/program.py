"""Predict the yield of wind farms with one small model on two GPUs of two machines."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule


class Mixer(nn.Module):
    def __init__(self, turbines, width):
        super().__init__()
        self.across = nn.Linear(turbines, turbines)
        self.along = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x):
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class Yield(nn.Module):
    def __init__(self, turbines=128, width=768, depth=10):
        super().__init__()
        self.start = nn.Linear(32, width)
        self.mixers = nn.Sequential(*(Mixer(turbines, width) for _ in range(depth)))
        self.out = nn.Linear(width, 1)

    def forward(self, weather):
        return self.out(self.mixers(self.start(weather))).squeeze(-1)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("high")
    model = DistributedDataParallel(
        Yield().to(device), device_ids=[0], bucket_cap_mb=1, broadcast_buffers=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weather = torch.randn(96, 128, 32, device=device)
    yields = torch.randn(96, 128, device=device)
    mean = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for step in range(3_000):
            loss = F.huber_loss(model(weather), yields)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            mean = torch.lerp(mean, loss.detach(), 0.01)
            if step % 200 == 199 and dist.get_rank() == 0:
                print(step, mean.item())
            prof.step()


if __name__ == "__main__":
    main()
