"""Sample small pictures from a diffusion model, with guidance."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, record_function, schedule


class Modulated(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.shift = nn.Linear(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, condition):
        batch, length, width = x.shape
        a, b, c, d = self.shift(F.silu(condition)).unsqueeze(1).chunk(4, dim=-1)
        q, k, v = self.qkv(self.norms[0](x) * (1 + a) + b).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(y.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x) * (1 + c) + d)))


class Denoiser(nn.Module):
    def __init__(self, width=384, depth=12, heads=6, classes=1000):
        super().__init__()
        self.patches, self.back = nn.Linear(16, width), nn.Linear(width, 16)
        self.classes = nn.Embedding(classes + 1, width)
        self.time = nn.Linear(256, width)
        self.layers = nn.ModuleList(Modulated(width, heads) for _ in range(depth))

    def forward(self, x, times, labels):
        rates = torch.exp(-math.log(10_000) * torch.arange(128, device=x.device) / 128)
        angles = times.unsqueeze(1) * rates
        wave = torch.cat([angles.sin(), angles.cos()], dim=1).to(x.dtype)
        condition = self.time(wave) + self.classes(labels)
        x = self.patches(x)
        for layer in self.layers:
            x = layer(x, condition)
        return self.back(x)


@torch.inference_mode()
def main(pictures=4, steps=50, guidance=4.0):
    device = torch.device("cuda")
    model = Denoiser().to(device, torch.bfloat16).eval()
    x = torch.randn(pictures, 256, 16, dtype=torch.bfloat16, device=device)
    labels = torch.randint(1000, (pictures,), device=device)
    nothing = torch.full((pictures,), 1000, device=device)
    with profile(schedule=schedule(wait=2, warmup=2, active=6), with_stack=True) as prof:
        for step in range(steps):
            times = torch.full((pictures,), 1.0 - step / steps, device=device)
            with record_function("denoise"):
                guided = model(x, times, labels)
                free = model(x, times, nothing)
            noise = free + guidance * (guided - free)
            x = x - noise / steps
            prof.step()
    return x


if __name__ == "__main__":
    main()
