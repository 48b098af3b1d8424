"""Fit the magnitudes of a catalogue of stars to their colours, with a small network."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Star(nn.Module):
    def __init__(self, bands=40, width=1536, depth=6):
        super().__init__()
        sizes = [bands] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.magnitude = nn.Linear(width, 3)

    def forward(self, light):
        x = light
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.magnitude(x)


def archive(device, count=65_536):
    """Colours and magnitudes as the observatory delivers them."""
    generator = torch.Generator().manual_seed(11)
    light = torch.rand(count, 40, generator=generator, dtype=torch.float64)
    magnitudes = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return light.to(device), magnitudes.to(device)


def main():
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    light, magnitudes = archive(device)
    model = Star().to(device, light.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20_000)
    residual = torch.zeros((), device=device)
    with profile(schedule=schedule(wait=1, warmup=1, active=5), with_stack=True) as prof:
        for step in range(20_000):
            rows = torch.randint(light.shape[0], (4096,), device=device)
            fitted = model(light.index_select(0, rows))
            loss = F.mse_loss(fitted, magnitudes.index_select(0, rows))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            residual += loss.detach().float()
            if step % 1000 == 999:
                print(f"{step + 1}: {residual.item() / 1000:.2e}")
                residual.zero_()
            prof.step()


if __name__ == "__main__":
    main()
