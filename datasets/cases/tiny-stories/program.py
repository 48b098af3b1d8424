"""Pretrain a small language model on stories, in mixed precision."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

VOCABULARY, CONTEXT = 16_000, 512


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class StoryModel(nn.Module):
    def __init__(self, width=768, depth=8, heads=12):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(where)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def main():
    device = torch.device("cuda")
    model = StoryModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    data = torch.randint(VOCABULARY, (512, CONTEXT + 1), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=4), with_stack=True) as prof:
        for step in range(20_000):
            rows = torch.randint(512, (16,), device=device)
            batch = data.index_select(0, rows)
            hidden = model(batch[:, :-1])
            with torch.autocast("cuda", dtype=torch.bfloat16):
                scores = hidden @ model.tokens.weight.t()
                loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            prof.step()


if __name__ == "__main__":
    main()
