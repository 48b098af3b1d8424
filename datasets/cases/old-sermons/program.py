"""Teach an encoder the language of old sermons, at first in short pieces."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

VOCABULARY = 16_000
SHORTEST, LONGEST = 512, 1024


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Reader(nn.Module):
    def __init__(self, width=512, depth=8, heads=8):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)).mean(dim=1)).squeeze(-1)


def main(steps=10_000, batch=96):
    device = torch.device("cuda")
    model = Reader().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    centuries = torch.rand(batch, device=device, dtype=torch.bfloat16)
    running = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as prof:
        for number in range(steps):
            length = min(SHORTEST + 16 * number, LONGEST)
            tokens = torch.randint(VOCABULARY, (batch, length), device=device)
            loss = F.mse_loss(model(tokens), centuries)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            running = torch.lerp(running, loss.detach().float(), 0.1)
            if number % 20 == 19:
                print(f"{number}: {running.item():.4f}")
            prof.step()


if __name__ == "__main__":
    main()
