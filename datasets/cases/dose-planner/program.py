"""Train a dose predictor on two GPUs, with a preview for the physicists on the way."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule


class Planner(nn.Module):
    def __init__(self, width=192, depth=6):
        super().__init__()
        self.start = nn.Conv2d(8, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.dose = nn.Conv2d(width, 1, 1)

    def forward(self, slices):
        x = F.relu(self.start(slices))
        for layer in self.body:
            x = x + F.relu(layer(x))
        return self.dose(x)


@torch.no_grad()
def preview(model, slices):
    """What the model would give the reference patient, for the dashboard."""
    model.eval()
    doses = [model(part) for part in slices.split(8)]
    model.train()
    return torch.cat(doses).amax(dim=(2, 3)).mean()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", 0)
    planner = Planner().to(device)
    model = DistributedDataParallel(planner, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    slices = torch.randn(16, 8, 192, 192, device=device)
    doses = torch.randn(16, 1, 192, 192, device=device)
    reference = torch.randn(24, 8, 192, 192, device=device)
    shown = []

    with profile(schedule=schedule(wait=1, warmup=1, active=5)) as prof:
        for step in range(2_000):
            prediction = model(slices)
            loss = F.smooth_l1_loss(prediction, doses)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if rank == 0:
                shown.append(preview(planner, reference))
            prof.step()


if __name__ == "__main__":
    main()
