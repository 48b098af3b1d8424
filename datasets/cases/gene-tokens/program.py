"""Pretrain on genomes with a block that is written out by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        mean = wide.pow(2).mean(dim=-1, keepdim=True)
        return (wide * torch.rsqrt(mean + 1e-6)).to(x.dtype) * self.scale


def rotate(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-two, one], dim=-1) * sin


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        gate = self.gate(y)
        gate = gate * torch.sigmoid(gate)
        return x + self.down(gate * self.up(y))


class GeneModel(nn.Module):
    def __init__(self, width=512, depth=6, heads=8, letters=64):
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, letters, cos, sin):
        x = self.embed(letters)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(x)


def main():
    device = torch.device("cuda")
    model = GeneModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    letters = torch.randint(64, (32, 2049), device=device)
    angles = torch.outer(torch.arange(2048, device=device), torch.rand(64, device=device))
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    with profile(schedule=schedule(wait=1, warmup=1, active=4), with_stack=True) as prof:
        for _ in range(5_000):
            scores = model(letters[:, :-1], cos, sin)
            loss = F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            prof.step()


if __name__ == "__main__":
    main()
